// The interface between the agent and a transport. A backend consists of a Backend (one per agent),
// its Endpoints (one per connection), Registrations of local memory, and RemoteKeys for memory of
// peers. docs/adding-a-backend.md walks through one.
//
// Thread-safety: one agent thread at a time calls into a backend and the objects that it made, so a
// backend needs no locks for that. The exception is Backend::Register. Nothing here may block,
// except MakeBackend and Register. What ends something (Fence, Shutdown, the destructors) may wait
// for a move of bytes that a thread of the backend has begun, of some megabytes at most.
// Order: the agent assumes no order beyond what Capabilities declares.
//
// Example (the smallest use of one):
//   bool accepted = endpoint->Post(op);               // false is the back-pressure
//   std::array<kvxfer::Event, 64> events;
//   size_t n = backend->Poll(events, kvxfer::Input::kAll);  // completions come from here only

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
#include "kvxfer/block_range.h"
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
  // It takes block lists whose ids are in GPU memory (BlockView::local_device_ids).
  bool device_ids = false;
  size_t max_op_bytes = 0;  // bytes of one op
  // A transfer of up to so many bytes is one op on one rail: to cut it would cost and gain nothing.
  size_t whole_op_bytes = 64 * 1024;
  size_t max_op_pieces = 0;      // BlockRange::pieces of one op
  size_t max_message_bytes = 0;  // of one Endpoint::Send; at least 128 KiB
  // What carries the messages of its links, as far as AgentOptions::control lets it choose. If the
  // option is not kAuto and equals this, a link that cannot do so with its peer goes down, and says
  // why; if it is kAuto, such a link may use another way of the backend.
  ControlCarrier carrier = ControlCarrier::kAuto;
  // The number of immediates that may be in flight to this side at once, over all connections, if
  // rails keep order; 0: no limit. Peers that are connected over this backend get at most as many
  // arrival slots, all together.
  size_t max_arrivals = 0;

  bool Takes(MemoryKind kind) const { return (memory_kinds & BitOf(kind)) != 0; }
};

// One local region as the agent registers it. `rkey` is random, non-zero, and unique within the
// agent's incarnation.
struct LocalRegion {
  uint32_t rkey = 0;
  MemorySpan span{};
  Access access = Access::kNone;
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
// agent destroys it on the driving thread, and only when no op names it.
class Registration {
 public:
  virtual ~Registration() = default;
  // What peers need beyond RemoteRegion. Opaque; the agent puts it into its metadata. May be empty.
  // The backend changes it on the driving thread only.
  std::string key{};
};

// A peer's region that is mapped into this process, to read and to write.
struct MappedRegion {
  std::byte* data = nullptr;              // its first byte here; null: it is not mapped
  std::shared_ptr<const void> mapping{};  // `data` is valid while this exists
};

// A peer's region, usable on one endpoint. The agent destroys it before the endpoint, and only when
// no op names it.
class RemoteKey {
 public:
  virtual ~RemoteKey() = default;
  // The region, if it is mapped into this process. Who copies through the mapping, other than the
  // backend, takes Endpoint::HoldOpen for as long as that lasts.
  virtual MappedRegion Mapped() const { return {}; }
};

// Held while the agent lets a GPU copy through a mapping of a region (RemoteKey::Mapped).
struct CopyHold {
  // Set: it is not certain that the copies have ended (the GPU's context is broken), and no wait
  // would tell. They do end with this process.
  bool doubt = false;
};

enum class OpKind : uint8_t { kWrite, kRead };

// One operation of at most max_op_pieces pieces and max_op_bytes bytes in all. A write may have an
// immediate and no bytes; it is ordered after the earlier writes of its rail like any other write.
struct Op {
  OpKind kind = OpKind::kWrite;
  bool has_immediate = false;
  // The transfer has no other op, and the agent calls Send with its OPEN before the next Poll, if
  // there is space. The backend may send the op's bytes together with that message, and so ahead of
  // what is queued on the op's rail. If no Send comes, the next Poll sends the op by itself.
  bool sole = false;
  uint32_t rail = 0;       // index in EndpointInfo::rails
  uint32_t immediate = 0;  // delivered after this op's bytes, if arrival is kImmediate
  uint64_t id = 0;         // returned in the completion event
  uint64_t transfer = 0;   // the transfer that Fence names; unique on the endpoint, never 0
  BlockRange blocks{};     // what it points to stays valid until the op has completed
};

// The number of bytes that one Post copies inside the call, at most.
inline constexpr size_t kInlineCopyBytes = 64 * 1024;

// What became of an op that was posted; true: it was accepted.
class Posted {
 public:
  constexpr Posted(bool accepted) : accepted_(accepted) {}  // NOLINT(google-explicit-constructor)
  // Accepted, and over: it has completed without an error, and Poll reports nothing of it. For what
  // a backend with Arrival::kCopied has copied inside the call.
  static constexpr Posted Done() {
    Posted posted(true);
    posted.done_ = true;
    return posted;
  }

  constexpr operator bool() const { return accepted_; }  // NOLINT(google-explicit-constructor)
  constexpr bool done() const { return done_; }

 private:
  bool accepted_;
  bool done_ = false;
};

// The longest message that a backend takes from a peer that is not authorised.
inline constexpr size_t kMaxFirstMessageBytes = 16 * 1024;

class Endpoint;

enum class EventKind : uint8_t {
  kAccepted,   // a peer connected; `accepted` is the new endpoint, not yet authorised
  kConnected,  // the endpoint that Connect returned is up
  kDown,  // the endpoint is finished; this is its last event. On an accepted endpoint it also means
          // that no byte of that peer can be written through it any more.
  kMessage,     // `message` was received; it stays valid until the next Poll
  kImmediate,   // `immediate` was received on `rail`; the bytes of that write are visible
  kCompletion,  // op `id` has ended with `status`; the backend no longer touches its local memory.
                // A write has left its source (kCopied: and is visible); the bytes of a read are in
                // local memory.
  kFenced,      // answers Fence: `id` is the scope's transfer, `rail` is its rail
  kRailDown,  // connecting side: `rail` is unusable, `status` says why. Every op that was accepted
              // on it has completed before this event, failed ones with an error
  kRailUp,    // connecting side: `rail` is usable, for the first time or again
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

// One rail of an endpoint, as it is now.
struct RailInfo {
  // Connecting side: usable. A rail that is not up at kConnected stays out of use until its
  // kRailUp.
  bool up = true;
  double bytes_per_second = 0;  // nominal; 0: not known
  std::string name{};           // for a person, e.g. "mlx5_0:1 → mlx5_2:1"
  Duration round_trip{};        // of the probe that opened the rail; 0: not known
};

struct EndpointInfo {
  std::string path{};  // for a person, e.g. "10.0.0.2:7471, 2 streams"
  // Connecting side: their number never changes from kConnected on.
  std::vector<RailInfo> rails{};
};

// What a Fence makes quiet: one transfer on every rail, or every transfer on one rail. Exactly one
// of the two is set.
struct FenceScope {
  static constexpr uint64_t kEveryTransfer = 0;
  static constexpr uint32_t kEveryRail = UINT32_MAX;

  uint64_t transfer = kEveryTransfer;
  uint32_t rail = kEveryRail;

  bool operator==(const FenceScope&) const = default;
};

// One connection to one peer. If Capabilities::rails_fail_alone, single rails may go down while the
// endpoint lives: kRailDown takes a rail out of use, the initiator's agent discards what went over
// it (docs/architecture.md, "A rail fails"), and ReopenRail lets the backend build the rail again.
// An endpoint whose last rail is down stays up as long as messages pass; its transfers wait. The
// agent destroys an endpoint outside of Poll, and only after kDown.
class Endpoint {
 public:
  virtual ~Endpoint() = default;

  // Not for every op: the answer is made by each call.
  virtual EndpointInfo Describe() const = 0;

  // Accepted endpoints only. Before this call the backend neither writes nor reads memory for the
  // peer, which may be anybody, and a message of the peer beyond kMaxFirstMessageBytes ends the
  // endpoint.
  virtual void Authorize() = 0;

  // False: no space now, which is the back-pressure; try again after the next Poll. Never blocks.
  // An accepted op completes exactly once, also after shutdown and loss: by an event of Poll,
  // unless the result says that it is done. Copies at most kInlineCopyBytes inline. Accepts nothing
  // before kConnected, after kDown, or after Shutdown, and nothing on a rail that is down. An op
  // that can never be carried out is accepted, and completes with an error that says why; no byte
  // moves. Such an op names no rail or no transfer, has more bytes or pieces than the capabilities
  // allow, or is posted on the accepting side. An op that leaves the target's region, or lacks a
  // right to it, moves nothing of the run that is not allowed, and its immediate is not reported.
  // It completes with an error, unless its end was reported when the write had left its source. The
  // connection may end for it, or its rail, with the reason.
  virtual Posted Post(const Op& op) = 0;

  // Copies `message`, and hands it to the transport within the call if the transport has space: a
  // Poll of this side may be long in coming. False: no space now; try again after the next Poll. A
  // message that was accepted arrives, or kDown follows.
  virtual bool Send(std::span<const std::byte> message) = 0;

  // Makes `scope` quiet on this endpoint and answers kFenced exactly once, unless kDown comes
  // first.
  // A transfer, connecting side: ops of the transfer that have not begun complete as cancelled; the
  // others stop as soon as possible, and their source is not read after that.
  // A transfer, accepting side: from kFenced on no byte of the transfer is written, and no byte and
  // no immediate of it is on the way. The connecting side is fenced too, before or after: there
  // Fence sends a marker over each rail, behind the transfer's last write, and the accepting side
  // waits for the markers. Until then it may drop what comes of the transfer, and end such ops as
  // cancelled. With kCopied the connecting side's kFenced says that nothing is written any more,
  // and the accepting side may answer at once. A rail, accepting side, if rails_fail_alone:
  // everything that was posted on the rail before the peer's kRailDown. kFenced means that no such
  // write can become visible any more, and that Poll has reported every immediate of them. The
  // agent does not ask again before that answer.
  virtual void Fence(FenceScope scope) = 0;

  // Connecting side: moving a byte between `local` and `remote` on `rail` costs 1 + this value,
  // relative to a rail whose NICs are near both. This is a preference: the agent takes a far rail
  // when the near ones are loaded or down.
  virtual uint32_t rail_distance(uint32_t /*rail*/, const Registration& /*local*/,
                                 const RemoteKey& /*remote*/) const {
    return 0;
  }

  // Connecting side: called once after each kRailDown, when the target's fence of the rail has
  // completed. The backend must not rebuild the rail before this call, so that a fence never meets
  // a rebuilt rail. It rebuilds in its own time (back-off, probe) and reports kRailUp.
  virtual void ReopenRail(uint32_t /*rail*/) {}

  // Starts closing: every op ends, and kDown follows once the endpoint is closed. Messages that
  // were accepted before still go out if the peer takes them, for a bounded time: the agent sends
  // its refusal and shuts down at once.
  virtual void Shutdown(absl::Status why) = 0;

  // Connecting side: while the result exists, copies that the backend does not know of may move
  // bytes of the peer's regions, and so neither side's kDown comes. Null: the endpoint closes
  // already, or does not offer this. It may outlive the endpoint.
  virtual std::shared_ptr<CopyHold> HoldOpen() { return nullptr; }

  // Makes `region` usable on this endpoint. `key` is the peer's Registration::key for this backend.
  // Unavailable: not yet; the agent asks again. Any other error is final.
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

// What a backend is. Name, capabilities and wait_fd are constant, and any thread may read them; the
// rest changes only within Poll.
struct BackendInfo {
  std::string name{};
  Capabilities capabilities{};
  // What a peer needs to connect. Opaque; the agent puts it into its metadata.
  std::string address{};
  // Where peers connect, as "host:port" with the real port; empty if that has no meaning here.
  std::string listen_address{};
  // The devices that it uses, one line each for a person, e.g. "mlx5_0:1, 100 Gb/s"; may be empty.
  std::vector<std::string> devices{};
  // For epoll; readable when Poll has something to do.
  int wait_fd = -1;
};

// How far one Poll looks for input.
enum class Input : uint8_t {
  kInMemory,  // no system call that asks for input: the caller knows that wait_fd is not readable,
              // or soon polls kAll. What waits to be sent is sent all the same.
  kLikely,    // at most one such call, where input most likely has come; other input shows on
              // wait_fd
  kAll,
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual const BackendInfo& Describe() const = 0;
  std::string_view name() const { return Describe().name; }
  const Capabilities& capabilities() const { return Describe().capabilities; }

  // Whether connecting to a peer can be tried, judged from its address and host alone; the Status
  // says why not. FailedPrecondition: this backend is meant for such a peer but cannot reach it, so
  // that using another backend instead deserves a warning.
  virtual absl::Status Reachable(std::string_view address, const HostIdentity& host) const = 0;

  // Starts connecting; kConnected, or kDown with the reason, follows. The agent gives up with
  // Shutdown.
  virtual absl::StatusOr<std::unique_ptr<Endpoint>> Connect(std::string_view address,
                                                            const HostIdentity& host) = 0;

  // Makes a local region accessible to peers; the result lives until the region is deregistered.
  // Called on any thread, concurrently with every other call: a device pins large memory for
  // hundreds of milliseconds. No peer names the region before the call has returned.
  virtual absl::StatusOr<std::unique_ptr<Registration>> Register(const LocalRegion& region) = 0;

  // Makes progress for a bounded time and reports up to out.size() events.
  virtual size_t Poll(std::span<Event> out, Input input) = 0;

  // Called before the agent sleeps on wait_fd. False: there is work that wait_fd would not show, so
  // call Poll again instead of sleeping. Poll does that work whatever its `input`; otherwise the
  // agent would neither sleep nor get on.
  virtual bool Arm() = 0;
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

// Every backend that kvxfer is made for, best first, whether it is here or not; then those that are
// only built in.
std::vector<std::string> KnownBackendNames();

}  // namespace kvxfer

#endif  // KVXFER_BACKEND_H_
