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
  auto envelope = DecodeEnvelope(message);
  if (!envelope.ok()) return CloseLink(link, envelope.status());
  if (envelope->type == FrameType::kHello || envelope->type == FrameType::kKey ||
      envelope->type == FrameType::kProof) {
    return CloseLink(link, absl::InvalidArgumentError("a second hello, key or proof"));
  }
  InboundSession& session = *link.session;
  if (session.over()) return;
  absl::Status status = session.channel.OnAck(envelope->ack);
  if (status.ok() && envelope->type == FrameType::kPing) {
    auto ping = Decode<PingFrame>(envelope->body);
    if (!ping.ok()) return session.Fail(ping.status());
    const std::string pong = EncodeMessage(FrameType::kPong, 0, session.channel.received(), *ping);
    // Lost for want of room: the next ping is answered.
    link.endpoint->Send(std::as_bytes(std::span(pong)));
    return;
  }
  if (!status.ok()) return session.Fail(status);
  if (envelope->type == FrameType::kPiggyback) return OnPiggyback(link, envelope->body);
  if (envelope->type == FrameType::kFenceRail) return session.OnFenceRail(link, envelope->body);
  if (envelope->sequence != 0) OnNumberedMessage(session, *envelope);
}

void InboundHub::OnNumberedMessage(InboundSession& session, const Envelope& envelope) {
  session.Act(session.channel.OnFrame(envelope, [&](const auto& frame) {
    const absl::Status good = OnNumbered(session, frame);
    return good.ok() ? session.CheckBounds() : good;
  }));
}

// First what the peer acknowledges, then what it begins: an answer is told after the transfer that
// it answers has ended.
void InboundHub::OnPiggyback(InboundLink& link, std::span<const std::byte> body) {
  InboundSession& session = *link.session;
  const auto both = DecodePiggyback(body);
  if (!both.ok()) return session.Fail(both.status());
  const auto own = DecodeNumbered(both->own);
  if (!own.ok()) return session.Fail(own.status());
  absl::Status status =
      runtime_->reverse_session->OnPiggybackedTo(session.initiator, both->session, both->carried);
  if (status.ok()) status = session.channel.OnAck(own->ack);
  if (!status.ok()) return session.Fail(status);
  OnNumberedMessage(session, *own);
}

absl::Status InboundHub::OnPiggybacked(const Incarnation& initiator, uint64_t id,
                                       std::span<const std::byte> message) {
  const auto it = sessions_.find(initiator);
  // Without a connection of its own a session rests: this comes again with the next one.
  if (it == sessions_.end() || it->second->id != id || it->second->links.empty()) {
    return absl::OkStatus();
  }
  InboundSession& session = *it->second;
  if (session.over()) return absl::OkStatus();
  auto envelope = DecodeNumbered(message);
  absl::Status status = envelope.status();
  if (status.ok()) status = session.channel.OnAck(envelope->ack);
  if (!status.ok()) {
    session.Fail(status);
    return status;
  }
  OnNumberedMessage(session, *envelope);
  return absl::OkStatus();
}

ReverseSession::Piggyback InboundHub::PiggybackTo(const Incarnation& initiator) {
  const auto it = sessions_.find(initiator);
  if (it == sessions_.end()) return {};
  InboundSession& session = *it->second;
  const auto link =
      std::ranges::find_if(session.links, [](const InboundLink* one) { return !one->closing; });
  if (session.over() || link == session.links.end() || session.channel.NextToSend() == nullptr) {
    return {};
  }
  return {.channel = &session.channel,
          .session = session.id,
          .endpoint = (*link)->endpoint.get(),
          .heard = (*link)->heard,
          .carried = &(*link)->carried};
}

bool InboundHub::IsConnected(const Incarnation& initiator) const {
  const auto it = sessions_.find(initiator);
  return it != sessions_.end() && !it->second->over() && !it->second->links.empty();
}

void InboundHub::PiggybackLinkLost(const Incarnation& initiator) {
  const auto it = sessions_.find(initiator);
  if (it != sessions_.end()) it->second->channel.Rewind();
}

absl::Status InboundHub::OnNumbered(InboundSession& session,
                                    const ReliableChannel::Incoming& frame) {
  if (TargetSession::Takes(frame.type)) return session.transfers.OnFrame(frame);
  switch (frame.type) {
    case FrameType::kSlotRequest:
      GrantSlots(session);
      return absl::OkStatus();
    case FrameType::kQuiet: {
      auto quiet = Decode<QuietFrame>(frame.body);
      if (!quiet.ok()) return quiet.status();
      questions_.OnAnswer(quiet->id, session.local_id);
      return absl::OkStatus();
    }
    case FrameType::kLeaseRead: {
      auto read = Decode<LeaseReadFrame>(frame.body);
      if (!read.ok()) return read.status();
      session.Answer(runtime_->leases.OnLeaseRead(*read, session.reader(), runtime_->now));
      return absl::OkStatus();
    }
    case FrameType::kFetchEnd: {
      auto end = Decode<FetchEndFrame>(frame.body);
      if (!end.ok()) return end.status();
      session.Answer(runtime_->leases.OnFetchEnd(*end, session.reader(), runtime_->now));
      return absl::OkStatus();
    }
    case FrameType::kStageAsk:
      return DecodeFor<StageAskFrame>(frame.body, [&](auto& ask) {
        return stages_.OnAsk(session.local_id, session.initiator, &session.channel, ask);
      });
    case FrameType::kStageBack:
      return DecodeFor<StageBackFrame>(
          frame.body, [&](auto& back) { return stages_.OnBack(session.local_id, back); });
    case FrameType::kStage:
      return DecodeFor<StageFrame>(
          frame.body, [&](auto& stage) { return stages_.OnStage(session.local_id, stage); });
    default:
      return absl::InvalidArgumentError(absl::StrCat("frame of type ", static_cast<int>(frame.type),
                                                     " does not come from an initiator"));
  }
}

absl::Status InboundSession::CheckBounds() const {
  absl::Status status = transfers.CheckLimits();
  if (status.ok() && channel.kept() > ReliableChannel::kMaxKept) {
    status = absl::ResourceExhaustedError("it acknowledges nothing");
  }
  return status;
}

void InboundSession::OnImmediate(uint32_t immediate) {
  if (!over()) Act(transfers.OnImmediate(immediate));
}

void InboundSession::OnFenced(const InboundLink& link, uint64_t transfer) {
  if (!over()) Act(transfers.OnFenced(link.number, transfer));
}

// A rail of this connection failed at the initiator, which sends nothing over it before the answer.
void InboundSession::OnFenceRail(const InboundLink& link, std::span<const std::byte> body) {
  const auto frame = Decode<RailFrame>(body);
  if (!frame.ok()) return Fail(frame.status());
  const size_t rails = link.endpoint->Describe().rails.size();
  Act(transfers.OnFenceRail(link.number, frame->rail, rails));
}

void InboundSession::OnRailFenced(const InboundLink& link, uint32_t rail) {
  if (!over()) Act(transfers.OnRailFenced(link.number, rail));
}

void InboundSession::TellFencedRails() {
  for (InboundLink* link : links) {
    while (const auto rail = transfers.NextFencedRail(link->number)) {
      const std::string message =
          EncodeMessage(FrameType::kRailFenced, 0, channel.received(), RailFrame{.rail = *rail});
      if (!link->endpoint->Send(std::as_bytes(std::span(message)))) break;
      transfers.OnAnswered(link->number, *rail);
    }
  }
}

void InboundSession::StartFence(const TargetSession::Fence& fence) {
  const auto link = std::ranges::find(links, fence.link, &InboundLink::number);
  if (link != links.end() && !(*link)->closing) (*link)->endpoint->Fence(fence.scope);
}

// Deliveries first, then what the initiator is told.
void InboundSession::Act(absl::Status status) {
  TargetSession::Actions actions;
  while (status.ok() && !over() && transfers.has_actions()) {
    status = transfers.TakeActions(actions);
    Deliver(std::move(actions.deliver));
    if (!actions.released.empty()) {
      channel.Push(FrameType::kReleased, actions.released);
      for (uint64_t transfer : actions.released.arrived) {
        stages_->OnArrived(local_id, transfer);
      }
    }
    for (const TargetSession::Fence& fence : actions.fences) StartFence(fence);
  }
  if (!status.ok()) Fail(status);
}

void InboundSession::Deliver(ArrivalTracker::Deliveries all) {
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
  const Credit credit{.account = account, .bytes = text.size()};
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
                        credit);
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
}

// To readers that have waited for the grant of a lease.
void InboundHub::AnswerLate() {
  for (auto& [reader, answer] : runtime_->leases.TakeLateAnswers()) {
    const auto asked = std::ranges::find_if(
        sessions_, [reader = reader](const auto& one) { return one.second->reader() == reader; });
    if (asked != sessions_.end()) asked->second->Answer(std::move(answer));
  }
}

// Whom an answer wakes first gets the CPU first. Each session begins in its turn: a fixed order
// gives the same ones more for as long as they live.
void InboundHub::Pump() {
  AnswerLate();
  if (gone_copies_ && !stages_.CopiesForGone()) {
    gone_copies_ = false;
    questions_.OnGone(kGone, std::nullopt);
  }
  SweepHolders();
  const auto first = sessions_.upper_bound(pumped_first_);
  for (auto it = first; it != sessions_.end(); ++it) it->second->Pump();
  for (auto it = sessions_.begin(); it != first; ++it) it->second->Pump();
  const auto began = first == sessions_.end() ? sessions_.begin() : first;
  pumped_first_ = began == sessions_.end() ? Incarnation{} : began->first;
}

void InboundSession::Pump() {
  if (over() || links.empty()) return;
  for (InboundLink* link : links) SendPages(*link);
  TellCredit();
  Flush();
  TellFencedRails();
}

// As far as there is room. Each is true when it is sent, and what is deregistered later is told by
// QUIESCE.
void InboundSession::SendPages(InboundLink& link) {
  while (link.unlisted.first <= link.unlisted.last && !link.closing) {
    RegionsFrame page =
        runtime_->memory.Page(link.unlisted.first, link.unlisted.last, kMaxRegionRuns);
    page.target = runtime_->incarnation;
    const std::string message = EncodeMessage(FrameType::kRegions, 0, channel.received(), page);
    if (!link.endpoint->Send(std::as_bytes(std::span(message)))) return;
    link.unlisted.first = page.last + 1;
  }
}

void InboundSession::Flush() {
  const auto link =
      std::ranges::find_if(links, [](const InboundLink* one) { return !one->closing; });
  if (link == links.end()) return;
  SendKept(channel, *(*link)->endpoint);
}

void InboundSession::Fail(const absl::Status& why) {
  if (over()) return;
  state = InboundSession::State::kFailed;
  Log(LogLevel::kError, "peer {} broke the protocol: {}", name, ToStd(why.message()));
  for (InboundLink* link : links) link->Close(why);
}

}  // namespace kvxfer
