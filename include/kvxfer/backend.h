// The interface between the agent and a way to move bytes. A backend is all of: a Backend (one to
// an agent), its Endpoints (one to a connection), Registrations of local memory and RemoteKeys to
// memory of peers. docs/adding-a-backend.md walks through one.
//
// Thread-safety: one agent thread at a time calls into a backend and everything it made; a backend
// needs no locks for that. Nothing here may block, except Create and Prepare.
// Order: every backend is treated as unordered. What differs between backends is data:
// Capabilities.
//
// Example (the smallest use of one):
//   size_t accepted = endpoint->Post(ops);            // a short count is the back-pressure
//   std::array<kvxfer::Event, 64> events;
//   size_t n = backend->Poll(events, true);           // completions come from here only

#ifndef KVXFER_BACKEND_H_
#define KVXFER_BACKEND_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/memory.h"
#include "kvxfer/options.h"
#include "kvxfer/types.h"

namespace kvxfer {

// How the target learns that bytes are visible in its memory.
enum class Arrival : uint8_t {
  kImmediate,  // the target's Poll reports the immediate of a write after the bytes of that write
  kCopied,     // a completed write is visible: the initiator's CPU did it
};

constexpr uint32_t BitOf(MemoryKind kind) { return 1u << static_cast<uint32_t>(kind); }

struct Capabilities {
  Arrival arrival = Arrival::kImmediate;
  // BitOf each kind that Register takes.
  uint32_t memory_kinds = BitOf(MemoryKind::kHost);
  // Writes of one rail become visible in the order of Post: only the last of a lane needs an
  // immediate. False: every write carries one.
  bool rail_keeps_order = false;
  // A rail may go down while its endpoint lives. An op that ends as Unavailable, Aborted or
  // Cancelled may then be the first sign of it: kRailDown follows within 20 ms of the last op of
  // that rail. False: there is no kRailDown, and such an op fails its transfer at once.
  bool rails_fail_alone = false;
  // Reads and writes move only while the target's process makes progress.
  bool needs_remote_cpu = false;
  // It listens at AgentOptions::listen, and hands metadata out there
  // (AgentOptions::serve_metadata).
  bool serves_metadata = false;
  size_t max_op_bytes = 0;       // bytes of all runs of one op
  size_t max_op_runs = 0;        // runs of one op
  size_t max_message_bytes = 0;  // of Endpoint::Send; at least 128 KiB
  // Immediates that may be on their way to this side at once, over all connections, where a rail
  // keeps order; 0: any number. Peers that are connected over it get no more slots than that.
  size_t max_arrivals = 0;

  bool Takes(MemoryKind kind) const { return (memory_kinds & BitOf(kind)) != 0; }
};

// What Backend::Prepare did ahead of Register. Destroyed on any thread, before its backend; what
// Register did not take is undone.
class Prepared {
 public:
  virtual ~Prepared() = default;
};

// One local region as the agent registered it. `rkey` is random, non-zero and unique within the
// incarnation.
struct LocalRegion {
  RegionId id = RegionId::kNone;
  uint32_t rkey = 0;
  MemorySpan span{};
  Access access = Access::kNone;
  Prepared* prepared = nullptr;  // what Prepare made of this span and access; null: nothing
};

// One region of a peer, as its metadata tells.
struct RemoteRegion {
  RegionId id = RegionId::kNone;
  uint32_t rkey = 0;
  uint64_t base = 0;
  uint64_t bytes = 0;
  MemoryKind kind = MemoryKind::kHost;
  int device_id = 0;
  Access access = Access::kNone;
};

// A backend's hold on a local region; closing it (destructor) ends remote access through it. The
// agent closes it only when no op names it.
class Registration {
 public:
  virtual ~Registration() = default;
  // What peers need beyond RemoteRegion, opaque, put into metadata; may be empty.
  virtual std::string Key() const { return {}; }
};

// A peer's region made usable on one endpoint; closed before its endpoint, when no op names it.
class RemoteKey {
 public:
  virtual ~RemoteKey() = default;
};

// One contiguous piece: local ↔ remote. Addresses are virtual addresses of their owners.
// Already checked by the agent against both regions and their rights.
struct Run {
  uint64_t local = 0;
  uint64_t remote = 0;
  uint64_t bytes = 0;
  const Registration* registration = nullptr;
  const RemoteKey* key = nullptr;
};

enum class OpKind : uint8_t { kWrite, kRead };

// One operation: up to max_op_runs runs, max_op_bytes bytes in all; a write without runs but with
// an immediate is valid and follows the earlier writes of its rail like any other.
struct Op {
  OpKind kind = OpKind::kWrite;
  bool has_immediate = false;
  // No other op of its transfer is posted before it completes, and a Send follows in the same turn:
  // a backend may let it share that message's way, and pass by what its rail carries.
  bool sole = false;
  uint32_t rail = 0;            // < Endpoint::rails()
  uint32_t immediate = 0;       // arrives after the bytes of this op, where arrival is kImmediate
  uint64_t id = 0;              // comes back in the completion
  uint64_t transfer = 0;        // what Fence names; unique on the endpoint, never 0
  std::span<const Run> runs{};  // stays valid until the completion
};

// Of the bytes of one Post, so many are copied inside it at most. A backend whose initiator copies
// copies all of an op that is no larger inside Post, where nothing else waits on its endpoint, and
// has its completion ready: a Poll that asks for no more than those does nothing else.
inline constexpr size_t kInlineCopyBytes = 64 * 1024;

class Endpoint;

enum class EventKind : uint8_t {
  kAccepted,    // a peer connected: `accepted` is the new endpoint, not yet authorised
  kConnected,   // the endpoint that Connect returned is up
  kDown,        // the endpoint is finished: its last event. On an accepted endpoint it also means
                // that no byte of that peer can land through it any more.
  kMessage,     // `message` came in; valid until the next Poll or Peek
  kImmediate,   // `immediate` came in on `rail`; the bytes of that write are visible
  kCompletion,  // op `id` is over, `status` says how; its local memory is not touched any more.
                // Write: done with the source (kCopied: and visible). Read: bytes are here.
  kFenced,      // answers Fence(transfer = `id`)
  kRailDown,    // connecting side: `rail` is out of use, `status` says why. Every op that was
                // accepted on it has completed before this, those that failed with a status
  kRailUp,      // connecting side: `rail` can be used, again or for the first time
  kRailFenced,  // accepting side, answers FenceRail(rail): nothing that the peer posted on it
                // before its kRailDown can land, and Poll has reported every immediate of it
};

struct Event {
  EventKind kind = EventKind::kMessage;
  Endpoint* endpoint = nullptr;
  std::unique_ptr<Endpoint> accepted{};
  uint64_t id = 0;
  uint32_t rail = 0;
  uint32_t immediate = 0;
  std::span<const std::byte> message{};
  absl::Status status{};
};

// What is known of one rail beforehand.
struct RailInfo {
  double bytes_per_second = 0;  // nominal; 0: not known
  std::string name{};           // a word for a person, e.g. "mlx5_0:1 → mlx5_2:1"
  Duration round_trip{};        // of the probe that opened it; 0: not known
};

// One connection to one peer. Rails may fail alone: while the endpoint lives, kRailDown takes one
// out of use, the initiator's agent discards what went over it (docs/architecture.md, "A rail
// fails"), and ReopenRail lets the backend build it anew. An endpoint whose last rail is down
// stays up as long as messages pass; transfers wait. Destroyed by the agent, only after kDown (or
// never connected) and outside of Poll.
class Endpoint {
 public:
  virtual ~Endpoint() = default;

  virtual uint32_t rails() const = 0;
  // A word for a person on what the path is, e.g. "10.0.0.2:7471, 2 streams".
  virtual std::string Describe() const = 0;

  // Until called on an accepted endpoint no byte of the peer is landed or served.
  virtual void Authorize() = 0;

  // Hands over `ops` from the front and returns how many were accepted; never blocks. Every
  // accepted op completes exactly once, on shutdown and loss too. Copies at most kInlineCopyBytes
  // inline. Accepts nothing before kConnected, after kDown, or after Shutdown; on the accepting
  // side, where nobody posts, ops complete with an error. On a rail that is down nothing is
  // accepted: the count stops there.
  virtual size_t Post(std::span<const Op> ops) = 0;

  // Sends one message; copied. False: no room now, try again after the next Poll.
  virtual bool Send(std::span<const std::byte> message) = 0;

  // Makes `transfer` quiet on this endpoint and answers kFenced exactly once (unless kDown comes
  // first). On the connecting side: ops of it that have not begun complete as cancelled, others
  // stop as soon as may be, their source is not read again. On the accepting side: from now on no
  // byte of it lands, and kFenced means that no byte and no immediate of it is on the way: it
  // counts on the connecting side having been fenced too.
  virtual void Fence(uint64_t transfer) = 0;

  // Connecting side: whether `rail` can be used. At kConnected those of which this is false are out
  // of use until their kRailUp.
  virtual bool rail_up(uint32_t /*rail*/) const { return true; }
  virtual RailInfo rail_info(uint32_t /*rail*/) const { return {}; }
  // Connecting side: a byte between the two costs 1 + this as much on `rail` as over NICs that are
  // near both. A wish, not a bar: a rail that is far is taken when near ones are loaded, or gone.
  virtual uint32_t rail_distance(uint32_t /*rail*/, const Registration& /*local*/,
                                 const RemoteKey& /*remote*/) const {
    return 0;
  }

  // Accepting side: makes an earlier life of `rail` quiet, which ended with the peer's kRailDown,
  // and answers kRailFenced exactly once (unless kDown comes first). Not called again before that.
  // Backends whose rails never go down alone need neither this nor ReopenRail.
  virtual void FenceRail(uint32_t /*rail*/) {}

  // Connecting side, once after each kRailDown: the target's fence of the rail is over, or nothing
  // of it was ever counted there. Only from now on may the backend build the rail anew, in its own
  // time (back-off, probe), and say kRailUp; so a fence never meets a rebuilt rail.
  virtual void ReopenRail(uint32_t /*rail*/) {}

  // Starts closing; kDown follows when it is finished.
  virtual void Shutdown(absl::Status why) = 0;

  virtual absl::StatusOr<std::unique_ptr<RemoteKey>> Import(const RemoteRegion& region,
                                                            std::string_view key) = 0;
};

// What identifies a process, carried in metadata so that a peer can tell "same host", and prove
// that an incarnation is dead.
struct HostIdentity {
  std::string hostname{};
  std::string boot_id{};       // /proc/sys/kernel/random/boot_id: equal on the same running kernel
  uint64_t net_namespace = 0;  // inode numbers of /proc/self/ns/{net,pid}
  uint64_t pid_namespace = 0;
  uint32_t uid = 0;
  uint32_t pid = 0;
  uint64_t start_time = 0;  // field 22 of /proc/self/stat, clock ticks since boot

  bool SameHost(const HostIdentity& other) const { return boot_id == other.boot_id; }
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string_view name() const = 0;
  virtual const Capabilities& capabilities() const = 0;

  // What a peer needs to connect; opaque, put into metadata.
  virtual std::string Address() const = 0;

  // Whether a peer can be tried at all, from its address and host alone; the Status says why not.
  // FailedPrecondition: it is one that this backend is for, and cannot be reached; that another one
  // is taken is worth a warning.
  virtual absl::Status Reachable(std::string_view address, const HostIdentity& host) const = 0;

  // Starts connecting; kConnected or kDown (with why) follows. The agent gives up by Shutdown.
  virtual absl::StatusOr<std::unique_ptr<Endpoint>> Connect(std::string_view address,
                                                            const HostIdentity& host) = 0;

  // The part of Register that takes long (a device pins the pages of large memory for hundreds of
  // milliseconds), for LocalRegion::prepared. Any thread, beside every other call. Null: there is
  // none; an error: Register would fail so.
  virtual absl::StatusOr<std::unique_ptr<Prepared>> Prepare(const MemorySpan& /*span*/,
                                                            Access /*access*/) {
    return nullptr;
  }
  virtual absl::StatusOr<std::unique_ptr<Registration>> Register(const LocalRegion& region) = 0;

  // Makes progress, for a bounded time, and reports up to out.size() events. `readable` false: the
  // caller knows that wait_fd() is not readable, or will look soon: nothing needs to be asked of
  // the kernel, only what is in memory be seen to.
  virtual size_t Poll(std::span<Event> out, bool readable) = 0;

  // Before a Poll that is not told `readable`, by those who spin: asks the kernel for what is most
  // likely to have come, by one system call at most, so that Poll finds it in memory. What comes
  // elsewhere shows by wait_fd().
  virtual void Peek() {}

  // Called before the agent sleeps on wait_fd(). False: there is work that wait_fd would not show;
  // Poll again instead of sleeping.
  virtual bool Arm() = 0;
  // Readable (epoll) when Poll has something to do.
  virtual int wait_fd() const = 0;

  // Where peers connect, "host:port" with the real port; empty where that means nothing.
  virtual std::string ListenAddress() const { return {}; }
  // What it moves bytes over, a line each for a person: "mlx5_0:1, 100 Gb/s"; may be empty.
  virtual std::vector<std::string> Devices() const { return {}; }
};

struct BackendContext {
  const AgentOptions& options;
  Incarnation incarnation{};
  HostIdentity host{};
  // What Agent::Metadata says now, for a backend to tell whoever asks it; shared by all who are
  // being told. Null: the agent closes. By the owner, also within Poll, as long as the backend is.
  // Empty where AgentOptions::serve_metadata is false.
  std::function<std::shared_ptr<const std::string>()> metadata{};
};

// Makes the backend `name` ("tcp", "faulty:shm", ...), built in or of a plugin that is looked for
// as AgentOptions::plugin_path says. NotFound lists the known ones; Unavailable explains why it is
// not usable here; Unimplemented: this host has nothing that it is for, or it is not installed.
absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(std::string_view name,
                                                     const BackendContext& context);

// What an agent tries that is not told which backends to use, best first.
std::vector<std::string> DefaultBackends();

// Every backend that kvxfer is made for, best first, whether it is here or not.
std::vector<std::string> KnownBackendNames();

}  // namespace kvxfer

#endif  // KVXFER_BACKEND_H_
