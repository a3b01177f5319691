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
  auto envelope = DecodeEnvelope(message);
  if (!envelope.ok()) return ProtocolError(link, envelope.status());
  if (link.was_up) {
    link.heard = runtime_->now;
    runtime_->presence.Heard(metadata_.name, metadata_.incarnation);
  }
  if (envelope->type == FrameType::kRefuse) return OnRefuse(link, *envelope);
  if (auto status = channel_.OnAck(envelope->ack); !status.ok()) {
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
  if (auto status = TakeNumbered(*envelope); !status.ok()) ProtocolError(link, status);
}

// First what the target acknowledges, then what it begins: an answer is told after the transfer
// that it answers has ended.
void Peer::OnPiggyback(Link& link, std::span<const std::byte> body) {
  const auto both = DecodePiggyback(body);
  absl::Status status = both.status();
  // It may overtake the answer to the hello, where its sender has learnt the version.
  if (status.ok() && link.was_up && !link.carries) {
    status = absl::InvalidArgumentError("a piggyback frame in protocol version 1");
  }
  if (status.ok()) status = TakeOneOfTwo(both->own);
  if (status.ok()) {
    status = runtime_->reverse_session->OnPiggybackedFrom(metadata_.incarnation, both->session,
                                                          both->carried);
  }
  if (!status.ok()) ProtocolError(link, status);
}

absl::Status Peer::TakeNumbered(const Envelope& envelope) {
  absl::Status status =
      channel_.OnFrame(envelope, [this](const auto& frame) { return OnNumbered(frame); });
  if (status.ok() && channel_.kept() > ReliableChannel::kMaxKept) {
    status = absl::ResourceExhaustedError("it acknowledges nothing");
  }
  return status;
}

absl::Status Peer::TakeOneOfTwo(std::span<const std::byte> message) {
  const auto envelope = DecodeNumbered(message);
  absl::Status status = envelope.status();
  if (status.ok()) status = channel_.OnAck(envelope->ack);
  return status.ok() ? TakeNumbered(*envelope) : status;
}

absl::Status Peer::OnPiggybacked(std::span<const std::byte> message) {
  absl::Status status = TakeOneOfTwo(message);
  if (!status.ok()) ResetSession(Broken(status));
  return status;
}

absl::Status Peer::OnNumbered(const ReliableChannel::Incoming& frame) {
  switch (frame.type) {
    case FrameType::kReleased:
      return DecodeFor<ReleasedFrame>(frame.body,
                                      [&](auto& released) { return OnReleased(released); });
    case FrameType::kSlotGrant: {
      auto grant = Decode<SlotGrantFrame>(frame.body);
      if (!grant.ok()) return grant.status();
      slots_requested_ = false;
      return slots_.AddGrant(*grant);
    }
    case FrameType::kCredit: {
      auto credit = Decode<CreditFrame>(frame.body);
      if (!credit.ok()) return credit.status();
      credit_.notifications = std::max(credit_.notifications, credit->notifications);
      credit_.bytes = std::max(credit_.bytes, credit->bytes);
      return absl::OkStatus();
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

absl::Status Peer::OnReleased(const ReleasedFrame& frame) {
  for (const SlotRef& ref : frame.freed) {
    OnFreed(ref);
    if (auto status = slots_.Free(ref); !status.ok()) return status;
  }
  for (uint64_t id : frame.arrived) {
    const auto it = active_.find(id);
    if (it == active_.end()) continue;
    it->second.arrived = true;
    // While it is ending, the answer to ABORT tells the same.
    if (!it->second.ending) Advance(it->second);
  }
  for (const DiscardAck& ack : frame.discarded) {
    if (auto status = OnDiscarded(ack); !status.ok()) return status;
  }
  for (const AbortAck& ack : frame.aborted) {
    const auto it = active_.find(ack.transfer);
    if (it == active_.end()) continue;
    Outbound& outbound = it->second;
    if (!outbound.abort_due) continue;
    if (ack.delivered) {
      outbound.arrived = true;
      if (!outbound.published && !outbound.refused.ok()) {
        outbound.end_state = TransferState::kFailed;
        outbound.end_status = outbound.refused;
      } else if (!outbound.published) {
        outbound.end_state = TransferState::kDone;
        outbound.end_status = absl::OkStatus();
      }
    } else {
      ReturnCredit(outbound.record->options);
    }
    outbound.abort_due = false;
    ClearQuarantine(outbound.record, outbound.arrived);
    AdvanceEnd(outbound, Now());
  }
  return absl::OkStatus();
}

// The target does not take a KV part.
absl::Status Peer::OnKvAnswer(const KvAnswerFrame& frame) {
  const auto it = active_.find(frame.transfer);
  if (it == active_.end()) return absl::OkStatus();
  Outbound& outbound = it->second;
  if (frame.good || outbound.record->notice != Notice::kKvPart) {
    return absl::InvalidArgumentError("a verdict on nothing");
  }
  outbound.refused = absl::FailedPreconditionError(
      absl::StrCat("peer ", metadata_.name, ": ", Printable(frame.why, kMaxPeerTextBytes)));
  return absl::OkStatus();
}

absl::Status Peer::OnLeaseAnswer(const LeaseAnswerFrame& frame) {
  const auto it = active_.find(frame.transfer);
  if (it == active_.end()) return absl::OkStatus();
  Outbound& outbound = it->second;
  if (!outbound.fetch.has_value()) {
    return absl::InvalidArgumentError("an answer on a lease that was not asked for");
  }
  if (outbound.ending) return absl::OkStatus();
  const bool reads = outbound.fetch != Outbound::Fetch::kBeginning;
  if (frame.refusal != LeaseAnswerFrame::kHeld) {
    const absl::Status refused = absl::FailedPreconditionError(absl::StrCat(
        "peer ", metadata_.name, reads ? ": the data read is invalid, discard it: " : ": ",
        Printable(frame.why, kMaxPeerTextBytes)));
    BeginEnd(outbound, TransferState::kFailed, WithRefusal(refused, frame.refusal),
             Now() + runtime_->options.cancel_grace);
  } else if (outbound.fetch == Outbound::Fetch::kBeginning) {
    outbound.fetch = Outbound::Fetch::kReading;
    Advance(outbound);  // of one without bytes
  } else if (outbound.fetch == Outbound::Fetch::kAsked) {
    outbound.fetch = Outbound::Fetch::kHeld;
    Advance(outbound);
  } else {
    return absl::InvalidArgumentError("an answer on a lease that was not asked for");
  }
  return absl::OkStatus();
}

// Answered when every transfer that was posted before the request came, and touches what it names,
// has ended and is quiet.
absl::Status Peer::OnQuiesce(const QuiesceFrame& frame) {
  if (auto status = asked_.CheckSpace(frame, version_, waits_closed_.size()); !status.ok()) {
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
  for (const auto& [id, outbound] : active_) {
    if (touches(*outbound.record)) transfers.insert(id);
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
    channel_.Push(FrameType::kQuiet, QuietFrame{.id = id});
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
  ResetSession(status);
}

absl::Status Peer::Broken(const absl::Status& why) const {
  Log(LogLevel::kError, "peer {} broke the protocol: {}", metadata_.name, ToStd(why.message()));
  return absl::InternalError(
      absl::StrCat("peer ", metadata_.name, " broke the protocol: ", why.message()));
}

}  // namespace kvxfer
