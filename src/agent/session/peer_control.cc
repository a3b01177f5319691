// What the target says: arrivals, freed slots, grants, credit, quiesce requests.
#include <algorithm>
#include <unordered_set>
#include <utility>

#include "src/agent/session/peer.h"
#include "src/core/base/log.h"
#include "src/core/base/strings.h"
#include "src/core/base/text.h"
#include "src/core/kv/lease_refusal.h"
#include "src/cuda/closer.h"

namespace kvxfer {

void Peer::OnMessage(Link& link, std::span<const std::byte> message) {
  if (link.state == Link::State::kClosing) return;
  if (link.state == Link::State::kProving) return OnProving(link, message);
  auto envelope = DecodeEnvelope(message);
  if (!envelope.ok()) return ProtocolError(link, envelope.status());
  if (link.was_up) {
    link.heard = runtime_->now;
    runtime_->presence.Heard(metadata_.name, metadata_.incarnation);
  }
  if (envelope->type == FrameType::kRefuse) return OnRefuse(link, *envelope);
  if (auto status = session_.channel().OnAck(envelope->ack); !status.ok()) {
    return ProtocolError(link, status);
  }
  if (envelope->type == FrameType::kHelloAck) return OnHelloAck(link, *envelope);
  if (envelope->type == FrameType::kRegions) return OnRegions(link, *envelope);
  if (envelope->type == FrameType::kPong) {
    link.unanswered = Time{};
    return;
  }
  if (envelope->type == FrameType::kPiggyback) return OnPiggyback(link, envelope->body);
  if (envelope->type == FrameType::kRailFenced) return OnRailFenced(link, *envelope);
  if (envelope->sequence == 0) return;
  const auto take = [this](const auto& frame) { return OnNumbered(frame); };
  if (auto status = session_.OnNumbered(*envelope, take); !status.ok()) {
    ProtocolError(link, status);
  }
}

// First what the target acknowledges, then what it begins: an answer is told after the transfer
// that it answers has ended.
void Peer::OnPiggyback(Link& link, std::span<const std::byte> body) {
  const auto both = DecodePiggyback(body);
  absl::Status status = both.status();
  const auto take = [this](const auto& frame) { return OnNumbered(frame); };
  if (status.ok()) status = session_.OnPiggybacked(both->own, take);
  if (status.ok()) {
    status = runtime_->reverse_session->OnPiggybackedFrom(metadata_.incarnation, both->session,
                                                          both->carried);
  }
  if (!status.ok()) ProtocolError(link, status);
}

absl::Status Peer::OnPiggybacked(std::span<const std::byte> message) {
  const auto take = [this](const auto& frame) { return OnNumbered(frame); };
  absl::Status status = session_.OnPiggybacked(message, take);
  if (!status.ok()) ResetSession(Broken(status), Ends::kAll);
  Settle();
  return status;
}

absl::Status Peer::OnNumbered(const ReliableChannel::Incoming& frame) {
  switch (frame.type) {
    case FrameType::kReleased:
      return DecodeFor<ReleasedFrame>(
          frame.body, [&](auto& released) { return tracker_.OnReleased(released, Now()); });
    case FrameType::kSlotGrant:
      return DecodeFor<SlotGrantFrame>(frame.body,
                                       [&](auto& grant) { return tracker_.OnGrant(grant); });
    case FrameType::kCredit: {
      auto credit = Decode<CreditFrame>(frame.body);
      if (credit.ok()) tracker_.OnCredit(*credit);
      return credit.status();
    }
    case FrameType::kKvAnswer:
      return DecodeFor<KvAnswerFrame>(frame.body, [&](auto& answer) { return OnKvAnswer(answer); });
    case FrameType::kLeaseAnswer:
      return DecodeFor<LeaseAnswerFrame>(frame.body,
                                         [&](auto& answer) { return OnLeaseAnswer(answer); });
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

// The target does not take a KV part.
absl::Status Peer::OnKvAnswer(const KvAnswerFrame& frame) {
  const Outbound* const outbound = Find(frame.transfer);
  if (outbound == nullptr) return absl::OkStatus();
  if (frame.good || outbound->record->notice != Notice::kKvPart) {
    return absl::InvalidArgumentError("it refuses a KV part of a transfer that has none");
  }
  SendTracker::OnRefused(*outbound->sending, absl::FailedPreconditionError(absl::StrCat(
                                                 "peer ", metadata_.name, ": ",
                                                 Printable(frame.why, kMaxPeerTextBytes))));
  return absl::OkStatus();
}

absl::Status Peer::OnLeaseAnswer(const LeaseAnswerFrame& frame) {
  SendTracker::Transfer* const sending = tracker_.Find(frame.transfer);
  if (sending == nullptr) return absl::OkStatus();
  absl::Status refused;
  if (frame.refusal != LeaseAnswerFrame::kHeld) {
    const bool reads = sending->state() != SendState::kLeasing;
    refused = WithRefusal(
        absl::FailedPreconditionError(absl::StrCat(
            "peer ", metadata_.name, reads ? ": the data read is invalid, discard it: " : ": ",
            Printable(frame.why, kMaxPeerTextBytes))),
        frame.refusal);
  }
  return tracker_.OnLease(*sending, refused, Now());
}

// Answered when every transfer that was posted before the request came, and touches what it names,
// has ended and is quiet.
absl::Status Peer::OnQuiesce(const QuiesceFrame& frame) {
  if (auto status = asked_.CheckSpace(frame, waits_closed_.size()); !status.ok()) {
    return status;
  }
  if (auto status = regions_.CheckRevoked(); !status.ok()) return status;
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
    for (uint32_t region : frame.regions) regions_.Revoke(region);
    for (const TransferPtr& record : queue_.Remove(touches)) {
      FailQueued(record, TransferState::kFailed,
                 absl::FailedPreconditionError(
                     absl::StrCat("a region of the transfer was deregistered by peer ",
                                  metadata_.name, "; take its metadata again")));
    }
  }
  const bool cuda = std::ranges::any_of(frame.regions, [this](uint32_t id) {
    const AgentMetadata::Region* const known = regions_.Find(RegionId{id});
    return known != nullptr && known->region.kind == MemoryKind::kCuda;
  });
  std::unordered_set<uint64_t> transfers;
  queue_.ForEach([&](const internal::TransferRecord& record) {
    if (touches(record)) transfers.insert(record.id);
  });
  for (const Outbound& outbound : active_) {
    if (touches(*outbound.record)) transfers.insert(outbound.record->id);
  }
  stager_.ForEachOutstanding([&](const TransferPtr& record) {
    if (touches(*record)) transfers.insert(record->id);
  });
  AskedBook::Question question{
      .id = frame.id, .revoke = frame.revoke, .closes = frame.revoke && cuda};
  if (frame.revoke) question.regions = std::move(named);
  const std::vector<uint64_t> each(transfers.begin(), transfers.end());
  asked_.Add(std::move(question), each);
  AnswerQuiesce();
  return absl::OkStatus();
}

// The owner of a region may free it once it is told, and GPU memory may be freed only when nobody
// else has it open.
void Peer::AnswerQuiesce() {
  const auto answer = [this](uint64_t id) {
    session_.channel().Push(FrameType::kQuiet, QuietFrame{.id = id});
  };
  for (const AskedBook::Question& quiet : asked_.TakeQuiet()) {
    // New transfers cannot use them, and those that did have ended.
    if (quiet.revoke) DropKeys(quiet.regions);
    if (quiet.closes) {
      waits_closed_.push_back(quiet.id);
    } else {
      answer(quiet.id);
    }
  }
  if (waits_closed_.empty() || cuda::Closing()) return;
  for (const uint64_t id : std::exchange(waits_closed_, {})) answer(id);
}

void Peer::ProtocolError(Link& link, const absl::Status& why) {
  const absl::Status status = Broken(why);
  link.Close(status);
  ResetSession(status, Ends::kAll);
}

absl::Status Peer::Broken(const absl::Status& why) const {
  Log(LogLevel::kError, "peer {} broke the protocol: {}", metadata_.name, ToStd(why.message()));
  return absl::InternalError(
      absl::StrCat("peer ", metadata_.name, " broke the protocol: ", why.message()));
}

}  // namespace kvxfer
