// The agent: registers memory, knows peers, moves blocks, tells and is told.
//
// Thread-safety: every method may be called from any thread at any time, except that the
// destructor must be the last call (but for those of callbacks that it runs). Several agents in one
// process are independent.
// Errors: public functions never abort and never throw; each Status names what, whom and the
// remedy. Fork: a forked child's calls on the parent's agents are refused (FailedPrecondition), and
// those that return no Status do nothing.
// Details of who drives progress: docs/threading.md; of the guarantees G1 to G8:
// docs/architecture.md.
//
// Example:
//   auto agent = kvxfer::Agent::Create({.name = "prefill-0"});
//   auto region = (*agent)->RegisterMemory({.data = cache, .bytes = bytes}, Access::kRemoteRead);
//   auto peer = (*agent)->AddPeer(metadata_of_decode);
//   auto transfer = (*agent)->Write(*peer, blocks, {.notification = "request 7"});
//   absl::Status done = transfer->Wait(std::chrono::seconds(5));

#ifndef KVXFER_AGENT_H_
#define KVXFER_AGENT_H_

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/kv_cache.h"
#include "kvxfer/kv_layout.h"
#include "kvxfer/memory.h"
#include "kvxfer/notification.h"
#include "kvxfer/options.h"
#include "kvxfer/peer.h"
#include "kvxfer/transfer.h"
#include "kvxfer/types.h"

namespace kvxfer {

namespace internal {
class AgentFactory;
}

// What Quiesce asks about: inbound transfers of `peer` (empty: of all) that touch one of `regions`
// (empty: any) and began before the call.
struct QuiesceScope {
  std::string peer{};
  std::vector<RegionId> regions{};
};

// quiet: no byte of what was asked about can land any more. Else quarantined: `token` names what
// is still open.
struct QuiesceResult {
  bool quiet = false;
  uint64_t token = 0;     // 0 when quiet
  std::string pending{};  // whom it waits for, for a person
};

class Agent {
 public:
  static absl::StatusOr<std::unique_ptr<Agent>> Create(const AgentOptions& options);

  // Ends every transfer as cancelled, closes every connection, runs the callbacks that are due, and
  // joins the threads. Inside a callback too: the others that are due run within it, and the
  // dispatcher thread ends after it. What a callback still posts meanwhile ends as cancelled or is
  // refused (FailedPrecondition).
  // Afterwards registered memory may be unmapped without DeregisterMemory. One exception: a process
  // of this host that uses shm and does not answer within 2 s (it is stopped) may copy into the
  // memory's addresses when it goes on; a warning is logged. DeregisterMemory says so beforehand.
  ~Agent();
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  const std::string& name() const;
  Incarnation incarnation() const;
  // Where the tcp backend listens, "host:port" with the real port; empty without tcp.
  std::string listen_address() const;

  // --- Memory -------------------------------------------------------------------------------
  // Peers learn of a region through metadata taken after this call. Overlapping registrations are
  // allowed. The memory must outlive its registration, that is until DeregisterMemory has returned
  // OK or the agent is destroyed: declare it before the agent. InvalidArgument: null or empty span,
  // unsupported kind; ResourceExhausted.
  absl::StatusOr<RegionId> RegisterMemory(const MemorySpan& span, Access access);
  // The same for many at once, all of them or none, which costs a fraction of as many calls. An
  // agent has at most 262,144 regions (ResourceExhausted).
  absl::StatusOr<std::vector<RegionId>> RegisterMemory(std::span<const MemorySpan> spans,
                                                       Access access);

  // Refuses new remote operations on the region, waits up to `timeout` until no transfer, local or
  // remote, can touch it, and forgets it. NotFound: unknown or already deregistered.
  // DeadlineExceeded: still in use; the region stays registered and its memory must not be freed;
  // call again. FailedPrecondition: from a callback, while another call deregisters the region, or
  // a KV cache lies in it.
  absl::Status DeregisterMemory(RegionId region, Duration timeout = std::chrono::seconds(5));
  // The same for many at once; peers are asked for all of them together. Where the call is refused,
  // none is deregistered (InvalidArgument: one is named twice). DeadlineExceeded: those that are
  // still in use stay registered, and are put into `in_use`; the others are gone.
  absl::Status DeregisterMemory(std::span<const RegionId> regions, Duration timeout,
                                std::vector<RegionId>* in_use = nullptr);

  // --- Peers --------------------------------------------------------------------------------
  // What a peer must know to reach this agent and its regions: an opaque, versioned, checksummed
  // blob. Take it again after registering or deregistering memory.
  absl::StatusOr<std::string> Metadata() const;

  // Makes the agent of `metadata` known (or brings it up to date) and returns its name. No
  // connection is made before the first transfer. A new incarnation replaces the old, whose
  // transfers fail. InvalidArgument: not metadata, damaged, of oneself, advertises loopback from
  // another host; FailedPrecondition: no common version, or none of require_backends reaches it.
  absl::StatusOr<std::string> AddPeer(std::string_view metadata);

  // Forgets the peer. Its transfers end as cancelled, those in flight as by Cancel: when the peer
  // has let go of them, or AgentOptions::cancel_grace later and quarantined. Does not wait.
  // NotFound.
  absl::Status RemovePeer(std::string_view peer);

  absl::StatusOr<Explanation> Explain(std::string_view peer) const;

  // The next event about any peer, oldest first; empty when there is none. At most 1024 are
  // kept; the oldest is dropped first.
  std::optional<PeerEvent> PollPeerEvent();
  // Runs on the dispatcher thread, in place of PollPeerEvent. Empty: back to polling.
  void OnPeerEvent(std::function<void(const PeerEvent&)> callback);

  // --- Transfers ----------------------------------------------------------------------------
  // Local memory into the peer's. O(ids) work on the calling thread; never blocks on the network.
  // InvalidArgument: no blocks, unequal lists, index out of range, not inside one registered
  // region, duplicate or overlapping destination blocks, bad options; NotFound: unknown peer;
  // PermissionDenied: the region does not allow it; ResourceExhausted: too many queued transfers.
  absl::StatusOr<Transfer> Write(std::string_view peer, const PagedBlocks& blocks,
                                 const TransferOptions& options = {});
  absl::StatusOr<Transfer> Write(std::string_view peer, const DescriptorBlocks& blocks,
                                 const TransferOptions& options = {});
  // The peer's memory into local memory. A notification tells the peer that all bytes were read
  // and that it may use the source again.
  absl::StatusOr<Transfer> Read(std::string_view peer, const PagedBlocks& blocks,
                                const TransferOptions& options = {});
  absl::StatusOr<Transfer> Read(std::string_view peer, const DescriptorBlocks& blocks,
                                const TransferOptions& options = {});
  // A notification alone; options.notification is ignored.
  absl::StatusOr<Transfer> Notify(std::string_view peer, std::string payload,
                                  const TransferOptions& options = {});

  // --- KV caches ----------------------------------------------------------------------------
  // Makes tensors, which begin at these addresses, one KV cache that peers know by name and layout:
  // layout.tensors() of them, or as many for each layer of the shard, layer by layer. Each lies
  // within one registered region. Peers learn of it through metadata taken after this call.
  // InvalidArgument: a bad name, tensors that are not those of the layout, overlap or lie in no
  // region; AlreadyExists: the agent has a cache of this name; ResourceExhausted: kMaxKvCaches.
  absl::Status RegisterKvCache(std::string_view name, const KvLayout& layout,
                               std::span<const uint64_t> tensors);
  // From now on it takes no part in new transfers of this agent, requests that are not whole are
  // given up, and its regions can be deregistered. NotFound.
  absl::Status DeregisterKvCache(std::string_view name);

  // What of the request this worker has and the group needs, into the caches of the group, as one
  // transfer: done when all of it has arrived at every rank. It ends only when every part of it has
  // ended; where one fails or is cancelled the others are cancelled, and the end is that of the
  // first. FailedPrecondition: a rank does not take what was written as part of the request (says
  // why: it was given up, is complete, has other blocks, ...). Done at once where other workers of
  // this instance have all that the group needs. InvalidArgument: the group is not every rank of
  // one instance of this model, each once (says which rank, and which field differs); ids out of
  // range, twice at the target, or too few; layers that do not exist; NotFound: an unknown peer, or
  // a cache that this agent or a rank has not; else as Write.
  absl::StatusOr<Transfer> WriteBlocks(std::span<const std::string> group, const KvBlocks& blocks,
                                       const KvOptions& options = {});
  // What this worker needs of the request, out of the caches of the group.
  absl::StatusOr<Transfer> ReadBlocks(std::span<const std::string> group, const KvBlocks& blocks,
                                      const KvOptions& options = {});

  // Blocks until the first `layers` layers that this worker has of the cache are there, with all
  // their heads, for a request that peers write. DeadlineExceeded after `timeout`, with what is
  // missing; Aborted: the request was given up; NotFound: no such cache; InvalidArgument: more
  // layers than it has; FailedPrecondition from a callback; Cancelled: the agent was closed.
  absl::Status WaitLayers(std::string_view cache, std::string_view request, uint32_t layers,
                          Duration timeout);
  // Gives up a request that peers write, begun or not: what of it still comes is refused, and it is
  // never told as whole. That no byte of it lands any more is for Quiesce to say. NotFound: no such
  // cache; FailedPrecondition: it is whole, and told, or will be.
  absl::Status DropRequest(std::string_view cache, std::string_view request);

  // Holds blocks of a cache for peers that will fetch them by ReadBlocks, for so long unless
  // all have before; then it expires, but not within a fetch that has begun. The blocks may be used
  // for other things when PollKvEvent has told of its end, not before. A name is for one attempt,
  // and short: at most kMaxNameBytes. `contents` says what the blocks hold, such as a hash of the
  // prompt: a reader must say the same (KvOptions::lease_contents), and does not need it to know
  // the lease by. At most kMaxNameBytes; no log shows it. Readers that wait for the lease
  // (KvOptions::lease_wait) are answered. InvalidArgument: a bad name, no ids or ids out of range;
  // NotFound: no such cache; AlreadyExists: the name was used before; ResourceExhausted: too many
  // leases are held.
  absl::Status LeaseBlocks(std::string_view cache, std::string_view lease,
                           std::span<const uint32_t> ids, Duration hold,
                           std::string_view contents = {});
  // Holds it from now on for so long, where that is longer. NotFound: never granted;
  // FailedPrecondition: it has ended, or is about to, and why.
  absl::Status RenewLease(std::string_view lease, Duration hold);
  // Lets go: no further fetch begins, and the lease ends when those that have begun have. As
  // RenewLease.
  absl::Status ReleaseLease(std::string_view lease);
  // The next lease that has ended or request that was lost (not by DropRequest or
  // DeregisterKvCache), oldest first; empty when there is none. No end of a lease is dropped; of
  // lost requests the last 65,536 are kept.
  std::optional<KvEvent> PollKvEvent();
  absl::StatusOr<KvCounts> CountKv() const;

  // --- Being told ---------------------------------------------------------------------------
  // Looks, and makes progress once.
  std::optional<Notification> PollNotification();
  // DeadlineExceeded after `timeout`; FailedPrecondition from a callback.
  absl::StatusOr<Notification> WaitNotification(Duration timeout);
  // An eventfd, readable while notifications wait; for epoll and asyncio loops. Owned by the
  // agent. Poll until empty after it fires; do not read from it. -1 in a forked child.
  int notification_fd() const;
  // Runs on the dispatcher thread, in order, in place of the calls above. Empty: back to them.
  void OnNotification(std::function<void(Notification)> callback);

  // --- Quiet --------------------------------------------------------------------------------
  // Waits up to `timeout` until every transfer in `scope` has ended at both sides.
  // FailedPrecondition from a callback.
  absl::StatusOr<QuiesceResult> Quiesce(const QuiesceScope& scope, Duration timeout);
  // True once what `token` named is quiet. NotFound: unknown token (or already answered true).
  absl::StatusOr<bool> IsQuiet(uint64_t token);

  // --- The end ------------------------------------------------------------------------------
  // Takes no new work from now on: transfers, notifications, leases and registrations are refused
  // (FailedPrecondition); leases can still be renewed. Waits up to `timeout` until what was
  // promised is kept: every lease has ended, every transfer of this agent has, and every one of a
  // peer that was under way. Then the agent may be destroyed. DeadlineExceeded, with what is left:
  // call again, or destroy it all the same. FailedPrecondition from a callback; Cancelled: the
  // agent was closed.
  absl::Status Drain(Duration timeout);

 private:
  friend class internal::AgentFactory;
  class Impl;
  explicit Agent(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_H_
