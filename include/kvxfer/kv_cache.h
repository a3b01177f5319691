// What moves between KV caches: tokens and layers of a request, between the cache of this worker
// and that of every rank of another instance, whatever differs between the two: tensor and pipeline
// parallelism, tokens per block, layout (kv_layout.h).
//
// A *group* is all ranks of the other instance, by the names of their agents, in any order. Its
// ranks share one block table, as those of an instance do. Layers with a table of their own
// (sliding windows, state spaces), or scales in tensors of their own, are a cache of their own,
// with a name of its own.
//
// Thread-safety: plain values.
//
// Example: layer 3 of a request, from one rank of prefill to all ranks of decode:
//   agent->WriteBlocks(decode_ranks, {.cache = "kv", .local_ids = mine, .remote_ids = theirs,
//                                     .tokens = 1000, .first_layer = 3, .layers = 1},
//                      {.request = "request 7"});

#ifndef KVXFER_KV_CACHE_H_
#define KVXFER_KV_CACHE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "kvxfer/types.h"

namespace kvxfer {

inline constexpr uint32_t kAllLayers = UINT32_MAX;

inline constexpr size_t kMaxKvCaches = 64;  // of one agent

// The largest notification of WriteBlocks and ReadBlocks, in bytes.
inline constexpr size_t kMaxKvNotificationBytes = 32 * 1024;

// What of which request. The spans are read during the call only.
struct KvBlocks {
  std::string_view cache{};  // its name, the same at this agent and at every rank of the group
  // Blocks of the request, in the order of its tokens: in this worker's cache, and in those of the
  // group.
  std::span<const uint32_t> local_ids{};
  std::span<const uint32_t> remote_ids{};
  // Where the tokens begin, counted through from the first of these blocks on.
  uint64_t local_first_token = 0;
  uint64_t remote_first_token = 0;
  uint64_t tokens = 0;
  // Of the model. Of those that a rank has not, nothing goes there.
  uint32_t first_layer = 0;
  uint32_t layers = kAllLayers;  // from there on, as far as there are
};

struct KvOptions {
  // WriteBlocks: how the target calls what arrives. When all layers and heads of its cache have
  // been written under this name, by however many workers and calls, its application gets one
  // Notification. All of them say the same name, `remote_ids`, `remote_first_token` and `tokens`,
  // and bring each head of each layer once. A name is for one attempt: who tries again uses
  // another. At most kMaxNameBytes; empty: the target is not told.
  std::string request{};
  // WriteBlocks: what that notification says; of several, that which came last.
  // ReadBlocks: reaches each rank that something was read from, when all of it has been read.
  std::optional<std::string> notification{};
  // ReadBlocks: the owners hold the blocks under this lease (Agent::LeaseBlocks), and remote_ids
  // are those of the lease. The transfer is done only when each owner has confirmed, after the last
  // byte, that the lease held throughout; then this worker needs it no more.
  std::string lease{};
  // ReadBlocks: what the blocks must hold, as their owner has said it to LeaseBlocks. An owner
  // whose lease holds something else refuses the read. At most kMaxNameBytes.
  std::string lease_contents{};
  // ReadBlocks: an owner that has not granted the lease yet waits up to this long for the grant,
  // and then refuses with kUnknown. 0: it refuses at once.
  Duration lease_wait = Duration::zero();
  // How many workers fetch from each owner under the lease; the last of them consumes it. 0: as
  // many ranks of this instance's tensor parallelism as need something of that owner; refused
  // where the instance has pipeline stages.
  uint32_t lease_readers = 0;

  // As in TransferOptions.
  Duration deadline = std::chrono::seconds(30);
  int priority = 0;
  std::string backend{};
  const std::atomic<uint32_t>* ready = nullptr;
  std::optional<CudaStream> after{};
  uint64_t after_event = 0;
};

enum class KvLeaseEnd : uint8_t {
  kConsumed,  // fetched by everyone who was to
  kReleased,  // by its owner
  kExpired,
};
const char* ToString(KvLeaseEnd end);

// Why the owner of blocks refused a read under a lease.
enum class KvLeaseRefusal : uint8_t {
  kUnknown = 1,    // not granted yet, or ended so long ago that the owner has forgotten it
  kOtherContents,  // granted for other contents than KvOptions::lease_contents
  kOtherBlocks,    // granted for other blocks, or of another cache
  kEnded,          // consumed, released or expired; or the read took longer than it was held
  kBusy,           // too many reads under leases at once; try again
};
const char* ToString(KvLeaseRefusal refusal);

// The refusal that a transfer of ReadBlocks failed with; empty where it failed otherwise.
std::optional<KvLeaseRefusal> LeaseRefusalOf(const absl::Status& status);

enum class KvEventKind : uint8_t {
  kLeaseEnded,   // its blocks may be used for other things
  kRequestLost,  // that peers wrote into a cache of this agent: it will never be whole
};
const char* ToString(KvEventKind kind);

struct KvEvent {
  KvEventKind kind = KvEventKind::kLeaseEnded;
  std::string name{};                      // of the lease, or of the request
  KvLeaseEnd end = KvLeaseEnd::kConsumed;  // of a lease
  // Of a request: its cache, and why it was given up, for a person.
  std::string cache{};
  std::string why{};
};

// Totals since the agent was created.
struct KvCounts {
  uint64_t requests_whole = 0;  // written to this agent
  uint64_t requests_lost = 0;   // begun, and given up: a part was refused, or did not come in time
  uint64_t leases_granted = 0;
  uint64_t leases_consumed = 0;
  uint64_t leases_released = 0;
  uint64_t leases_expired = 0;
  uint64_t fetches_refused = 0;  // of peers, under leases that did not hold throughout
  uint64_t reads_waiting = 0;    // of peers, now, for leases that are not granted (lease_wait)
};

}  // namespace kvxfer

#endif  // KVXFER_KV_CACHE_H_
