#include "src/agent/session/shared_session.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/core/base/log.h"
#include "src/core/base/random.h"
#include "src/core/base/strings.h"

namespace kvxfer {
namespace {

// What is larger goes by itself: to gather is to copy.
constexpr size_t kMaxGatheredBytes = 8 * 1024;

bool TakesFrames(const SessionLink* link) { return link->carries && link->open(); }

}  // namespace

void SessionLink::Ping(const Session& session, Time now) {
  if (unanswered == Time{}) unanswered = now;
  const std::string ping = session.Message(FrameType::kPing, PingFrame{.nonce = 1});
  endpoint->Send(std::as_bytes(std::span(ping)));
}

SharedSession::SharedSession(TimerHeap* timers, User* user, const Session::Party& self,
                             const Session::Party& peer, const PeerWatch::Pace& pace)
    : user_(user),
      timer_(timers, this),
      session_(self, peer, RandomNonZero64(), Now()),
      smaller_(self.incarnation < peer.incarnation),
      peer_watch_(pace) {
  session_.channel().set_user(this);
}

// --- its halves ---

void SharedSession::Leave(const InitiatorHalf* half) {
  std::erase(initiators_, half);
  if (has_initiator()) initiators_.front()->Mark();
}

// Whose frame it is flushes it; where that half is gone, the other one.
void SharedSession::OnPushed(FrameType type) {
  if (has_initiator() && (IsFromInitiator(type) || target_ == nullptr)) {
    initiators_.front()->Mark();
  } else if (target_ != nullptr) {
    target_->Mark();
  }
}

void SharedSession::MarkBoth() {
  if (has_initiator()) initiators_.front()->Mark();
  if (target_ != nullptr) target_->Mark();
}

// --- links ---

void SharedSession::OnLinkUp(SessionLink& link) {
  links_.push_back(&link);
  session_.OnLinkUp();
  peer_watch_.Await(Now());
  MarkBoth();
  SetTimer();
}

void SharedSession::OnLinkDown(const SessionLink& link, const absl::Status& why, Time now) {
  if (std::erase(links_, &link) == 0) return;
  session_.OnLinkDown(now);
  MarkBoth();
  SetTimer();
  if (link.carries) CloseUncarried(why);
  if (session_.state() == Session::State::kUnlinked) user_->OnUnlinked(*this, why);
  RenewIfOver();
}

// What moves only data needs another link that carries the word on it. Without one the session is
// as good as unlinked: so it is, and begins again with a link that carries.
void SharedSession::CloseUncarried(const absl::Status& why) {
  if (std::ranges::any_of(links_, &SessionLink::carries)) return;
  for (SessionLink* const link : links_) {
    link->Close(Annotate(why, "the last connection that carried control frames is lost"));
  }
}

SessionLink* SharedSession::Best() const {
  if (session_.state() != Session::State::kLinked) return nullptr;
  const auto better = [this](const SessionLink& a, const SessionLink& b) {
    if (a.avoided != b.avoided) return b.avoided;
    if (a.backend != b.backend) return a.backend < b.backend;
    return a.dialled == smaller_ && b.dialled != smaller_;
  };
  SessionLink* best = nullptr;
  for (SessionLink* const link : links_) {
    if (!TakesFrames(link)) continue;
    if (best == nullptr || better(*link, *best)) best = link;
  }
  return best;
}

bool SharedSession::linked() const {
  return session_.state() == Session::State::kLinked && std::ranges::any_of(links_, TakesFrames);
}

bool SharedSession::PeerDialled() const {
  return std::ranges::any_of(
      links_, [](const SessionLink* link) { return !link->dialled && link->open(); });
}

// --- a peer that says nothing ---

void SharedSession::Await(Time now) {
  if (peer_watch_.Await(now)) SetTimer();
}

Time SharedSession::NextPeerLook() const {
  return session_.state() == Session::State::kLinked ? peer_watch_.due() : Time::max();
}

// Over every link: the peer lives if it answers over any. While nothing is awaited, each side sees
// to the links that it dialled.
void SharedSession::LookAtPeer(Time now) {
  PeerWatch::Peer peer{.awaited = std::ranges::any_of(initiators_, &SessionHalf::Awaits)};
  if (target_ != nullptr) peer.awaited |= target_->Awaits();
  for (const SessionLink* const link : links_) {
    peer.kept_alive |= link->dialled && link->open();
    peer.heard = std::max(peer.heard, link->heard);
  }
  const PeerWatch::Step step = peer_watch_.Look(peer, now);
  if (step.silent) user_->OnSilent(*this, peer.heard);
  if (!step.ping) return;
  for (SessionLink* const link : links_) {
    if (link->open() && (peer.awaited || link->dialled)) link->Ping(session_, now);
  }
}

// --- links that answer nothing ---

bool SharedSession::HasChoice() const {
  if (session_.state() != Session::State::kLinked || links_.size() < 2) return false;
  return std::ranges::count_if(links_, TakesFrames) > 1;
}

Time SharedSession::NextLook() const {
  if (session_.channel().kept() == 0 || !HasChoice()) return Time::max();
  return watch_.NextLook(Best()->health());
}

// Sooner, never later: one that comes too soon sets itself again, and acknowledgements, which come
// all the time, need not touch it.
void SharedSession::SetTimer() {
  const bool unlinked = session_.state() == Session::State::kUnlinked;
  const Time next =
      unlinked ? session_.unlinked() + kSweepAfter : std::min(NextLook(), NextPeerLook());
  if (next < timer_.due()) timer_.Set(next);
}

void SharedSession::OnTimer(Time now) {
  if (session_.state() == Session::State::kUnlinked && now >= session_.unlinked() + kSweepAfter) {
    return End(absl::UnavailableError(
                   absl::StrCat("peer ", session_.peer().name, " did not connect again")),
               Ends::kPreceding);
  }
  if (now >= NextLook()) Look(now);
  if (now >= NextPeerLook()) LookAtPeer(now);
  SetTimer();
}

void SharedSession::Look(Time now) {
  SessionLink& link = *Best();
  switch (watch_.Look(session_.channel().oldest(), link.health(), now)) {
    case FrameWatch::Step::kNone:
      return;
    case FrameWatch::Step::kPing:
      return link.Ping(session_, now);
    case FrameWatch::Step::kAvoid:
      return Avoid(link, now);
    case FrameWatch::Step::kSendAgain:
      return SendAgain();
  }
}

void SharedSession::Avoid(SessionLink& link, Time now) {
  link.avoided = true;
  if (Best()->avoided) return;  // none answers: the peer may have stopped
  Log(LogLevel::kWarning,
      "peer {}: no answer for {} ms over the connection that {} made ({}); another one carries "
      "control frames until it answers",
      session_.peer().name,
      std::chrono::duration_cast<std::chrono::milliseconds>(now - link.unanswered).count(),
      link.dialled ? "this agent" : "the peer", link.endpoint->Describe().path);
  SendAgain();
}

void SharedSession::SendAgain() {
  watch_.Restart();
  session_.channel().Rewind();
  if (!Flush(nullptr)) MarkBoth();
}

absl::Status SharedSession::OnPing(SessionLink& link, const Envelope& envelope) {
  const auto ping = Decode<PingFrame>(envelope.body);
  if (!ping.ok()) return ping.status();
  // Lost for want of room: the next ping is answered.
  const std::string pong = session_.Message(FrameType::kPong, *ping);
  link.endpoint->Send(std::as_bytes(std::span(pong)));
  // The peer is heard over it. Is it heard there?
  if (link.avoided) link.Ping(session_, Now());
  return absl::OkStatus();
}

void SharedSession::OnPong(SessionLink& link) {
  link.unanswered = Time{};
  SetTimer();
  if (!std::exchange(link.avoided, false)) return;
  Log(LogLevel::kInfo, "peer {}: the connection that {} made ({}) answers again",
      session_.peer().name, link.dialled ? "this agent" : "the peer",
      link.endpoint->Describe().path);
}

// --- messages ---

absl::Status SharedSession::OnMessage(SessionLink& link, const Envelope& envelope) {
  if (auto status = session_.channel().OnAck(envelope.ack); !status.ok()) return status;
  if (envelope.type == FrameType::kPing) return OnPing(link, envelope);
  if (envelope.type == FrameType::kPong) OnPong(link);
  return envelope.sequence == 0 ? absl::OkStatus() : OnNumbered(envelope);
}

absl::Status SharedSession::OnNumbered(const Envelope& envelope) {
  absl::Status status =
      session_.OnNumbered(envelope, [this](const auto& frame) { return Pass(frame); });
  if (status.ok() && target_ != nullptr) target_->OnFramesTaken();
  return status;
}

absl::Status SharedSession::Pass(const ReliableChannel::Incoming& frame) {
  // What a frame before it has led to.
  if (session_.state() == Session::State::kEnding) return absl::OkStatus();
  SessionHalf* half = target_;
  if (!IsFromInitiator(frame.type)) half = has_initiator() ? initiators_.front() : nullptr;
  if (half == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("frame of type ", static_cast<int>(frame.type),
                                                   " is about nothing that ever was"));
  }
  half->Mark();
  if (auto status = half->OnFrame(frame); !status.ok()) return status;
  // An answer is told before what the peer begins after it.
  if (half != target_) half->OnFramesTaken();
  return absl::OkStatus();
}

bool SharedSession::Flush(SessionLink* over, bool answers_wait) {
  ReliableChannel& channel = session_.channel();
  if (!channel.has_to_send() && !channel.ack_pressing()) return true;
  const bool takes_it = over != nullptr && over->carries && !over->health().owes;
  SessionLink* const link = takes_it ? over : Best();
  if (link == nullptr) return true;  // a link that comes up says so
  if (answers_wait && channel.AllToSend([](FrameType type) { return !IsFromInitiator(type); })) {
    return !channel.ack_pressing();  // of answers the target half, which sends them, is marked
  }
  const bool all = SendFrames(*link);
  // Each message would pay for a timer that is there already.
  if (timer_.due() > watch_.NextLook({})) SetTimer();
  return all;
}

bool SharedSession::SendFrames(SessionLink& link) {
  ReliableChannel& channel = session_.channel();
  std::string several;
  while (const size_t count = channel.GatherToSend(kMaxGatheredBytes, several)) {
    if (!link.endpoint->Send(std::as_bytes(std::span(several)))) return false;
    for (size_t i = 0; i < count; ++i) channel.MessageSent();
  }
  while (const std::string* message = channel.NextToSend()) {
    if (!link.endpoint->Send(std::as_bytes(std::span(*message)))) return false;
    channel.MessageSent();
  }
  if (!channel.ack_pressing()) return true;
  const std::string ack = channel.AckMessage();
  // If it does not fit it is dropped: the next message acknowledges too.
  link.endpoint->Send(std::as_bytes(std::span(ack)));
  return true;
}

// --- the end ---

void SharedSession::Fail(const absl::Status& why) {
  if (session_.state() == Session::State::kEnding) return;
  const std::string& name = session_.peer().name;
  Log(LogLevel::kError, "peer {} broke the protocol: {}", name, ToStd(why.message()));
  End(absl::InternalError(absl::StrCat("peer ", name, " broke the protocol: ", why.message())),
      Ends::kAll);
}

void SharedSession::End(const absl::Status& why, Ends which) {
  if (session_.state() == Session::State::kEnding) return;
  session_.End(Now());
  if (has_initiator()) initiators_.front()->OnSessionEnd(why, which);
  if (target_ != nullptr) target_->OnSessionEnd(why, which);
  RenewIfOver();
}

void SharedSession::RenewIfOver() {
  if (!session_.renewable()) return;
  user_->OnOver(*this);
  session_.Renew();
  session_.channel().set_user(this);  // it is a new one
  if (has_initiator()) initiators_.front()->OnSessionRenewed();
}

}  // namespace kvxfer
