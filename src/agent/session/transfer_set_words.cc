// What the target says of transfers, and what it asks.
#include <algorithm>
#include <utility>

#include "src/agent/session/transfer_set.h"
#include "src/core/base/strings.h"
#include "src/core/base/text.h"
#include "src/core/kv/lease_refusal.h"

namespace kvxfer {
namespace {

// The target does not take a KV part.
absl::Status OnKvAnswer(SendTracker& tracker, const std::string& peer, const KvAnswerFrame& frame) {
  const Outbound* const outbound = FindOutbound(tracker, frame.transfer);
  if (outbound == nullptr) return absl::OkStatus();
  if (frame.good || outbound->record->notice != Notice::kKvPart) {
    return absl::InvalidArgumentError("it refuses a KV part of a transfer that has none");
  }
  outbound->sending->OnRefused(absl::FailedPreconditionError(
      absl::StrCat("peer ", peer, ": ", Printable(frame.why, kMaxPeerTextBytes))));
  return absl::OkStatus();
}

absl::Status OnLeaseAnswer(SendTracker& tracker, const std::string& peer,
                           const LeaseAnswerFrame& frame) {
  SendTracker::Transfer* const sending = tracker.Find(frame.transfer);
  if (sending == nullptr) return absl::OkStatus();
  absl::Status refused;
  if (frame.refusal != LeaseAnswerFrame::kHeld) {
    const bool reads = sending->state() != SendState::kLeasing;
    refused =
        WithRefusal(absl::FailedPreconditionError(absl::StrCat(
                        "peer ", peer, reads ? ": the data read is invalid, discard it: " : ": ",
                        Printable(frame.why, kMaxPeerTextBytes))),
                    frame.refusal);
  }
  return tracker.OnLease(*sending, refused, Now());
}

}  // namespace

absl::Status TransferSet::OnNumbered(const ReliableChannel::Incoming& frame) {
  switch (frame.type) {
    case FrameType::kReleased:
      return DecodeFor<ReleasedFrame>(
          frame.body, [&](auto& released) { return tracker_->OnReleased(released, Now()); });
    case FrameType::kSlotGrant:
      return DecodeFor<SlotGrantFrame>(
          frame.body, [&](auto& grant) { return tracker_->slots().OnGrant(grant); });
    case FrameType::kCredit: {
      auto credit = Decode<CreditFrame>(frame.body);
      if (credit.ok()) tracker_->credit().OnCredit(*credit);
      return credit.status();
    }
    case FrameType::kKvAnswer:
      return DecodeFor<KvAnswerFrame>(frame.body, [&](auto& answer) {
        return OnKvAnswer(*tracker_, parts_.peer->name, answer);
      });
    case FrameType::kLeaseAnswer:
      return DecodeFor<LeaseAnswerFrame>(frame.body, [&](auto& answer) {
        return OnLeaseAnswer(*tracker_, parts_.peer->name, answer);
      });
    case FrameType::kStageLend:
      return DecodeFor<StageLendFrame>(frame.body,
                                       [&](auto& lend) { return stager_.OnLend(lend); });
    case FrameType::kStageRecall: {
      auto recall = Decode<StageRecallFrame>(frame.body);
      if (recall.ok()) stager_.OnRecall();
      return recall.status();
    }
    case FrameType::kStaged:
      return DecodeFor<StagedFrame>(frame.body,
                                    [&](auto& staged) { return stager_.OnStaged(staged); });
    case FrameType::kQuiesce:
      return DecodeFor<QuiesceFrame>(frame.body, [&](auto& quiesce) { return OnQuiesce(quiesce); });
    default:
      return absl::InvalidArgumentError(absl::StrCat("frame of type ", static_cast<int>(frame.type),
                                                     " does not come from a target"));
  }
}

// Answered when every transfer that was posted before the request came, and touches what it names,
// has ended and is quiet.
absl::Status TransferSet::OnQuiesce(const QuiesceFrame& frame) {
  if (auto status = replies_.CheckSpace(frame); !status.ok()) return status;
  if (auto status = parts_.regions->CheckRevoked(); !status.ok()) return status;
  std::vector<uint32_t> named = frame.regions;
  std::ranges::sort(named);
  const auto touches = [&](const internal::TransferRecord& record) {
    if (record.kind == TransferKind::kNotify) return false;
    if (frame.all_regions) return true;
    return std::ranges::any_of(record.blocks.remote_regions(), [&](uint32_t index) {
      const auto id = static_cast<uint32_t>(record.remote->regions()[index].id);
      return std::ranges::binary_search(named, id);
    });
  };
  if (frame.revoke) {
    for (uint32_t region : frame.regions) parts_.regions->Revoke(region);
    EndQueued(touches, TransferState::kFailed,
              absl::FailedPreconditionError(
                  absl::StrCat("a region of the transfer was deregistered by peer ",
                               parts_.peer->name, "; take its metadata again")));
  }
  const bool cuda = std::ranges::any_of(frame.regions, [this](uint32_t id) {
    const AgentMetadata::Region* const known = parts_.regions->Find(RegionId{id});
    return known != nullptr && known->region.kind == MemoryKind::kCuda;
  });
  std::unordered_set<uint64_t> transfers;
  queue_.ForEach([&](const internal::TransferRecord& record) {
    if (touches(record)) transfers.insert(record.id);
  });
  for (const Outbound& outbound : outbounds_) {
    if (touches(*outbound.record)) transfers.insert(outbound.record->id);
  }
  stager_.ForEachOutstanding([&](const TransferPtr& record) {
    if (touches(*record)) transfers.insert(record->id);
  });
  const std::vector<uint64_t> each(transfers.begin(), transfers.end());
  replies_.Add(frame, cuda, each);
  return absl::OkStatus();
}

}  // namespace kvxfer
