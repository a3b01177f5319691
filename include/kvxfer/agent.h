// An agent registers memory, knows its peers, moves blocks to and from them, and reports
// notifications and events to its application. There is one agent per worker.
//
// Thread-safety: every method may be called from any thread at any time. The destructor must be the
// last call; only the callbacks that it runs may still call the agent. Several agents in one
// process are independent.
// Errors: public functions neither abort nor throw. Each Status names what failed, for which peer
// or region, and how to fix it.
// Fork: in a forked child, calls on the parent's agents return FailedPrecondition, and those that
// return no Status do nothing.
// docs/threading.md describes which thread drives progress; docs/architecture.md describes the
// guarantees G1 to G8.
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
#include "kvxfer/event.h"
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

// The inbound transfers that Quiesce waits for: those of `peer` (empty: of every peer) that touch
// one of `regions` (empty: any region) and began before the call.
struct QuiesceScope {
  std::string peer{};
  std::vector<RegionId> regions{};
};

// quiet: no late byte of the transfers in the scope can be written to this agent's memory.
// Otherwise they are quarantined, and IsQuiet(token) says when that is over.
struct QuiesceResult {
  bool quiet = false;
  QuiesceToken token = QuiesceToken::kNone;  // kNone when quiet
  // The peers that have not answered, and of those that are suspect, for how long they have been
  // silent; as text for a person.
  std::string pending{};
};

class Agent {
 public:
  // InvalidArgument: bad options, or a backend that is set up wrongly. The error of a backend that
  // `options.backends` names and that is not usable here (Unavailable, PermissionDenied,
  // Unimplemented) is returned too; a default backend that is not usable is left out.
  static absl::StatusOr<std::unique_ptr<Agent>> Create(const AgentOptions& options);

  // Ends every transfer as cancelled, closes every connection, runs the callbacks that are due, and
  // joins the agent's threads. May be called inside a callback: the other callbacks that are due
  // then run within the destructor, and the dispatcher thread ends once that callback has returned.
  // A transfer that a callback posts meanwhile ends as cancelled or is refused
  // (FailedPrecondition).
  //
  // After the destructor, registered memory may be unmapped without DeregisterMemory, with one
  // exception. A process on this host that uses shm and does not answer within 2 s (because it is
  // stopped) may still copy into these addresses when it continues; the agent logs a warning. To
  // learn of that case beforehand, call DeregisterMemory: it returns kTimedOut.
  ~Agent();
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  const std::string& name() const;
  Incarnation incarnation() const;
  // The address where the tcp backend listens, as "host:port" with the real port; empty without
  // tcp.
  std::string listen_address() const;

  // --- Memory -------------------------------------------------------------------------------
  // Registers memory for transfers. Peers learn of the region from metadata taken after this call.
  // Registrations may overlap. The memory must stay mapped until DeregisterMemory has returned OK
  // or the agent has been destroyed, so declare it before the agent.
  // InvalidArgument: a null or empty span, or an unsupported memory kind; ResourceExhausted.
  absl::StatusOr<RegionId> RegisterMemory(const MemorySpan& span, Access access);
  // The same for many spans at once: either all are registered or none. One call costs a fraction
  // of many calls. ResourceExhausted: the agent would have more than 262,144 regions.
  absl::StatusOr<std::vector<RegionId>> RegisterMemory(std::span<const MemorySpan> spans,
                                                       Access access);

  // Refuses new remote operations on the region, waits up to `timeout` until no transfer, local or
  // remote, can touch it, and then forgets it.
  // NotFound: unknown, or already deregistered. kTimedOut: still in use; the region stays
  // registered, its memory must not be freed, and the call may be repeated. FailedPrecondition:
  // called from a callback, another call is deregistering the region, or a KV cache lies in it.
  absl::Status DeregisterMemory(RegionId region, Duration timeout = std::chrono::seconds(5));
  // The same for many regions at once; each peer is asked once for all of them. If the call is
  // refused, no region is deregistered (InvalidArgument: a region is named twice).
  // kTimedOut: the regions that are still in use stay registered and are stored in `in_use`;
  // the others are deregistered.
  absl::Status DeregisterMemory(std::span<const RegionId> regions, Duration timeout,
                                std::vector<RegionId>* in_use = nullptr);

  // --- Peers --------------------------------------------------------------------------------
  // What a peer needs to reach this agent and its regions: an opaque, versioned, checksummed blob.
  // Take it again after memory or KV caches have been registered or deregistered.
  absl::StatusOr<std::string> Metadata() const;

  // Adds the agent that `metadata` describes, or updates it, and returns its name. Metadata of the
  // same incarnation that is older than what the agent has changes nothing. No connection is made
  // before the first transfer. A new incarnation replaces the old one, whose transfers fail.
  // InvalidArgument: not metadata, damaged metadata, this agent's own metadata or name, or metadata
  // from another host that advertises a loopback address. FailedPrecondition: no common protocol
  // version, or none of require_backends reaches the peer.
  absl::StatusOr<std::string> AddPeer(std::string_view metadata);

  // Forgets the peer, without waiting. Transfers to it end as cancelled. Those in flight end as
  // after Transfer::Cancel: once the peer no longer touches their memory, or quarantined after
  // AgentOptions::cancel_grace. The connections that the peer made to this agent are closed too,
  // and the transfers that it has in progress here fail; Quiesce says when no late byte of them can
  // be written. Notifications that have arrived stay in the queue. This does not lock the peer out:
  // it may connect again, as a new session. NotFound: no metadata of such a peer was added, and
  // none has connected.
  absl::Status RemovePeer(std::string_view peer);

  // Which backend and rails the agent uses for this peer, and why it does not use the others.
  // NotFound: no such peer.
  absl::StatusOr<Explanation> Explain(std::string_view peer) const;

  // The regions that the peer offers: those in its metadata, as AddPeer was given it last, that
  // grant some access. Ordered by address, then by id. Asks nobody: a region that the peer has
  // registered since is missing, and a transfer to one that it has deregistered since fails with
  // FailedPrecondition. Fresh metadata changes the answer. NotFound: no such peer.
  absl::StatusOr<std::vector<PeerRegion>> Regions(std::string_view peer) const;

  // Returns the oldest event about any peer, or nothing if there is none: PollEvents of one kPeer.
  // The agent keeps at most 1024 of them and drops the oldest first.
  std::optional<PeerEvent> PollPeerEvent();
  // Calls `callback` on the dispatcher thread for each event about a peer, in place of queueing it.
  // An empty callback restores the queue.
  void OnPeerEvent(std::function<void(const PeerEvent&)> callback);

  // --- Transfers ----------------------------------------------------------------------------
  // Write copies local blocks into the peer's memory. The call does O(ids) work on the calling
  // thread and never blocks on the network. TransferOptions::notification reaches the peer's
  // application after every byte is visible there.
  // InvalidArgument: no blocks; lists of unequal length; an index out of range; a block that is not
  // inside one registered region; duplicate or overlapping destination blocks; bad options.
  // NotFound: unknown peer. PermissionDenied: the region does not allow the access.
  // ResourceExhausted: 65,536 transfers to the peer have not ended yet.
  absl::StatusOr<Transfer> Write(std::string_view peer, const PagedBlocks& blocks,
                                 const TransferOptions& options = {});
  absl::StatusOr<Transfer> Write(std::string_view peer, const DescriptorBlocks& blocks,
                                 const TransferOptions& options = {});
  // Read copies the peer's blocks into local memory. A notification tells the peer's application
  // that all bytes were read and that it may reuse the source. Errors as for Write.
  absl::StatusOr<Transfer> Read(std::string_view peer, const PagedBlocks& blocks,
                                const TransferOptions& options = {});
  absl::StatusOr<Transfer> Read(std::string_view peer, const DescriptorBlocks& blocks,
                                const TransferOptions& options = {});
  // Sends a notification without data; options.notification is ignored.
  absl::StatusOr<Transfer> Notify(std::string_view peer, std::string payload,
                                  const TransferOptions& options = {});

  // --- KV caches ----------------------------------------------------------------------------
  // Registers tensors as one KV cache that peers know by its name and layout. `tensors` holds the
  // tensors' addresses in bytes: layout.tensors() of them, or that many for each layer of the
  // shard, layer by layer. Each tensor lies within one registered region. Peers learn of the cache
  // from metadata taken after this call.
  // InvalidArgument: a bad name; tensors that do not match the layout, overlap, or lie in no
  // registered region. AlreadyExists: the agent has a cache of this name. ResourceExhausted: the
  // agent has kMaxKvCaches.
  absl::Status RegisterKvCache(const CacheName& name, const KvLayout& layout,
                               std::span<const uint64_t> tensors);
  // Removes the cache from the agent. New transfers of this agent cannot use it, requests that are
  // not complete are given up, and its regions can be deregistered. NotFound: no such cache.
  absl::Status DeregisterKvCache(const CacheName& name);

  // Writes the part of a request that this worker has and the group needs into the caches of the
  // group, as one transfer. The transfer is done when all of this part has arrived at every rank.
  // It ends only after the writes to all ranks have ended: if one fails or is cancelled, the others
  // are cancelled, and the transfer ends with the status of the first. If other workers of this
  // instance send all that the group needs, the transfer is done at once.
  // The transfer ends with FailedPrecondition if a rank refuses the data as part of the request;
  // the message says why (the request was given up, is complete, has other blocks, ...).
  // InvalidArgument: the group is not every rank of one instance of this model, each named once
  // (the message names the rank and the field that differs); ids that are out of range, occur twice
  // at the target, or are too few; layers that do not exist. NotFound: an unknown peer, or a cache
  // that this agent or a rank does not have. Other errors as for Write.
  absl::StatusOr<Transfer> WriteBlocks(std::span<const std::string> group, const KvBlocks& blocks,
                                       const KvOptions& options = {});
  // Prepares to write these blocks layer by layer: does what a call of WriteBlocks does before it
  // posts, once for all layers, and posts nothing. `blocks.first_layer` and `blocks.layers` bound
  // the layers that may be written. Errors as for WriteBlocks.
  absl::StatusOr<PreparedBlocks> PrepareBlocks(std::span<const std::string> group,
                                               const KvBlocks& blocks);
  // Writes `layers` layers, from `first_layer` of the model on, of prepared blocks: the same as
  // WriteBlocks of these layers, at a fraction of the cost. The call hands the transfer to the
  // thread that makes progress, and does not begin to send by itself; it does so only if no thread
  // drives and none sleeps in the agent.
  // Errors as for WriteBlocks, and: InvalidArgument: blocks of another agent, or layers that were
  // not prepared. NotFound: a peer was removed, or a cache was deregistered. FailedPrecondition: a
  // peer was replaced by a new incarnation, or a cache was registered anew; the message names it.
  // In these cases nothing is written: prepare the blocks again. A change that this agent has not
  // heard of fails the transfer, as with WriteBlocks.
  absl::StatusOr<Transfer> WriteLayers(const PreparedBlocks& blocks, uint32_t first_layer,
                                       uint32_t layers, const KvOptions& options = {});
  // Reads the part of a request that this worker needs out of the caches of the group.
  absl::StatusOr<Transfer> ReadBlocks(std::span<const std::string> group, const KvBlocks& blocks,
                                      const KvOptions& options = {});

  // Blocks until the first `layers` layers that this worker has of the cache have arrived, with all
  // their heads, for a request that peers write.
  // kTimedOut: the message says what is missing, and which peers are suspect. Aborted: the request
  // was given up. NotFound: no such cache. InvalidArgument: more layers than the cache has.
  // FailedPrecondition: called from a callback. Cancelled: the agent was closed.
  absl::Status WaitLayers(const CacheName& cache, const RequestName& request, uint32_t layers,
                          Duration timeout);
  // Gives up a request that peers write, whether or not it has begun. What still arrives of it is
  // refused, and the application never gets a notification for it. To learn when no byte of it can
  // be written any more, call Quiesce.
  // NotFound: no such cache. FailedPrecondition: the request is complete, and its notification was
  // or will be delivered.
  absl::Status DropRequest(const CacheName& cache, const RequestName& request);

  // Holds blocks of a cache for peers that will fetch them with ReadBlocks. The lease ends when all
  // readers have fetched the blocks, or after `hold`; it does not expire while a fetch under it is
  // in progress. The blocks may be reused once PollKvEvent has returned the end of the lease, not
  // before.
  // `lease` is a name for one attempt, of at most kMaxNameBytes. `contents`, of at most
  // kMaxNameBytes, says what the blocks hold, e.g. a hash of the prompt. A reader must name the
  // same contents (KvOptions::lease_contents); they are not part of the lease's name, and no log
  // shows them. Readers that already wait for this lease (KvOptions::lease_wait) are answered.
  // InvalidArgument: a bad name, no ids, or ids out of range. NotFound: no such cache.
  // AlreadyExists: the name was used before. ResourceExhausted: too many leases are held.
  absl::Status LeaseBlocks(const CacheName& cache, const LeaseName& lease,
                           std::span<const uint32_t> ids, Duration hold,
                           std::string_view contents = {});
  // Extends the lease until `hold` from now, if that is later than its present end. NotFound: never
  // granted. FailedPrecondition: it has ended or is about to; the message says why.
  absl::Status RenewLease(const LeaseName& lease, Duration hold);
  // Ends the lease early: no further fetch can begin, and the lease ends when the fetches in
  // progress have ended. Errors as for RenewLease.
  absl::Status ReleaseLease(const LeaseName& lease);
  // Ends the lease now, as released: when this returns the blocks may be reused. Fetches in
  // progress fail with KvLeaseRefusal::kEnded, even if they have read their last byte. Also for a
  // lease that was released before and waits for fetches. Errors as for RenewLease.
  absl::Status RevokeLease(const LeaseName& lease);
  // Returns the oldest event about a lease that has ended or a request that was lost (other than by
  // DropRequest or DeregisterKvCache), or nothing if there is none: PollEvents of one kKv. Ends of
  // leases are never dropped; of lost requests the agent keeps the last 65,536.
  std::optional<KvEvent> PollKvEvent();
  absl::StatusOr<KvCounts> CountKv() const;

  // --- Events -------------------------------------------------------------------------------
  // One queue holds everything that the agent tells its program, in the order in which it came:
  // notifications, ends of transfers, events about peers and about KV caches. An event goes to one
  // caller. What a program does not ask for stays in the queue, within the bounds that each kind
  // has; ends of transfers are there only if they were asked for (TransferOptions::user_word).
  //
  // Moves the oldest events of `kinds` to `events` and returns how many; makes progress once if
  // there is none. Never blocks. 0 in a forked child.
  size_t PollEvents(std::span<AgentEvent> events, AgentEventKinds kinds = AgentEventKinds::kAll);
  // Waits for the next event of `kinds`, drives progress meanwhile, and then takes what is there as
  // PollEvents does. kTimedOut: none within `timeout`. InvalidArgument: no room in `events`, or no
  // kind. FailedPrecondition: called from a callback. Cancelled: the agent was closed.
  absl::StatusOr<size_t> WaitEvents(std::span<AgentEvent> events, Duration timeout,
                                    AgentEventKinds kinds = AgentEventKinds::kAll);
  // An eventfd that is readable while an event of `kinds` waits, for epoll and asyncio loops; the
  // same one for the same kinds. The agent owns it and closes it in its destructor; a duplicate
  // (dup) is readable from then on. When it is readable, call PollEvents of these kinds until that
  // returns 0; do not read from the descriptor.
  // InvalidArgument: no kind. ResourceExhausted: no descriptors left; one is set aside when the
  // agent is created, so this cannot happen to the first call. FailedPrecondition: a forked child.
  absl::StatusOr<int> EventFd(AgentEventKinds kinds = AgentEventKinds::kAll);

  // The same for notifications alone. PollNotification is PollEvents of one kNotification,
  // WaitNotification is WaitEvents, and notification_fd is EventFd, or -1 if that fails.
  std::optional<Notification> PollNotification();
  absl::StatusOr<Notification> WaitNotification(Duration timeout);
  int notification_fd() const;
  // Calls `callback` on the dispatcher thread for each notification, in order, in place of queueing
  // it; those that are queued go to the callback too. An empty callback restores the queue.
  void OnNotification(std::function<void(Notification)> callback);

  // --- Quiet --------------------------------------------------------------------------------
  // Waits up to `timeout` until every transfer in `scope` has ended at both sides and no late byte
  // of it can be written. If `timeout` passes, that is no error: the result is not quiet, and has a
  // token. FailedPrecondition: called from a callback.
  absl::StatusOr<QuiesceResult> Quiesce(const QuiesceScope& scope, Duration timeout);
  // True once the transfers that `token` names are quiet. NotFound: unknown token, or one for which
  // true was already returned.
  absl::StatusOr<bool> IsQuiet(QuiesceToken token);

  // --- Drain --------------------------------------------------------------------------------
  // Refuses new work from now on: transfers, notifications, leases and registrations return
  // FailedPrecondition; leases can still be renewed. Then waits up to `timeout` until every lease
  // has ended, every transfer of this agent has ended, and every transfer of a peer that was in
  // progress has ended. After that the agent may be destroyed.
  // kTimedOut: the message says what is left; call again, or destroy the agent anyway.
  // FailedPrecondition: called from a callback. Cancelled: the agent was closed.
  absl::Status Drain(Duration timeout);

 private:
  friend class internal::AgentFactory;
  class Impl;
  explicit Agent(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_H_
