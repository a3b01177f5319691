// The target's side of staging (stager.h). It lends this agent's staging buffers to initiators and
// copies between those buffers and its regions when an initiator requests it. A request is checked
// as any remote operation is: by rkey, bounds and rights, at the moment the copy begins.
//
// Thread-safety: none; only the driver calls it.

#ifndef KVXFER_AGENT_STAGING_STAGING_TARGET_H_
#define KVXFER_AGENT_STAGING_STAGING_TARGET_H_

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

class StagingTarget final : private Staging::User {
 public:
  using SessionId = StageLender::SessionId;  // a session

  StagingTarget(Staging* staging, const MemoryRegistry* memory)
      : staging_(staging), memory_(memory) {}
  ~StagingTarget() override { staging_->Forget(this, {}); }

  // Handle frames of the session `session_id`. Answers go to `channel`, which must stay valid until
  // Sweep. An error: the initiator broke the protocol.
  absl::Status OnAsk(SessionId session_id, const Incarnation& initiator, ReliableChannel* channel,
                     const StageAskFrame& frame);
  absl::Status OnBack(SessionId session_id, const StageBackFrame& frame);
  absl::Status OnStage(SessionId session_id, const StageFrame& frame);
  // True: an initiator waits for buffers that others hold.
  bool short_of_buffers() const { return lender_.short_of_buffers(); }
  bool HoldsAny(SessionId session_id) const { return lender_.HoldsAny(session_id); }
  // All bytes of a transfer of the session have arrived.
  void OnArrived(SessionId session_id, uint64_t transfer);
  // The session has ended, and nothing of it is in flight.
  void Sweep(SessionId session_id);
  // True: copies for sessions that have ended are still under way, those of `initiator` or of any
  // initiator. Bytes of the regions may still change for them.
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
    std::map<uint32_t, Stage> stages{};  // key: the buffer's index
  };

  void Start(SessionId session_id, Stage& stage);
  absl::StatusOr<std::vector<Staging::Piece>> Resolve(const StageFrame& frame) const;
  static void Answer(Session& session, const StageFrame& frame, const absl::Status& status);
  void OnMoved(uint64_t key, const absl::Status& status) override;
  void Tell();

  Staging* const staging_;
  const MemoryRegistry* const memory_;
  bool opened_ = false;  // lender_ has the buffers
  StageLender lender_;
  std::map<SessionId, Session> sessions_;
  size_t gone_ = 0;  // how many of sessions_ are swept
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_STAGING_STAGING_TARGET_H_
