// Transfers of one peer between memories of which the backend cannot reach one or the other: each
// op goes by way of slots of pinned memory (staging.h). What a backend does with an op, the stager
// does in steps, of which the one over the wire is a transfer of its own, a *child*, between slots
// or host memory, with all that transfers have: rails that fail, aborts, quiet.
//
//   write   local region → own slot (gather)      where the local side is not reached
//           child: own slot or local region → lent slot or remote region
//           lent slot → remote region (scatter), by the target, which answers
//                                                 where the remote side is not reached
//   read    remote region → lent slot, by the target; child; own slot → local region
//
// Seen from the transfer the op is one that its initiator copies: completed means visible. So it
// has no lanes, and its notification goes with OPEN behind the last op.
//
// Thread-safety: none; owned by the engine.

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
#include "src/agent/engine/transfer_record.h"
#include "src/agent/staging/staging.h"
#include "src/core/protocol/wire_format.h"

namespace kvxfer {

class Peer;
struct Outbound;

// A region of the peer as staging sees it, in place of a backend's key.
struct StagedKey final : RemoteKey {
  StagedKey(uint32_t region_rkey, bool region_reached)
      : rkey(region_rkey), reached(region_reached) {}
  const uint32_t rkey;
  const bool reached;  // by the backends that take host memory
};

class Stager final : private Staging::User {
 public:
  // Of one op.
  static constexpr size_t kMaxRuns = 2048;
  static_assert(kMaxRuns <= kMaxStageRuns);

  Stager(Peer* peer, Staging* staging) : peer_(peer), staging_(staging) {}
  ~Stager() override;

  // Takes op `op` of `outbound`, with `runs` of StagedMemory and StagedKey, which stay until it is
  // over. False: no slot is free; again later. Peer::OnStaged follows.
  bool Post(Outbound& outbound, uint64_t op, std::span<const Run> runs);

  // Begins children that are due; from the peer's Pump.
  void Begin();
  bool begins() const { return !due_.empty(); }
  // Tells the peer of ops that are over, outside of everything else.
  void TellEnds();

  // Ends every op of `outbound` as soon as may be, its children at `give_up` at the latest.
  void Cancel(const Outbound& outbound, const absl::Status& why, Time give_up);
  // Lets go of `outbound`, which is told now: its ops are over for it.
  void Abandon(Outbound& outbound);
  // Ops of it may still move bytes though they are over for it: it is quarantined until
  // Peer::OnSettled, which follows.
  bool Outstanding(const TransferPtr& whole) const { return outstanding_.contains(whole); }
  void ForEachOutstanding(absl::FunctionRef<void(const TransferPtr&)> visit) const {
    for (const auto& [whole, ops] : outstanding_) visit(whole);
  }

  void OnChildEnd(uint64_t child, const internal::TransferRecord::End& end);
  // The quarantine of a child has cleared; `arrived`: all of it is at the target.
  void OnChildQuiet(uint64_t child, bool arrived);
  // What the target says; an error: it broke the protocol.
  absl::Status OnLend(const StageLendFrame& frame);
  void OnRecall();
  absl::Status OnStaged(const StagedFrame& frame);
  // The session is over: no answer comes, and no slot is lent any more.
  void OnSessionEnd();
  // Nothing of what sessions before left behind can land any more.
  void OnQuiet();

  // A transfer is quarantined for its ops' sake.
  bool unsettled() const { return !outstanding_.empty(); }
  // This side's GPUs copy for it.
  bool moving() const {
    return std::ranges::any_of(ops_,
                               [](const auto& op) { return op.second.step == Step::kMoving; });
  }

 private:
  enum class Step : uint8_t { kMoving, kDue, kChild, kAnswer };
  struct StagedOp {
    uint64_t op = 0;
    Outbound* owner = nullptr;  // null: abandoned
    TransferPtr whole{};
    Step step = Step::kDue;
    bool moves = false;    // local regions by way of `own`
    bool answers = false;  // the target copies, and says so
    bool told = false;     // a write: it knows what to copy
    std::optional<uint32_t> own{};
    std::optional<uint32_t> lent{};
    std::optional<absl::Status> answer{};
    absl::Status why{};  // it is to end as this
    std::span<const Run> runs{};
  };
  bool TakeSlots(StagedOp& op);
  std::optional<uint32_t> TakeOwn();
  std::vector<uint64_t> ChildrenOf(const Outbound& outbound) const;
  void Ask();
  void StartMove(uint64_t child, StagedOp& op);
  void PushStage(uint64_t child, const StagedOp& op, StageWhen when);
  absl::Status StartChild(uint64_t child, StagedOp& op);
  void OnMoved(uint64_t child, const absl::Status& status) override;
  // `unsure`: its bytes may land yet.
  void Finish(uint64_t child, absl::Status status, bool unsure = false);
  void GiveOwn(uint32_t slot);
  void GiveLent(uint32_t slot);
  void GiveBack(std::vector<uint32_t> slots);
  void Settle(const TransferPtr& whole);

  Peer* const peer_;
  Staging* const staging_;
  std::map<uint64_t, StagedOp> ops_;  // by child, begun or not
  std::deque<uint64_t> due_;          // children that may begin
  struct Ended {
    uint64_t op = 0;
    absl::Status status{};
  };
  std::vector<Ended> ended_;
  // Transfers, with how many of their ops may still move bytes though they are over for them.
  std::map<TransferPtr, uint32_t> outstanding_;
  // Ops that are over and unsure, by child, until the wire is quiet for that, and the target does
  // not copy for it.
  struct Unsure {
    TransferPtr whole{};
    std::optional<uint32_t> lent{};
    bool told = false;    // if the child arrives the target copies what it brought, and says so
    bool staged = false;  // it has said so
    bool quiet = false;   // the child is
    bool past = false;    // its session is over, and OnQuiet tells of it
  };
  std::map<uint64_t, Unsure> unsure_;
  void LetGo(std::map<uint64_t, Unsure>::iterator it);

  uint32_t own_held_ = 0;
  std::vector<uint32_t> lent_;  // free ones
  std::set<uint32_t> held_;     // all that the target has lent
  bool asked_ = false;
  bool recalled_ = false;
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_STAGING_STAGER_H_
