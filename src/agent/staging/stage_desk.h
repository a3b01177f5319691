// The target's side of staging (stager.h): lends slots of this agent to initiators, and copies
// between those and its regions when they say so. What they say is checked as any remote operation
// is: by rkey, bounds and rights, when the copy begins.
//
// Thread-safety: none; owned by the engine.

#ifndef KVXFER_AGENT_STAGING_STAGE_DESK_H_
#define KVXFER_AGENT_STAGING_STAGE_DESK_H_

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/types.h"
#include "src/agent/staging/staging.h"
#include "src/core/protocol/reliable_channel.h"
#include "src/core/protocol/stage_lender.h"
#include "src/core/protocol/wire_format.h"

namespace kvxfer {

class MemoryRegistry;

class StageDesk final : private Staging::User {
 public:
  using Owner = StageLender::Owner;  // a session

  StageDesk(Staging* staging, const MemoryRegistry* memory) : staging_(staging), memory_(memory) {}
  ~StageDesk() override { staging_->Forget(this, {}); }

  // Frames of the session `owner`, which is answered through `channel`; that lasts until Sweep. An
  // error: it broke the protocol.
  absl::Status OnAsk(Owner owner, const Incarnation& initiator, ReliableChannel* channel,
                     const StageAskFrame& frame);
  absl::Status OnBack(Owner owner, const StageBackFrame& frame);
  absl::Status OnStage(Owner owner, const StageFrame& frame);
  // Somebody waits for slots, and `owner` has some.
  bool short_of_slots() const { return lender_.short_of_slots(); }
  bool HoldsAny(Owner owner) const { return lender_.HoldsAny(owner); }
  // A transfer of the session is whole.
  void OnArrived(Owner owner, uint64_t transfer);
  // The session is over, and nothing of it is on its way any more.
  void Sweep(Owner owner);
  // Copies for sessions that are over are under way, of `initiator`, of anybody: in their name
  // bytes may change yet.
  bool CopiesForGone(const Incarnation& initiator) const;
  bool CopiesForGone() const { return gone_ > 0; }

 private:
  struct Stage {
    StageFrame frame{};
    bool copies = false;
  };
  struct Session {
    Incarnation initiator{};
    ReliableChannel* channel = nullptr;  // null: swept
    std::map<uint32_t, Stage> stages{};  // by slot
  };

  void Start(Owner owner, Stage& stage);
  absl::StatusOr<std::vector<Staging::Piece>> Resolve(const StageFrame& frame) const;
  static void Answer(Session& session, const StageFrame& frame, const absl::Status& status);
  void OnMoved(uint64_t slot, const absl::Status& status) override;
  void Tell();

  Staging* const staging_;
  const MemoryRegistry* const memory_;
  bool opened_ = false;  // lender_ has the slots
  StageLender lender_;
  std::map<Owner, Session> sessions_;
  size_t gone_ = 0;  // of those, how many are swept
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_STAGING_STAGE_DESK_H_
