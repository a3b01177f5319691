// The transfers to one peer, from the moment they are posted until nothing of them moves bytes: it
// tells the parts that know of them what happens, and carries out what follows. What becomes of a
// transfer is SendTracker's word; Admission begins it, Sender posts its slices, Stager moves what
// no path reaches, and QuiesceReplies answers what the target asks of it.
//
// Of a transfer that has ended as quarantined its quarantine is left: it ends with the target's
// word, with the next connection's first words, or with the peer's proven death.
//
// Thread-safety: none; owned by the engine. Split by event: transfer_set.cc (posting, time, the
// session), transfer_set_words.cc (what the target says), transfer_set_end.cc (completions, ends,
// quiet).

#ifndef KVXFER_AGENT_SESSION_TRANSFER_SET_H_
#define KVXFER_AGENT_SESSION_TRANSFER_SET_H_

#include <cstdint>
#include <unordered_set>
#include <vector>

#include "absl/status/status.h"
#include "src/agent/engine/runtime.h"
#include "src/agent/engine/transfer_record.h"
#include "src/agent/session/admission.h"
#include "src/agent/session/key_closer.h"
#include "src/agent/session/outbound.h"
#include "src/agent/session/path_set.h"
#include "src/agent/session/posted_book.h"
#include "src/agent/session/quiesce_replies.h"
#include "src/agent/session/remote_regions.h"
#include "src/agent/session/send_queue.h"
#include "src/agent/session/sender.h"
#include "src/agent/staging/stager.h"
#include "src/core/protocol/metadata.h"
#include "src/core/protocol/send_tracker.h"
#include "src/core/protocol/session.h"

namespace kvxfer {

class TransferSet final : private Admission::User, private StagerUser {
 public:
  // All of them outlive the set. `peer` and `regions` are the peer's; `tracker` has the transfers
  // of this set alone.
  struct Parts {
    Runtime* runtime = nullptr;
    const AgentMetadata* peer = nullptr;
    PathSet* paths = nullptr;
    RemoteRegions* regions = nullptr;
    Session* session = nullptr;
    SendTracker* tracker = nullptr;
    ReadyList::Member* ready = nullptr;  // of who calls Post
  };
  explicit TransferSet(const Parts& parts);

  // `refused`: not OK: it ends with this at once.
  void Submit(TransferPtr record, const absl::Status& refused);
  // The transfer `id` of this agent, if it is here and has not ended.
  void Cancel(uint64_t id, const absl::Status& why);
  // Ends those that have not begun.
  void EndQueued(SendQueue::Predicate which, TransferState state, const absl::Status& why);
  // Begins, and posts, what can be.
  void Post(Time now);
  // What the stager has to say, and what follows from it.
  void TellStagedEnds();
  // After Post, if that is called at all.
  void GiveBackRecalled() { stager_.GiveBackRecalled(); }
  // Carries out what the tracker wants done. Called at the end of every event.
  void Settle();
  void OnTimer(Time now);
  // `posts`: Post is called.
  Time NextTimer(bool posts) const;

  // --- links and their events ---
  // The session goes on, or begins, over `link`.
  void OnLinkUp(Link& link);
  void OnLinkLost(Link& link, const absl::Status& why);
  void OnCompletion(Link& link, uint64_t op, const absl::Status& status);
  // Its rails may lie between other ports now.
  void OnRailUp(const Link& link);
  // The target's frames, in order. An error: it broke the protocol.
  absl::Status OnNumbered(const ReliableChannel::Incoming& frame);

  // --- the session ---
  // A backend holds data for the next message over this connection; see Sender.
  Link* inline_link() const { return sender_.inline_link(); }
  void OnMessagesSent() { sender_.OnMessagesSent(); }
  // The target is not reached again: what has begun fails, and stays quarantined until it is.
  void Lose(const absl::Status& why);
  // A session has begun of which the target knows nothing.
  void OnNewSession();
  // Nothing of an earlier session can land any more.
  void OnQuiet();
  // Regions of the peer may be gone: drops the keys of those that are.
  void DropDeadKeys() { keys_.DropDeadKeys(); }

  // --- what there is ---
  const PostedBook::Count& count() const { return posted_.count(); }
  // Some have begun, and are not forgotten.
  bool active() const { return !outbounds_.empty(); }
  // What a session before left waits until nothing of it can land any more.
  bool orphans() const { return !quarantined_.empty() || stager_.unsettled(); }
  // Some of either wait for the peer.
  bool waits() const { return active() || orphans(); }
  bool queued() const { return !queue_.empty(); }
  // Post has left something that may begin, or be posted, without a word to say so.
  bool unposted() const { return queued() || sender_.sends() || stager_.begins(); }
  // This side's GPUs are copying for one.
  bool copies() const { return stager_.moving(); }
  // Takes over the quarantines of `before`, of the same incarnation, which is finished.
  void Inherit(const TransferSet& before);

 private:
  size_t TakeDone();
  absl::Status OnQuiesce(const QuiesceFrame& frame);

  // The stager's children, and its ops.
  absl::Status BeginChild(const TransferPtr& child, Link* link) override;
  void EndChild(uint64_t child, const absl::Status& why, Time give_up) override;
  void OnMoved() override { parts_.ready->Mark(); }
  void OnStaged(uint64_t op, const absl::Status& status) override;
  void OnSettled(const TransferPtr& whole) override;

  // transfer_set_end.cc
  void Carry(const SendTracker::Action& action);
  void Stop(Outbound& outbound);
  void Publish(Outbound& outbound, const SendTracker::Action& end);
  void FailQueued(const TransferPtr& record, TransferState state, absl::Status status);
  void OnRefused(const TransferPtr& record, absl::Status why) override;
  void ExpireQueued(const std::unordered_set<uint64_t>& ids);
  void Forget(Outbound& outbound);
  void ClearQuarantine(const TransferPtr& record, bool arrived);

  const Parts parts_;
  Runtime* const runtime_;
  SendTracker* const tracker_;
  PostedBook posted_;
  SendQueue queue_;
  OutboundList outbounds_;
  Stager stager_;
  Admission admission_;
  Sender sender_;
  KeyCloser keys_;
  QuiesceReplies replies_;
  std::vector<SendTracker::Action> actions_;  // that Settle carries out
  // Transfers whose quiet was not learnt before their session ended.
  std::vector<TransferPtr> quarantined_;
  std::vector<uint64_t> done_;  // ops that were done when they were posted
  bool waits_key_ = false;      // a region's key is not here yet
  bool goes_on_ = false;        // Post has stopped, so that others have their turn
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_SESSION_TRANSFER_SET_H_
