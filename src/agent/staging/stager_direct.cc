// Ops for which this process's GPUs copy straight to and from the peer's staging buffers.
#include <utility>

#include "src/agent/staging/peer_stage.h"
#include "src/agent/staging/stager.h"

namespace kvxfer {

// Opens the peer's buffers at the first op that would use them.
bool Stager::Direct(const StagedOp& op) const {
  Link* const link = op.outbound->link;
  if (!op.moves || !op.answers || link == nullptr) return false;
  if (link->stage_tried && (link->stage == nullptr || !link->stage->open())) return false;
  if (link->endpoint->HoldOpen() == nullptr) return false;
  if (!link->stage_tried) OpenStage(op, *link);
  return link->stage != nullptr && link->stage->open();
}

void Stager::OpenStage(const StagedOp& op, Link& link) const {
  int device = -1;
  for (RunWalk walk(op.blocks); device < 0; walk.Next()) {
    device = static_cast<const StagedMemory&>(*walk.run().registration).device;
  }
  const auto key =
      link.KeyOf(*regions_, regions_->staging_region(), *runtime_->backends[link.backend]);
  link.stage_tried = !absl::IsUnavailable(key.status());
  MappedRegion mapped = key.ok() ? (*key)->Mapped() : MappedRegion();
  if (mapped.data == nullptr || !PeerStage::Suits(device)) return;
  link.stage = std::make_unique<PeerStage>(
      std::move(mapped), regions_->staging_buffers() * Staging::kBufferBytes, device);
}

absl::StatusOr<Staging::Place> Stager::DirectPlace(StagedOp& op) const {
  Link* const link = op.outbound->link;
  if (link != nullptr) op.hold = link->endpoint->HoldOpen();
  if (op.hold == nullptr || !op.lent) return absl::AbortedError("the connection was lost");
  return Staging::Place{.at = link->stage->At(*op.lent * Staging::kBufferBytes), .hold = op.hold};
}

// The bytes are with the target already, so it is told at once.
void Stager::OnMovedToLent(uint64_t child, StagedOp& op) {
  if (!op.lent) return Finish(child, absl::UnavailableError("the session ended meanwhile"));
  op.step = Step::kAnswer;
  op.told = true;
  PushStage(child, op, StageWhen::kScatter);
}

}  // namespace kvxfer
