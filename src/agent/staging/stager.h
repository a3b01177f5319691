// Moves ops of one peer's transfers when the backend cannot reach one of the two memories: through
// buffers of pinned host memory (staging.h). Such an op takes up to three steps. The step over the
// wire is a transfer of its own, the *child*, between staging buffers or host memory. So it has
// everything that transfers have: rails that fail, aborts, quiet.
//
//   write   local region → own buffer (gather)      if the backend does not reach the local side
//           child: own buffer or local region → lent buffer or remote region
//           lent buffer → remote region (scatter), by the target, which answers
//                                                   if it does not reach the remote side
//   read    remote region → lent buffer, by the target; child; own buffer → local region
//
// Where this process's GPUs reach the lent buffers themselves (PeerStage), and both sides copy by
// GPUs, an op is *direct*: it has no own buffer and no child.
//
//   write   local region → lent buffer; lent buffer → remote region, by the target, which answers
//   read    remote region → lent buffer, by the target; lent buffer → local region
//
// *Own* buffers are this agent's; *lent* ones are the target's, which it has lent to this agent. A
// `buffer` is the index of a buffer.
//
// To its transfer a staged op is one that the initiator copies: once it completes, its bytes are
// visible. So a staged transfer has no lanes, and its OPEN, with the notification, follows the last
// op.
//
// Thread-safety: none; only the driver calls it.

#ifndef KVXFER_AGENT_STAGING_STAGER_H_
#define KVXFER_AGENT_STAGING_STAGER_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "kvxfer/backend.h"
#include "src/agent/engine/runtime.h"
#include "src/agent/engine/transfer_record.h"
#include "src/agent/session/outbound.h"
#include "src/agent/session/remote_regions.h"
#include "src/agent/staging/staging.h"
#include "src/core/protocol/reliable_channel.h"
#include "src/core/protocol/wire_format.h"

namespace kvxfer {

// The owner of the transfers: it begins and ends children, and learns what became of ops.
class StagerUser {
 public:
  virtual ~StagerUser() = default;
  // Begins a child over `link`. Unavailable: whether the peer's region is live is not known yet;
  // the peer's answer is on the way.
  virtual absl::Status BeginChild(const TransferPtr& child, Link* link) = 0;
  // Ends one, by `give_up` at the latest.
  virtual void EndChild(uint64_t child, const absl::Status& why, Time give_up) = 0;
  // A copy by this side's GPU is over: Begin or TellEnds follows.
  virtual void OnMoved() = 0;
  // An op that was posted here is over.
  virtual void OnStaged(uint64_t op, const absl::Status& status) = 0;
  // No op of `whole` moves bytes any more, though it was over for some of them; see Outstanding.
  virtual void OnSettled(const TransferPtr& whole) = 0;
};

class Stager final : private Staging::User {
 public:
  // The most pieces of one op.
  static constexpr size_t kMaxPieces = 2048;
  static_assert(kMaxPieces <= kMaxStageRuns);

  // All of them outlive the stager. `channel` carries the frames of the session; `regions` are the
  // peer's.
  Stager(StagerUser* user, Runtime* runtime, ReliableChannel* channel, const RemoteRegions* regions)
      : user_(user), runtime_(runtime), channel_(channel), regions_(regions) {}
  ~Stager() override;

  // Accepts op `op` of `outbound`. Its `blocks` name StagedMemory and StagedKey and must stay valid
  // until the op is over. False: no buffer is free; try again later. OnStaged follows.
  bool Post(Outbound& outbound, uint64_t op, const BlockRange& blocks);

  // Begins the children that are due. False: one waits for the peer's word on a region.
  bool Begin();
  bool begins() const { return !due_.empty(); }
  // Reports ops that are over to the user. Called outside of all other work, because a report may
  // end transfers.
  void TellEnds();
  bool has_ends() const { return !ended_.empty(); }
  // Returns the free buffers that the target has recalled; the others follow as soon as they are
  // free. Called after every op that waits has been offered: a target that is short of buffers
  // recalls them while it lends them, and a buffer that nobody used would only go round.
  void GiveBackRecalled();

  // Ends every op of `outbound` as soon as possible; its children end at `give_up` at the latest.
  void Cancel(const Outbound& outbound, const absl::Status& why, Time give_up);
  // Detaches from `outbound`, which ends now: for the transfer its ops are over. Returns how many.
  uint32_t Abandon(const Outbound& outbound);
  // True: ops that are over for `whole` may still move bytes. It stays quarantined until
  // StagerUser::OnSettled, which follows.
  bool Outstanding(const TransferPtr& whole) const { return outstanding_.contains(whole); }
  void ForEachOutstanding(absl::FunctionRef<void(const TransferPtr&)> visit) const {
    for (const auto& [whole, ops] : outstanding_) visit(whole);
  }

  // `lent_in_use`: the target may still send out of the lent buffer; OnChildQuiet follows.
  void OnChildEnd(uint64_t child, const internal::TransferRecord::End& end, bool lent_in_use);
  // Nothing of a child that had ended moves any more. `arrived`: all of its bytes are at the
  // target.
  void OnChildQuiet(uint64_t child, bool arrived);
  // Handle the target's frames. An error: the target broke the protocol.
  absl::Status OnLend(const StageLendFrame& frame);
  void OnRecall() { recalled_ = true; }
  absl::Status OnStaged(const StagedFrame& frame);
  // The session has ended: the target answers nothing more, and its lent buffers are void.
  void OnSessionEnd();
  // Nothing that earlier sessions left on the wire can be received from now on.
  void OnQuiet();

  // True: a transfer is quarantined because of its ops here.
  bool unsettled() const { return !outstanding_.empty(); }
  // True: this side's GPUs are copying for it.
  bool moving() const {
    return std::ranges::any_of(ops_,
                               [](const auto& op) { return op.second.step == Step::kMoving; });
  }

 private:
  // In order: a local GPU copy runs (kMoving), the child may begin (kDue), the child is active
  // (kChild), the target's StagedFrame is awaited (kAnswer).
  enum class Step : uint8_t { kMoving, kDue, kChild, kAnswer };
  struct StagedOp {
    uint64_t op = 0;
    Outbound* outbound = nullptr;  // null: abandoned
    TransferPtr whole{};
    Step step = Step::kDue;
    bool moves = false;    // local regions go through `own`
    bool answers = false;  // the target copies, and answers
    bool direct = false;
    bool told = false;  // of a write: the target knows what to copy
    std::optional<uint32_t> own{};
    std::optional<uint32_t> lent{};
    std::shared_ptr<CopyHold> hold{};  // in kMoving, if it is direct
    std::optional<absl::Status> answer{};
    absl::Status why{};  // not OK: the op must end with this
    BlockRange blocks{};
  };
  bool Direct(const StagedOp& op) const;
  void OpenStage(const StagedOp& op, Link& link) const;
  bool TakeBuffers(StagedOp& op);
  std::optional<uint32_t> TakeOwn();
  std::vector<uint64_t> ChildrenOf(const Outbound& outbound) const;
  void Ask();
  // Where a direct op's GPU copies to or from. An error: the connection ends.
  absl::StatusOr<Staging::Place> DirectPlace(StagedOp& op) const;
  void StartMove(uint64_t child, StagedOp& op);
  void OnMovedToLent(uint64_t child, StagedOp& op);
  void PushStage(uint64_t child, const StagedOp& op, StageWhen when);
  absl::Status StartChild(uint64_t child, StagedOp& op);
  void OnMoved(uint64_t child, const absl::Status& status) override;
  // What is left of an op that is over: nothing; the lent buffer, out of which the target may still
  // send; or bytes of it may still be received.
  enum class Left : uint8_t { kNothing, kLent, kBytes };
  void Finish(uint64_t child, absl::Status status, Left left = Left::kNothing);
  void GiveOwn(uint32_t buffer);
  void GiveLent(uint32_t buffer);
  void GiveBack(std::vector<uint32_t> buffers);
  void Settle(const TransferPtr& whole);

  StagerUser* const user_;
  Runtime* const runtime_;
  ReliableChannel* const channel_;
  const RemoteRegions* const regions_;
  std::map<uint64_t, StagedOp> ops_;  // key: the child, begun or not
  std::deque<uint64_t> due_;          // children that may begin
  struct Ended {
    uint64_t op = 0;
    absl::Status status{};
  };
  std::vector<Ended> ended_;
  // For each transfer, how many of its ops may still move bytes although they are over for it.
  std::map<TransferPtr, uint32_t> outstanding_;
  // An op that is over and not settled (Left). It is kept, by child, until the wire is quiet for
  // the child and the target does not copy for it.
  struct Unsettled {
    TransferPtr whole{};  // in outstanding_; null: only the lent buffer is in use
    std::optional<uint32_t> lent{};
    bool told = false;    // once the child has arrived the target copies its bytes, and answers
    bool staged = false;  // the target has answered
    bool quiet = false;   // the child is quiet
    bool past = false;    // its session has ended; OnQuiet settles it
  };
  std::map<uint64_t, Unsettled> unsettled_;
  void LetGo(std::map<uint64_t, Unsettled>::iterator it);

  uint32_t own_held_ = 0;
  std::vector<uint32_t> lent_;  // indices of lent buffers that are free
  std::set<uint32_t> held_;     // indices of all buffers that the target has lent
  bool asked_ = false;
  bool recalled_ = false;
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_STAGING_STAGER_H_
