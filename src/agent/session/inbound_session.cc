// What initiators send within a session: frames, immediates, fences; and what they are told.
#include <algorithm>
#include <cstring>

#include "src/agent/session/inbound.h"
#include "src/core/base/log.h"
#include "src/core/base/strings.h"
#include "src/core/base/text.h"

namespace kvxfer {

// A hash of its key.
KvLeases::Reader InboundSession::reader() const {
  KvLeases::Reader reader = 0;
  std::memcpy(&reader, initiator.bytes.data(), sizeof(reader));
  return reader;
}

void InboundHub::OnMessage(InboundLink& link, std::span<const std::byte> message) {
  if (link.closing) return;
  if (link.handshake != nullptr) return OnHandshake(link, message);
  link.heard = runtime_->now;
  runtime_->presence.Heard(link.session->name, link.session->initiator);
  auto envelope = DecodeEnvelope(message);
  if (!envelope.ok()) return CloseLink(link, envelope.status());
  if (envelope->type == FrameType::kHello || envelope->type == FrameType::kKey ||
      envelope->type == FrameType::kProof) {
    return CloseLink(link, absl::InvalidArgumentError("a second hello, key or proof"));
  }
  InboundSession& session = *link.session;
  SharedSession& shared = *session.shared;
  if (auto status = shared.OnMessage(link, *envelope); !status.ok()) return shared.Fail(status);
  if (envelope->type == FrameType::kFenceRail) session.OnFenceRail(link, envelope->body);
}

void InboundHub::OnQuiet(const InboundSession& session, uint64_t question) {
  questions_.OnAnswer(question, session.local_id);
}

absl::Status InboundSession::OnFrame(const ReliableChannel::Incoming& frame) {
  if (over()) return absl::OkStatus();
  absl::Status status = TakeFrame(frame);
  if (status.ok()) status = transfers.CheckLimits();
  if (!status.ok()) state = State::kBroken;
  return status;
}

absl::Status InboundSession::TakeFrame(const ReliableChannel::Incoming& frame) {
  if (TargetSession::Takes(frame.type)) return transfers.OnFrame(frame);
  switch (frame.type) {
    case FrameType::kSlotRequest:
      user_->GrantSlots(*this);
      return absl::OkStatus();
    case FrameType::kQuiet:
      return DecodeFor<QuietFrame>(frame.body, [&](auto& quiet) {
        user_->OnQuiet(*this, quiet.id);
        return absl::OkStatus();
      });
    case FrameType::kLinkGone:
      return DecodeFor<LinkGoneFrame>(frame.body, [&](auto& gone) {
        OnLinkGone(gone.link);
        return absl::OkStatus();
      });
    case FrameType::kLeaseRead:
      return DecodeFor<LeaseReadFrame>(frame.body, [&](auto& read) {
        Answer(runtime_->leases.OnLeaseRead(read, reader(), runtime_->now));
        return absl::OkStatus();
      });
    case FrameType::kFetchEnd:
      return DecodeFor<FetchEndFrame>(frame.body, [&](auto& end) {
        Answer(runtime_->leases.OnFetchEnd(end, reader(), runtime_->now));
        return absl::OkStatus();
      });
    case FrameType::kStageAsk:
      return DecodeFor<StageAskFrame>(frame.body, [&](auto& ask) {
        return stages_->OnAsk(local_id, initiator, &channel, ask);
      });
    case FrameType::kStageBack:
      return DecodeFor<StageBackFrame>(frame.body,
                                       [&](auto& back) { return stages_->OnBack(local_id, back); });
    case FrameType::kStage:
      return DecodeFor<StageFrame>(frame.body,
                                   [&](auto& stage) { return stages_->OnStage(local_id, stage); });
    default:
      return absl::InvalidArgumentError(absl::StrCat("frame of type ", static_cast<int>(frame.type),
                                                     " does not come from an initiator"));
  }
}

void InboundSession::OnSessionEnd(const absl::Status& why, Ends /*which*/) {
  if (state == State::kOpen) state = State::kEnded;
  for (InboundLink* link : links) link->Close(why);
}

void InboundSession::Fail(const absl::Status& why) {
  if (over()) return;
  state = State::kBroken;
  shared->Fail(why);
}

void InboundSession::OnImmediate(uint32_t immediate) {
  ready_.Mark();
  if (!over()) Act(transfers.OnImmediate(immediate));
}

void InboundSession::OnFenced(const InboundLink& link, uint64_t transfer) {
  ready_.Mark();
  if (!over()) Act(transfers.OnFenced(link.number, transfer));
}

// It may be down here too by now.
void InboundSession::OnLinkGone(uint64_t dialled_number) {
  const auto link = std::ranges::find(links, dialled_number, &InboundLink::dialled_number);
  if (link != links.end()) (*link)->Close(absl::UnavailableError("it has ended at the initiator"));
}

// A rail of this connection failed at the initiator, which sends nothing over it before the answer.
void InboundSession::OnFenceRail(const InboundLink& link, std::span<const std::byte> body) {
  ready_.Mark();
  if (over()) return;
  const auto frame = Decode<RailFrame>(body);
  if (!frame.ok()) return Fail(frame.status());
  if (!runtime_->backends[link.backend]->capabilities().rails_fail_alone) {
    return Fail(absl::InvalidArgumentError("no rail of such a connection fails alone"));
  }
  const size_t rails = link.endpoint->Describe().rails.size();
  Act(transfers.OnFenceRail(link.number, frame->rail, rails));
}

void InboundSession::OnRailFenced(const InboundLink& link, uint32_t rail) {
  ready_.Mark();
  if (!over()) Act(transfers.OnRailFenced(link.number, rail));
}

bool InboundSession::TellFencedRails() {
  bool all = true;
  for (InboundLink* link : links) {
    while (const auto rail = transfers.NextFencedRail(link->number)) {
      const std::string message =
          EncodeMessage(FrameType::kRailFenced, 0, channel.received(), RailFrame{.rail = *rail});
      if (!link->endpoint->Send(std::as_bytes(std::span(message)))) {
        all = false;
        break;
      }
      transfers.OnAnswered(link->number, *rail);
    }
  }
  return all;
}

void InboundSession::StartFence(const TargetSession::Fence& fence) {
  const auto link = std::ranges::find(links, fence.link, &InboundLink::number);
  if (link != links.end() && !(*link)->closing) (*link)->endpoint->Fence(fence.scope);
}

// Deliveries first, then what the initiator is told.
void InboundSession::Act(absl::Status status) {
  while (status.ok() && !over() && transfers.has_actions()) {
    status = transfers.TakeActions(actions_);
    Deliver(actions_.tracked.deliver);
    if (!actions_.tracked.released.empty()) {
      channel.Push(FrameType::kReleased, actions_.tracked.released);
      for (uint64_t transfer : actions_.tracked.released.arrived) {
        stages_->OnArrived(local_id, transfer);
      }
    }
    for (const TargetSession::Fence& fence : actions_.fences) StartFence(fence);
    ForgetActions();
  }
  if (!status.ok()) Fail(status);
}

// What was delivered is counted nowhere any more, so nothing of it stays; the lists do, as long as
// they are short.
void InboundSession::ForgetActions() {
  constexpr size_t kShort = 64;
  actions_.clear();
  if (actions_.tracked.deliver.capacity() > kShort) actions_.tracked.deliver.shrink_to_fit();
}

void InboundSession::Deliver(std::span<ArrivalTracker::Delivered> all) {
  for (auto& one : all) {
    const size_t bytes = one.notification.size();
    if (one.notice == Notice::kKvPart) {
      DeliverPart(one);
      continue;
    }
    runtime_->events.Push(Notification{.peer = name,
                                       .incarnation = initiator,
                                       .transfer = one.transfer,
                                       .payload = std::move(one.notification)},
                          {.account = account, .bytes = bytes});
  }
  if (!all.empty()) runtime_->loop.Wake(&runtime_->events);
}

// The application is told with the last part of a request; the others are drained at once.
void InboundSession::DeliverPart(const ArrivalTracker::Delivered& sent) {
  const std::string& text = sent.notification;
  Credit credit{.account = account, .bytes = text.size()};
  auto part = Decode<KvPartFrame>(std::as_bytes(std::span(text)));
  if (!part.ok()) return Fail(part.status());
  auto taken = runtime_->kv.Take(*part, name, runtime_->now);
  if (!taken.ok()) {
    // Goes before the word that the transfer has arrived.
    channel.Push(
        FrameType::kKvAnswer,
        KvAnswerFrame{.transfer = sent.transfer, .why = ForPeer(ToStd(taken.status().message()))});
  }
  if (!taken.ok() || !taken->whole) return credit.GiveBack();
  runtime_->events.Push(Notification{.peer = name,
                                     .incarnation = initiator,
                                     .transfer = sent.transfer,
                                     .payload = std::move(taken->notification).value_or(""),
                                     .request = RequestName(std::move(part->request)),
                                     .cache = CacheName(std::move(part->cache))},
                        std::move(credit));
}

void InboundSession::TellCredit() {
  const CreditFrame taken{.notifications = account->notifications.load(std::memory_order_acquire),
                          .bytes = account->bytes.load(std::memory_order_acquire)};
  const auto credit = transfers.TakeCredit(taken);
  if (credit.has_value()) channel.Push(FrameType::kCredit, *credit);
}

void InboundSession::Answer(std::optional<LeaseAnswerFrame> answer) {
  if (!answer.has_value()) return;
  channel.Push(FrameType::kLeaseAnswer, *answer);
  if (runtime_->leases.IsReading(reader())) shared->Await(runtime_->now);
}

// To readers that have waited for the grant of a lease.
void InboundHub::AnswerLate() {
  for (auto& [reader, answer] : runtime_->leases.TakeLateAnswers()) {
    const auto asked = std::ranges::find_if(
        sessions_, [reader = reader](const auto& one) { return one.second->reader() == reader; });
    if (asked != sessions_.end()) asked->second->Answer(std::move(answer));
  }
}

// Whom an answer wakes first gets the CPU first: ReadyList has each session begin in its turn.
void InboundHub::Pump(Time now) {
  over_.clear();
  if (!released_.empty()) {
    for (const Incarnation& peer : std::exchange(released_, {})) Release(peer);
  }
  if (runtime_->leases.has_late_answers()) AnswerLate();
  if (gone_copies_ && !stages_.CopiesForGone()) {
    gone_copies_ = false;
    questions_.OnGone(kGone, std::nullopt);
  }
  SweepHolders();
  runtime_->sessions.BeginPass();
  runtime_->sessions.Visit(now);
}

void InboundSession::Pump(Time /*now*/) {
  if (over() || !shared->linked()) return;
  bool sent = SendPages();
  TellCredit();
  sent &= shared->Flush(nullptr);
  sent &= TellFencedRails();
  if (!sent) ready_.Again();
}

bool InboundSession::SendPages() {
  bool all = true;
  for (InboundLink* link : links) all &= SendPages(*link);
  return all;
}

// As far as there is room. Each is true when it is sent, and what is deregistered later is told by
// QUIESCE.
bool InboundSession::SendPages(InboundLink& link) const {
  while (link.unlisted.first <= link.unlisted.last && !link.closing) {
    RegionsFrame page =
        runtime_->memory.Page(link.unlisted.first, link.unlisted.last, kMaxRegionRuns);
    page.target = runtime_->incarnation;
    const std::string message = EncodeMessage(FrameType::kRegions, 0, channel.received(), page);
    if (!link.endpoint->Send(std::as_bytes(std::span(message)))) return false;
    link.unlisted.first = page.last + 1;
  }
  return true;
}

}  // namespace kvxfer
