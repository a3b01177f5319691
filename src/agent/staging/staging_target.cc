#include "src/agent/staging/staging_target.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "src/agent/engine/memory_registry.h"
#include "src/core/base/strings.h"
#include "src/core/base/text.h"

namespace kvxfer {

absl::Status StagingTarget::OnAsk(SessionId session_id, const Incarnation& initiator,
                                  ReliableChannel* channel, const StageAskFrame& frame) {
  if (!staging_->open()) {
    return absl::InvalidArgumentError("it asks for staging buffers, and no GPU memory is here");
  }
  if (!std::exchange(opened_, true)) lender_.SetBuffers(staging_->lent_buffers());
  Session& session = sessions_[session_id];
  session.initiator = initiator;
  session.channel = channel;
  absl::Status status = lender_.Ask(session_id, frame.count);
  Tell();
  return status;
}

absl::Status StagingTarget::OnBack(SessionId session_id, const StageBackFrame& frame) {
  const auto it = sessions_.find(session_id);
  for (const uint32_t buffer : frame.buffers) {
    if (it == sessions_.end()) break;
    const auto stage = it->second.stages.find(buffer);
    if (stage == it->second.stages.end()) continue;
    if (stage->second.copies) {
      return absl::InvalidArgumentError("it gives a staging buffer back that is being copied");
    }
    it->second.stages.erase(stage);
  }
  absl::Status status = lender_.Back(session_id, frame.buffers);
  Tell();
  return status;
}

absl::Status StagingTarget::OnStage(SessionId session_id, const StageFrame& frame) {
  if (!lender_.Holds(session_id, frame.buffer)) {
    return absl::InvalidArgumentError(
        absl::StrCat("it uses staging buffer ", frame.buffer, ", which is not lent to it"));
  }
  uint64_t bytes = 0;
  for (const StageRun& run : frame.runs) bytes += run.bytes;
  if (bytes > Staging::kBufferBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("it puts ", bytes, " bytes into a staging buffer of ", Staging::kBufferBytes));
  }
  Stage& stage = sessions_.at(session_id).stages[frame.buffer];
  if (stage.copies) {
    return absl::InvalidArgumentError("it uses a staging buffer that is being copied");
  }
  stage.frame = frame;
  if (frame.when != StageWhen::kScatterLater) Start(session_id, stage);
  return absl::OkStatus();
}

void StagingTarget::OnArrived(SessionId session_id, uint64_t transfer) {
  const auto it = sessions_.find(session_id);
  if (it == sessions_.end()) return;
  for (auto& [buffer, stage] : it->second.stages) {
    if (stage.frame.transfer != transfer || stage.copies) continue;
    return Start(session_id, stage);
  }
}

// May erase `stage`.
void StagingTarget::Start(SessionId session_id, Stage& stage) {
  const bool gather = stage.frame.when == StageWhen::kGather;
  const uint32_t buffer = stage.frame.buffer;
  auto pieces = Resolve(stage.frame);
  if (pieces.ok()) {
    stage.copies = true;
    return staging_->Move(this, buffer, staging_->PlaceOf(buffer), gather, *std::move(pieces));
    // The request names memory that no region grants: answer at once, without a copy.
  }
  Session& session = sessions_.at(session_id);
  Answer(session, stage.frame, pieces.status());
  session.stages.erase(buffer);
}

absl::StatusOr<std::vector<Staging::Piece>> StagingTarget::Resolve(const StageFrame& frame) const {
  const Access wanted =
      frame.when == StageWhen::kGather ? Access::kRemoteRead : Access::kRemoteWrite;
  std::vector<Staging::Piece> pieces;
  pieces.reserve(frame.runs.size());
  for (const StageRun& run : frame.runs) {
    const StagedMemory* memory = memory_->FindGranted(run.rkey, run.address, run.bytes, wanted);
    if (memory == nullptr) {
      return absl::PermissionDeniedError(absl::StrCat(
          "no region grants this for ", run.bytes,
          " bytes that are to be staged (deregistered, of other metadata, or without that right)"));
    }
    pieces.push_back({.address = run.address,
                      .bytes = run.bytes,
                      .region = memory->id,
                      .device = memory->device});
  }
  return pieces;
}

void StagingTarget::Answer(Session& session, const StageFrame& frame, const absl::Status& status) {
  session.channel->Push(FrameType::kStaged, StagedFrame{.transfer = frame.transfer,
                                                        .good = status.ok(),
                                                        .why = ForPeer(ToStd(status.message()))});
}

// A buffer has one holder and one copy at a time, so its index identifies the copy.
void StagingTarget::OnMoved(uint64_t key, const absl::Status& status) {
  const auto buffer = static_cast<uint32_t>(key);
  for (auto it = sessions_.begin(); it != sessions_.end(); ++it) {
    Session& session = it->second;
    const auto stage = session.stages.find(buffer);
    if (stage == session.stages.end() || !stage->second.copies) continue;
    if (session.channel != nullptr) {
      Answer(session, stage->second.frame, status);
      session.stages.erase(stage);
      return;
      // A copy for a session that was swept: the buffer was kept from the lender until now.
    }
    session.stages.erase(stage);
    if (session.stages.empty()) {
      sessions_.erase(it);
      --gone_;
    }
    lender_.Free(buffer);
    return Tell();
  }
}

void StagingTarget::Sweep(SessionId session_id) {
  const auto it = sessions_.find(session_id);
  if (it == sessions_.end()) return;
  std::erase_if(it->second.stages, [](const auto& entry) { return !entry.second.copies; });
  // Buffers with a copy under way stay out of use until it is over.
  std::set<uint32_t> busy;
  for (const auto& [buffer, stage] : it->second.stages) busy.insert(buffer);
  it->second.channel = nullptr;
  if (busy.empty()) {
    sessions_.erase(it);
  } else {
    ++gone_;
  }
  lender_.Release(session_id, busy);
  Tell();
}

bool StagingTarget::CopiesForGone(const Incarnation& initiator) const {
  return std::ranges::any_of(sessions_, [&](const auto& entry) {
    return entry.second.channel == nullptr && entry.second.initiator == initiator;
  });
}

void StagingTarget::Tell() {
  for (const StageLender::Lent& lent : lender_.TakeLent()) {
    sessions_.at(lent.session_id)
        .channel->Push(FrameType::kStageLend, StageLendFrame{.buffers = lent.buffers});
  }
  for (const SessionId session_id : lender_.TakeRecalled()) {
    sessions_.at(session_id).channel->Push(FrameType::kStageRecall, StageRecallFrame{});
  }
}

}  // namespace kvxfer
