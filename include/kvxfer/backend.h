// The interface between the agent and a transport. A backend consists of a Backend (one per agent),
// its Endpoints (one per connection), Registrations of local memory, and RemoteKeys for memory of
// peers. docs/adding-a-backend.md walks through one.
//
// Thread-safety: one agent thread at a time calls into a backend and the objects that it made, so a
// backend needs no locks for that. Nothing here may block, except MakeBackend and Prepare.
// Order: every backend is treated as unordered. Differences between backends are data: see
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
  kImmediate,  // the target's Poll reports the write's immediate after its bytes are visible
  kCopied,     // the initiator's CPU or GPU copies: a completed write is visible
};

constexpr uint32_t BitOf(MemoryKind kind) { return 1u << static_cast<uint32_t>(kind); }

struct Capabilities {
  Arrival arrival = Arrival::kImmediate;
  // BitOf each memory kind that Register takes.
  uint32_t memory_kinds = BitOf(MemoryKind::kHost);
  // True: writes on one rail become visible in the order of Post, so only the last write of a lane
  // needs an immediate. False: every write carries one.
  bool rail_keeps_order = false;
  // True: a rail may go down while its endpoint lives. An op that ends as Unavailable, Aborted or
  // Cancelled may be the first sign of that; kRailDown follows within 20 ms of the last op of that
  // rail. False: there is no kRailDown, and such an op fails its transfer at once.
  bool rails_fail_alone = false;
  // True: reads and writes move only while the target's process makes progress.
  bool needs_remote_cpu = false;
  // It listens at AgentOptions::listen, and hands metadata out there
  // (AgentOptions::serve_metadata).
  bool serves_metadata = false;
  size_t max_op_bytes = 0;       // bytes of all runs of one op
  size_t max_op_runs = 0;        // runs of one op
  size_t max_message_bytes = 0;  // of one Endpoint::Send; at least 128 KiB
  // The number of immediates that may be in flight to this side at once, over all connections, if
  // rails keep order; 0: no limit. Peers that are connected over this backend get at most as many
  // arrival slots, all together.
  size_t max_arrivals = 0;

  bool Takes(MemoryKind kind) const { return (memory_kinds & BitOf(kind)) != 0; }
};

// What Backend::Prepare did ahead of Register. It may be destroyed on any thread, and is destroyed
// before its backend; the destructor undoes what Register did not take over.
class Prepared {
 public:
  virtual ~Prepared() = default;
};

// One local region as the agent registered it. `rkey` is random, non-zero, and unique within the
// agent's incarnation.
struct LocalRegion {
  RegionId id = RegionId::kNone;
  uint32_t rkey = 0;
  MemorySpan span{};
  Access access = Access::kNone;
  Prepared* prepared = nullptr;  // Prepare's result for this span and access; null: none
};

// One region of a peer, as the peer's metadata describes it.
struct RemoteRegion {
  RegionId id = RegionId::kNone;
  uint32_t rkey = 0;
  uint64_t base = 0;
  uint64_t bytes = 0;
  MemoryKind kind = MemoryKind::kHost;
  int device_id = 0;
  Access access = Access::kNone;
};

// A backend's registration of a local region. The destructor ends remote access through it. The
// agent destroys it only when no op names it.
class Registration {
 public:
  virtual ~Registration() = default;
  // What peers need beyond RemoteRegion. Opaque; the agent puts it into its metadata. May be empty.
  virtual std::string Key() const { return {}; }
};

// A peer's region, usable on one endpoint. The agent destroys it before the endpoint, and only when
// no op names it.
class RemoteKey {
 public:
  virtual ~RemoteKey() = default;
};

// One contiguous piece, local ↔ remote. Each address is virtual, in the address space of the
// memory's owner. The agent has already checked both ends against their regions and rights.
struct Run {
  uint64_t local = 0;
  uint64_t remote = 0;
  uint64_t bytes = 0;
  const Registration* registration = nullptr;
  const RemoteKey* key = nullptr;
};

enum class OpKind : uint8_t { kWrite, kRead };

// One operation of at most max_op_runs runs and max_op_bytes bytes in all. A write may have an
// immediate and no runs; it is ordered after the earlier writes of its rail like any other write.
struct Op {
  OpKind kind = OpKind::kWrite;
  bool has_immediate = false;
  // The transfer has no other op, and a Send (its OPEN) follows in the same turn. The backend may
  // send the op's bytes together with that message, and so ahead of what is queued on the op's
  // rail.
  bool sole = false;
  uint32_t rail = 0;            // < Endpoint::rails()
  uint32_t immediate = 0;       // delivered after this op's bytes, if arrival is kImmediate
  uint64_t id = 0;              // returned in the completion
  uint64_t transfer = 0;        // the transfer that Fence names; unique on the endpoint, never 0
  std::span<const Run> runs{};  // stays valid until the completion
};

// The number of bytes that one Post copies inside the call, at most. If nothing else is queued on
// its endpoint, a backend with Arrival::kCopied copies an op of at most this size completely inside
// Post and has its completion ready. A Poll that asks for no more events than those does nothing
// else.
inline constexpr size_t kInlineCopyBytes = 64 * 1024;

class Endpoint;

enum class EventKind : uint8_t {
  kAccepted,   // a peer connected; `accepted` is the new endpoint, not yet authorised
  kConnected,  // the endpoint that Connect returned is up
  kDown,  // the endpoint is finished; this is its last event. On an accepted endpoint it also means
          // that no byte of that peer can be written through it any more.
  kMessage,     // `message` was received; it stays valid until the next Poll or Peek
  kImmediate,   // `immediate` was received on `rail`; the bytes of that write are visible
  kCompletion,  // op `id` has ended with `status`; the backend no longer touches its local memory.
                // A write has left its source (kCopied: and is visible); the bytes of a read are in
                // local memory.
  kFenced,      // answers Fence(id)
  kRailDown,  // connecting side: `rail` is unusable, `status` says why. Every op that was accepted
              // on it has completed before this event, failed ones with an error
  kRailUp,    // connecting side: `rail` is usable, for the first time or again
  kRailFenced,  // accepting side: answers FenceRail(rail). No write that the peer posted on the
                // rail before its kRailDown can become visible any more, and Poll has reported
                // every immediate of the rail
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

// What is known about one rail before it carries data.
struct RailInfo {
  double bytes_per_second = 0;  // nominal; 0: not known
  std::string name{};           // for a person, e.g. "mlx5_0:1 → mlx5_2:1"
  Duration round_trip{};        // of the probe that opened the rail; 0: not known
};

// One connection to one peer. If Capabilities::rails_fail_alone, single rails may go down while the
// endpoint lives: kRailDown takes a rail out of use, the initiator's agent discards what went over
// it (docs/architecture.md, "A rail fails"), and ReopenRail lets the backend build the rail again.
// An endpoint whose last rail is down stays up as long as messages pass; its transfers wait. The
// agent destroys an endpoint outside of Poll, and only after kDown.
class Endpoint {
 public:
  virtual ~Endpoint() = default;

  virtual uint32_t rails() const = 0;
  // Describes the path for a person, e.g. "10.0.0.2:7471, 2 streams".
  virtual std::string Describe() const = 0;

  // Accepted endpoints only. Before this call the backend neither writes nor reads memory for the
  // peer.
  virtual void Authorize() = 0;

  // Takes ops from the front of `ops` and returns how many it accepted; a short count is the
  // back-pressure. Never blocks. Every accepted op completes exactly once, also after shutdown and
  // loss. Copies at most kInlineCopyBytes inline. Accepts nothing before kConnected, after kDown,
  // or after Shutdown, and no op on a rail that is down: the count stops there. The accepting side
  // never posts; an op posted there completes with an error.
  virtual size_t Post(std::span<const Op> ops) = 0;

  // Copies `message` and sends it. False: no space now; try again after the next Poll.
  virtual bool Send(std::span<const std::byte> message) = 0;

  // Makes `transfer` quiet on this endpoint and answers kFenced exactly once, unless kDown comes
  // first.
  // Connecting side: ops of the transfer that have not begun complete as cancelled; the others stop
  // as soon as possible, and their source is not read after that.
  // Accepting side: from now on no byte of the transfer is written. kFenced means that no byte and
  // no immediate of it is on the way; this presumes that the connecting side was fenced too.
  virtual void Fence(uint64_t transfer) = 0;

  // Connecting side: whether `rail` is usable. A rail for which this is false at kConnected stays
  // out of use until its kRailUp.
  virtual bool rail_up(uint32_t /*rail*/) const { return true; }
  virtual RailInfo rail_info(uint32_t /*rail*/) const { return {}; }
  // Connecting side: moving a byte between `local` and `remote` on `rail` costs 1 + this value,
  // relative to a rail whose NICs are near both. This is a preference: the agent takes a far rail
  // when the near ones are loaded or down.
  virtual uint32_t rail_distance(uint32_t /*rail*/, const Registration& /*local*/,
                                 const RemoteKey& /*remote*/) const {
    return 0;
  }

  // Accepting side: makes the incarnation of `rail` quiet that ended with the peer's kRailDown, and
  // answers kRailFenced exactly once, unless kDown comes first. The agent does not call it again
  // before that answer. Backends without rails_fail_alone need neither this nor ReopenRail.
  virtual void FenceRail(uint32_t /*rail*/) {}

  // Connecting side: called once after each kRailDown, when the target's fence of the rail has
  // completed or nothing was counted on the rail there. The backend must not rebuild the rail
  // before this call, so that a fence never meets a rebuilt rail. It rebuilds in its own time
  // (back-off, probe) and reports kRailUp.
  virtual void ReopenRail(uint32_t /*rail*/) {}

  // Starts closing; kDown follows once the endpoint is closed.
  virtual void Shutdown(absl::Status why) = 0;

  // Makes `region` usable on this endpoint. `key` is the peer's Registration::Key for this backend.
  virtual absl::StatusOr<std::unique_ptr<RemoteKey>> Import(const RemoteRegion& region,
                                                            std::string_view key) = 0;
};

// Identifies a process. Metadata contains it, so that a peer can detect that both are on one host
// and can prove that an incarnation has ended.
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

  // What a peer needs to connect. Opaque; the agent puts it into its metadata.
  virtual std::string Address() const = 0;

  // Whether connecting to a peer can be tried, judged from its address and host alone; the Status
  // says why not. FailedPrecondition: this backend is meant for such a peer but cannot reach it, so
  // that using another backend instead deserves a warning.
  virtual absl::Status Reachable(std::string_view address, const HostIdentity& host) const = 0;

  // Starts connecting; kConnected, or kDown with the reason, follows. The agent gives up with
  // Shutdown.
  virtual absl::StatusOr<std::unique_ptr<Endpoint>> Connect(std::string_view address,
                                                            const HostIdentity& host) = 0;

  // The slow part of Register (a device pins large memory for hundreds of milliseconds); its result
  // becomes LocalRegion::prepared. Called on any thread, concurrently with every other call. Null:
  // this backend has no slow part. An error: Register would fail with it.
  virtual absl::StatusOr<std::unique_ptr<Prepared>> Prepare(const MemorySpan& /*span*/,
                                                            Access /*access*/) {
    return nullptr;
  }
  // Makes a local region accessible to peers; the result lives until the region is deregistered.
  virtual absl::StatusOr<std::unique_ptr<Registration>> Register(const LocalRegion& region) = 0;

  // Makes progress for a bounded time and reports up to out.size() events. `readable` false: the
  // caller knows that wait_fd() is not readable, or will check soon; only what is already in memory
  // needs to be processed, without asking the kernel.
  virtual size_t Poll(std::span<Event> out, bool readable) = 0;

  // Called by a spinning thread before a Poll with `readable` false: asks the kernel, with at most
  // one system call, for the input that most likely has arrived, so that Poll finds it in memory.
  // Other input shows on wait_fd().
  virtual void Peek() {}

  // Called before the agent sleeps on wait_fd(). False: there is work that wait_fd() would not
  // show, so call Poll again instead of sleeping.
  virtual bool Arm() = 0;
  // A descriptor for epoll; readable when Poll has something to do.
  virtual int wait_fd() const = 0;

  // Where peers connect, as "host:port" with the real port; empty if that has no meaning here.
  virtual std::string ListenAddress() const { return {}; }
  // The devices that it uses, one line each for a person, e.g. "mlx5_0:1, 100 Gb/s"; may be empty.
  virtual std::vector<std::string> Devices() const { return {}; }
};

// What MakeBackend passes to a backend; `options` is valid during that call only.
struct BackendContext {
  const AgentOptions& options;
  Incarnation incarnation{};
  HostIdentity host{};
  // Returns the agent's current metadata, for a backend that serves it to peers; all requests in
  // progress share the string. Returns null once the agent is closing. The driving thread calls it,
  // also within Poll, for as long as the backend lives. The function is empty if
  // AgentOptions::serve_metadata is false.
  std::function<std::shared_ptr<const std::string>()> metadata{};
};

// Makes the backend `name` ("tcp", "faulty:shm", ...), a built-in one or a plugin that is searched
// for as AgentOptions::plugin_path says. NotFound: the message lists the known backends.
// Unavailable: not usable here; the message says why. Unimplemented: this host has no hardware for
// it, or it is not installed.
absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(std::string_view name,
                                                     const BackendContext& context);

// The backends that an agent tries if AgentOptions::backends is empty, best first.
std::vector<std::string> DefaultBackends();

// Every backend that kvxfer is made for, best first, whether it is here or not.
std::vector<std::string> KnownBackendNames();

}  // namespace kvxfer

#endif  // KVXFER_BACKEND_H_
