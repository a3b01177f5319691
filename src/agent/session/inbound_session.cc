// What initiators send within a session: frames, immediates, fences; and what they are told.
#include <algorithm>
#include <cstring>

#include "src/agent/session/inbound.h"
#include "src/core/base/log.h"
#include "src/core/base/strings.h"
#include "src/core/base/text.h"

namespace kvxfer {

// Its incarnation is random.
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
    if (!ping.ok()) return Fail(session, ping.status());
    const std::string pong = EncodeMessage(FrameType::kPong, 0, session.channel.received(), *ping);
    // Lost for want of room: the next ping is answered.
    link.endpoint->Send(std::as_bytes(std::span(pong)));
    return;
  }
  if (!status.ok()) return Fail(session, status);
  if (envelope->type == FrameType::kPiggyback) return OnPiggyback(link, envelope->body);
  if (envelope->type == FrameType::kFenceRail) return OnFenceRail(link, envelope->body);
  if (envelope->sequence != 0) OnNumberedMessage(session, *envelope);
}

void InboundHub::OnNumberedMessage(InboundSession& session, const Envelope& envelope) {
  const absl::Status status = session.channel.OnFrame(envelope, [&](const auto& frame) {
    const absl::Status good = OnNumbered(session, frame);
    return good.ok() ? CheckBounds(session) : good;
  });
  if (!status.ok()) return Fail(session, status);
  Act(session);
}

// First what the peer acknowledges, then what it begins: an answer is told after the transfer that
// it answers has ended.
void InboundHub::OnPiggyback(InboundLink& link, std::span<const std::byte> body) {
  InboundSession& session = *link.session;
  const auto both = DecodePiggyback(body);
  if (!both.ok()) return Fail(session, both.status());
  const auto own = DecodeNumbered(both->own);
  if (!own.ok()) return Fail(session, own.status());
  absl::Status status =
      runtime_->reverse_session->OnPiggybackedTo(session.initiator, both->session, both->carried);
  if (status.ok()) status = session.channel.OnAck(own->ack);
  if (!status.ok()) return Fail(session, status);
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
    Fail(session, status);
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
  switch (frame.type) {
    case FrameType::kOpen:
      return DecodeFor<OpenFrame>(
          frame.body, [&](auto& open) { return session.tracker.OnOpen(std::move(open)); });
    case FrameType::kAbort:
      return DecodeFor<AbortFrame>(frame.body,
                                   [&](auto& abort) { return session.tracker.OnAbort(abort); });
    case FrameType::kSlotRequest:
      GrantSlots(session);
      return absl::OkStatus();
    case FrameType::kQuiet: {
      auto quiet = Decode<QuietFrame>(frame.body);
      if (!quiet.ok()) return quiet.status();
      const auto question = questions_.find(quiet->id);
      if (question != questions_.end()) Answered(question->second, session.local_id);
      return absl::OkStatus();
    }
    case FrameType::kLeaseRead: {
      auto read = Decode<LeaseReadFrame>(frame.body);
      if (!read.ok()) return read.status();
      Answer(session, runtime_->leases.OnLeaseRead(*read, session.reader(), runtime_->now));
      return absl::OkStatus();
    }
    case FrameType::kFetchEnd: {
      auto end = Decode<FetchEndFrame>(frame.body);
      if (!end.ok()) return end.status();
      Answer(session, runtime_->leases.OnFetchEnd(*end, session.reader(), runtime_->now));
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
    case FrameType::kAmend:
      return DecodeFor<AmendFrame>(frame.body,
                                   [&](auto& amend) { return session.tracker.OnAmend(amend); });
    case FrameType::kDiscard: {
      auto discard = Decode<DiscardFrame>(frame.body);
      absl::Status status = discard.status();
      if (status.ok() && !session.rails_failed) {
        status = absl::InvalidArgumentError("a DISCARD where no rail was fenced");
      }
      // It names lanes of a rail of which this side has said that it is fenced.
      if (status.ok()) status = session.tracker.OnDiscard(*discard);
      return status.ok() ? session.tracker.OnLanesDrained(discard->transfer) : status;
    }
    default:
      return absl::InvalidArgumentError(absl::StrCat("frame of type ", static_cast<int>(frame.type),
                                                     " does not come from an initiator"));
  }
}

// What an initiator can make this side keep: it has credit for notifications, and so many transfers
// at once; and it acknowledges.
absl::Status InboundHub::CheckBounds(const InboundSession& session) const {
  const ArrivalTracker& tracker = session.tracker;
  if (session.delivered.notifications + tracker.held_notifications() >
          session.credit_reported.notifications ||
      session.delivered.bytes + tracker.held_bytes() > session.credit_reported.bytes) {
    return absl::ResourceExhaustedError("it sends notifications that it has no credit for");
  }
  if (tracker.active() > kMaxSessionTransfers ||
      tracker.waiting_in_order() > kMaxSessionTransfers + runtime_->options.max_notifications) {
    return absl::ResourceExhaustedError(
        absl::StrCat("it has more than ", kMaxSessionTransfers, " transfers at once"));
  }
  if (session.channel.kept() > ReliableChannel::kMaxKept) {
    return absl::ResourceExhaustedError("it acknowledges nothing");
  }
  return absl::OkStatus();
}

void InboundHub::OnImmediate(InboundLink& link, uint32_t immediate) {
  if (link.session == nullptr || link.session->over()) return;
  InboundSession& session = *link.session;
  const absl::Status status = session.tracker.OnImmediate(DecodeImmediate(immediate));
  if (!status.ok()) return Fail(session, status);
  Act(session);
}

void InboundHub::OnFenced(InboundLink& link, uint64_t transfer) {
  if (link.session == nullptr || link.session->over()) return;
  FenceDone(*link.session, link, transfer);
  Act(*link.session);
}

// A rail of this connection failed at the initiator, which sends nothing over it before the answer.
void InboundHub::OnFenceRail(InboundLink& link, std::span<const std::byte> body) {
  const auto frame = Decode<RailFrame>(body);
  if (!frame.ok()) return Fail(*link.session, frame.status());
  const uint32_t rail = frame->rail;
  if (rail >= link.endpoint->Describe().rails.size() ||
      std::ranges::find(link.fencing, rail) != link.fencing.end() ||
      std::ranges::find(link.fenced, rail) != link.fenced.end()) {
    return Fail(*link.session,
                absl::InvalidArgumentError(absl::StrCat(
                    "a fence of rail ", rail, ", which is not there or is being fenced already")));
  }
  link.fencing.push_back(rail);
  link.endpoint->Fence({.rail = rail});
}

// Every immediate of it was reported before, and counted.
void InboundHub::OnRailFenced(InboundLink& link, uint32_t rail) {
  if (link.session == nullptr || std::erase(link.fencing, rail) == 0) return;
  link.fenced.push_back(rail);
  InboundSession& session = *link.session;
  session.rails_failed = true;
  if (!link.fencing.empty() || link.waiting.empty() || session.over()) return;
  for (const uint64_t transfer : std::exchange(link.waiting, {})) {
    FenceDone(session, link, transfer);
  }
  Act(session);
}

void InboundHub::TellFencedRails(InboundSession& session) {
  for (InboundLink* link : session.links) {
    while (!link->closing && !link->fenced.empty()) {
      const std::string message =
          EncodeMessage(FrameType::kRailFenced, 0, session.channel.received(),
                        RailFrame{.rail = link->fenced.back()});
      if (!link->endpoint->Send(std::as_bytes(std::span(message)))) break;
      link->fenced.pop_back();
    }
  }
}

void InboundHub::FenceDone(InboundSession& session, InboundLink& link, uint64_t transfer) {
  const auto it = session.fencing.find(transfer);
  if (it == session.fencing.end()) return;
  // What the transfer left on a rail that failed is quiet only when that rail is.
  if (!link.fencing.empty()) {
    link.waiting.push_back(transfer);
    return;
  }
  it->second.erase(&link);
  if (!it->second.empty()) return;
  session.fencing.erase(it);
  if (auto status = session.tracker.OnFenced(transfer); !status.ok()) Fail(session, status);
}

void InboundHub::StartFence(InboundSession& session, uint64_t transfer) {
  auto& waiting = session.fencing[transfer];
  for (InboundLink* link : session.links) {
    if (link->closing) continue;
    waiting.insert(link);
    link->endpoint->Fence({.transfer = transfer});
  }
  // A connection that is closing counts as fenced once it is down.
  for (InboundLink* link : session.links) {
    if (link->closing) waiting.insert(link);
  }
  if (!waiting.empty()) return;
  session.fencing.erase(transfer);
  if (auto status = session.tracker.OnFenced(transfer); !status.ok()) Fail(session, status);
}

// Carries out what the tracker came to know: deliveries first, then what the initiator is told.
void InboundHub::Act(InboundSession& session) {
  while (!session.over() && session.tracker.has_actions()) {
    ArrivalTracker::Actions actions = session.tracker.TakeActions();
    Deliver(session, std::move(actions.deliver));
    if (!actions.released.empty()) {
      session.channel.Push(FrameType::kReleased, actions.released);
      for (uint64_t transfer : actions.released.arrived) {
        stages_.OnArrived(session.local_id, transfer);
      }
    }
    for (uint64_t transfer : actions.fence) StartFence(session, transfer);
  }
}

void InboundHub::Deliver(InboundSession& session, ArrivalTracker::Deliveries all) {
  for (auto& delivered : all) {
    ++session.delivered.notifications;
    session.delivered.bytes += delivered.notification.size();
    if (delivered.notice == Notice::kKvPart) {
      DeliverPart(session, delivered);
      continue;
    }
    const size_t bytes = delivered.notification.size();
    runtime_->events.Push(Notification{.peer = session.name,
                                       .incarnation = session.initiator,
                                       .transfer = delivered.transfer,
                                       .payload = std::move(delivered.notification)},
                          {.account = session.account, .bytes = bytes});
  }
  if (!all.empty()) runtime_->loop.Wake(&runtime_->events);
}

// The application is told with the last part of a request; the others are drained at once.
void InboundHub::DeliverPart(InboundSession& session, const ArrivalTracker::Delivered& delivered) {
  const std::string& text = delivered.notification;
  const Credit credit{.account = session.account, .bytes = text.size()};
  auto part = Decode<KvPartFrame>(std::as_bytes(std::span(text)));
  if (!part.ok()) return Fail(session, part.status());
  auto taken = runtime_->kv.Take(*part, session.name, runtime_->now);
  if (!taken.ok()) {
    // Goes before the word that the transfer has arrived.
    session.channel.Push(FrameType::kKvAnswer,
                         KvAnswerFrame{.transfer = delivered.transfer,
                                       .why = ForPeer(ToStd(taken.status().message()))});
  }
  if (!taken.ok() || !taken->whole) return credit.GiveBack();
  runtime_->events.Push(Notification{.peer = session.name,
                                     .incarnation = session.initiator,
                                     .transfer = delivered.transfer,
                                     .payload = std::move(taken->notification).value_or(""),
                                     .request = RequestName(std::move(part->request)),
                                     .cache = CacheName(std::move(part->cache))},
                        credit);
}

// Gives credit back once a quarter of it has been drained, so that it is not a frame a
// notification.
void InboundHub::TellCredit(InboundSession& session) {
  const auto& options = runtime_->options;
  const CreditFrame now{
      .notifications = session.account->notifications.load(std::memory_order_acquire) +
                       options.max_notifications,
      .bytes =
          session.account->bytes.load(std::memory_order_acquire) + options.max_notification_bytes};
  const bool due =
      now.notifications - session.credit_reported.notifications >
          (options.max_notifications - 1) / 4 ||
      now.bytes - session.credit_reported.bytes > CreditByteStep(options.max_notification_bytes);
  if (!due) return;
  session.credit_reported = now;
  session.channel.Push(FrameType::kCredit, now);
}

void InboundHub::Answer(InboundSession& session, std::optional<LeaseAnswerFrame> answer) {
  if (!answer.has_value()) return;
  session.channel.Push(FrameType::kLeaseAnswer, *answer);
}

// To readers that have waited for the grant of a lease.
void InboundHub::AnswerLate() {
  for (auto& [reader, answer] : runtime_->leases.TakeLateAnswers()) {
    const auto asked = std::ranges::find_if(
        sessions_, [reader = reader](const auto& one) { return one.second->reader() == reader; });
    if (asked != sessions_.end()) Answer(*asked->second, std::move(answer));
  }
}

// Whom an answer wakes first gets the CPU first. Each session begins in its turn: a fixed order
// gives the same ones more for as long as they live.
void InboundHub::Pump() {
  AnswerLate();
  if (gone_copies_ && !stages_.CopiesForGone()) {
    gone_copies_ = false;
    for (auto& [token, question] : questions_) Answered(question, kGone);
  }
  SweepHolders();
  const auto first = sessions_.upper_bound(pumped_first_);
  for (auto it = first; it != sessions_.end(); ++it) Pump(*it->second);
  for (auto it = sessions_.begin(); it != first; ++it) Pump(*it->second);
  const auto began = first == sessions_.end() ? sessions_.begin() : first;
  pumped_first_ = began == sessions_.end() ? Incarnation{} : began->first;
}

void InboundHub::Pump(InboundSession& session) {
  if (session.over() || session.links.empty()) return;
  for (InboundLink* link : session.links) SendPages(*link);
  TellCredit(session);
  Flush(session);
  TellFencedRails(session);
}

void InboundHub::Flush(InboundSession& session) {
  const auto link =
      std::ranges::find_if(session.links, [](const InboundLink* one) { return !one->closing; });
  if (link == session.links.end()) return;
  SendKept(session.channel, *(*link)->endpoint);
}

void InboundHub::Fail(InboundSession& session, const absl::Status& why) {
  if (session.over()) return;
  session.state = InboundSession::State::kFailed;
  Log(LogLevel::kError, "peer {} broke the protocol: {}", session.name, ToStd(why.message()));
  for (InboundLink* link : session.links) CloseLink(*link, why);
}

}  // namespace kvxfer
