// Transfers between KV caches: tokens and layers of a request move between the cache of this worker
// and the caches of all ranks of another instance. The two instances may differ in tensor and
// pipeline parallelism, tokens per block, and layout (kv_layout.h).
//
// A *group* is the ranks of the other instance that this worker exchanges blocks with (RanksToRead,
// RanksToWrite), given as the names of their agents in any order; further ranks of it do no harm.
// The ranks of an instance share one block table. Layers with a block table of their own (sliding
// windows, state space models), and scales in tensors of their own, are registered as a separate
// cache with its own name.
//
// Thread-safety: plain values, safe to copy between threads.
//
// Example: layer 3 of a request, from one rank of prefill to all ranks of decode:
//   agent->WriteBlocks(decode_ranks, {.cache = CacheName("kv"), .local_ids = mine,
//                                     .remote_ids = theirs, .tokens = 1000, .first_layer = 3,
//                                     .layers = 1},
//                      {.request = RequestName("request 7")});
//
// Example: all layers of it, each as soon as it is computed:
//   const auto blocks = agent->PrepareBlocks(decode_ranks, {.cache = CacheName("kv"),
//                                                           .local_ids = mine,
//                                                           .remote_ids = theirs,
//                                                           .tokens = 1000});
//   if (!blocks.ok()) return blocks.status();
//   agent->WriteLayers(*blocks, 3, 1, {.request = RequestName("request 7")});

#ifndef KVXFER_KV_CACHE_H_
#define KVXFER_KV_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "kvxfer/transfer.h"
#include "kvxfer/types.h"

namespace kvxfer {

inline constexpr uint32_t kAllLayers = UINT32_MAX;

inline constexpr size_t kMaxKvCaches = 64;  // of one agent

// The largest notification of WriteBlocks and ReadBlocks, in bytes.
inline constexpr size_t kMaxKvNotificationBytes = 32 * 1024;

// Which tokens and layers of a request. The spans are read during the call only.
struct KvBlocks {
  CacheName cache{};  // the name that the cache has at this agent and at every rank
  // Block ids in the order of the request's tokens: in this worker's cache, and in the caches of
  // the group, which all use the same ids.
  std::span<const uint32_t> local_ids{};
  std::span<const uint32_t> remote_ids{};
  // Position of the first token to move, counted from the first token of the first block in the
  // list.
  uint64_t local_first_token = 0;
  uint64_t remote_first_token = 0;
  uint64_t tokens = 0;
  // Layers are numbered as in the model. A rank receives only the layers that it has.
  uint32_t first_layer = 0;
  uint32_t layers = kAllLayers;  // how many; kAllLayers: from first_layer to the last one
};

struct KvOptions {
  // WriteBlocks: the name under which the target collects what arrives. When all layers and heads
  // of its cache have been written under this name, by any number of workers and calls, its
  // application gets one Notification. All writers use the same name, `remote_ids`,
  // `remote_first_token` and `tokens`, and write each head of each layer once. A name is for one
  // attempt; a retry uses another name. At most kMaxNameBytes; empty: the target gets no
  // notification.
  RequestName request{};
  // ReadBlocks: the owners hold the blocks under this lease (Agent::LeaseBlocks), and remote_ids
  // are the lease's ids. The transfer is done only after each owner has confirmed, after the last
  // byte, that the lease held throughout; this worker then no longer needs the lease.
  LeaseName lease{};
  // ReadBlocks: what the blocks must hold, as their owner gave it to LeaseBlocks. An owner whose
  // lease holds something else refuses the read. At most kMaxNameBytes.
  std::string lease_contents{};
  // ReadBlocks: how long an owner waits for a lease that it has not granted yet, before it refuses
  // the read with kUnknown. 0: it refuses at once.
  Duration lease_wait = Duration::zero();
  // ReadBlocks: the first layer of each pipeline stage of this worker's instance (see KvDivision).
  // An owner learns from it how many workers of the instance fetch from it; the last one consumes
  // the lease. Empty: there is one stage. InvalidArgument: the stages are not those of an instance
  // of which this worker is a rank.
  std::vector<uint32_t> stages{};

  // As for any transfer, with these differences.
  // notification: at most kMaxKvNotificationBytes.
  //   WriteBlocks: the payload of the request's notification. If several calls give one, the target
  //   gets that of the call whose data arrived last.
  //   ReadBlocks: delivered to each rank that data was read from, after all of it has been read.
  // order: ignored; a rank counts what arrives in whatever order.
  // user_word: one event for the group, however many ranks it has.
  TransferOptions transfer{};
};

namespace internal {
struct KvPrepared;
class KvPreparedAccess;
}  // namespace internal

// The blocks of one request in the caches of both sides, ready to be written layer by layer. All
// that a layer does not change was looked up, checked and computed once, in Agent::PrepareBlocks;
// Agent::WriteLayers then costs the calling thread no work per block.
//
// Thread-safety: immutable. Any number of threads may use it, and copies of it, at the same time.
// Lifetime: a copy is a handle to the same blocks. They keep one copy of the ids, of 8 bytes for
// each pair of blocks and each rank that takes part, until the last handle and the last transfer of
// them is gone; however many layers are written. A handle may outlive the agent.
class PreparedBlocks {
 public:
  PreparedBlocks() = default;  // no blocks: WriteLayers refuses it

 private:
  friend class internal::KvPreparedAccess;
  std::shared_ptr<const internal::KvPrepared> prepared_;
};

enum class KvLeaseEnd : uint8_t {
  kConsumed,  // all readers have fetched the blocks
  kReleased,  // by its owner's ReleaseLease
  kExpired,
};
const char* ToString(KvLeaseEnd end);

// Why the owner of blocks refused a read under a lease.
enum class KvLeaseRefusal : uint8_t {
  kUnknown = 1,    // not granted yet, or ended so long ago that the owner has forgotten it
  kOtherContents,  // granted for contents other than KvOptions::lease_contents
  kOtherBlocks,    // granted for other blocks, or for another cache
  kEnded,          // consumed, released or expired; or the read took longer than the lease was held
  kBusy,           // too many reads under leases at once; try again
};
const char* ToString(KvLeaseRefusal refusal);

// The refusal that a ReadBlocks transfer failed with; empty if it did not fail for that reason.
std::optional<KvLeaseRefusal> LeaseRefusalOf(const absl::Status& status);

enum class KvEventKind : uint8_t {
  kLeaseEnded,   // the lease's blocks may be reused
  kRequestLost,  // a request that peers wrote into a cache of this agent will never be complete
};
const char* ToString(KvEventKind kind);

struct KvEvent {
  KvEventKind kind = KvEventKind::kLeaseEnded;
  // kLeaseEnded only.
  LeaseName lease{};
  KvLeaseEnd end = KvLeaseEnd::kConsumed;
  // kRequestLost only: the request, its cache, and why it was given up, for a person.
  RequestName request{};
  CacheName cache{};
  std::string why{};
};

// Totals since the agent was created.
struct KvCounts {
  uint64_t requests_whole = 0;  // written to this agent completely
  uint64_t requests_lost = 0;   // begun and given up: data was refused or did not arrive in time
  uint64_t leases_granted = 0;
  uint64_t leases_consumed = 0;
  uint64_t leases_released = 0;
  uint64_t leases_expired = 0;
  uint64_t fetches_refused = 0;  // fetches by peers, under leases that did not hold throughout
  uint64_t reads_waiting = 0;    // reads by peers that now wait for a lease (lease_wait)
};

}  // namespace kvxfer

#endif  // KVXFER_KV_CACHE_H_
