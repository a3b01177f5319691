// Connections and hellos of initiators, sweeping, and the questions of Quiesce.
#include "src/agent/session/inbound.h"

#include <algorithm>
#include <utility>

#include "src/core/base/descriptor_share.h"
#include "src/core/base/log.h"
#include "src/core/base/short_list.h"
#include "src/core/base/strings.h"

namespace kvxfer {
namespace {

// At least: the initiator's first words may need the time that a connection does.
constexpr Duration kHelloWithin = std::chrono::seconds(2);
// An initiator pings at least every 5 s; one that is silent for so long is disconnected.
constexpr Duration kSilence = std::chrono::seconds(30);
// Sessions kept without a connection: initiators that restart again and again leave one each.
constexpr size_t kMaxUnlinked = 256;
// New sessions are refused while the application lets so many times one peer's share pile up.
constexpr size_t kMaxUndrainedShares = 64;

}  // namespace

void InboundLink::OnEvent(Event& event) {
  switch (event.kind) {
    case EventKind::kMessage:
      // Before the proof a message holds one frame.
      if (handshake != nullptr) return user->OnMessage(*this, event.message);
      for (std::span<const std::byte> left = event.message; !left.empty();) {
        user->OnMessage(*this, TakeFrame(left));
      }
      return;
    case EventKind::kImmediate:
      if (session != nullptr) session->OnImmediate(event.immediate);
      return;
    case EventKind::kFenced:
      if (session == nullptr) return;
      if (event.id == FenceScope::kEveryTransfer) return session->OnRailFenced(*this, event.rail);
      return session->OnFenced(*this, event.id);
    case EventKind::kDown:
      return user->OnDown(*this, event.status);
    case EventKind::kConnected:
    case EventKind::kCompletion:
    case EventKind::kAccepted:
    case EventKind::kRailDown:
    case EventKind::kRailUp:
      return;
  }
}

void InboundLink::Close(const absl::Status& why) {
  if (closing) return;
  closing = true;
  if (session != nullptr) session->transfers.OnLinkClosing(number);
  endpoint->Shutdown(why);
}

void InboundHub::Accept(size_t backend, std::unique_ptr<Endpoint> endpoint) {
  InboundUser* const user = this;
  auto link = std::make_unique<InboundLink>(&runtime_->timers, user, ++last_link_, backend,
                                            runtime_->Carries(backend),
                                            &arrival_capacities_[backend], std::move(endpoint));
  link->heard = Now();
  link->timer.Set(link->heard + HelloWithin());
  link->handshake = std::make_unique<Handshake>(Handshake::Accepting(runtime_->NewSide(backend)));
  // Each holds a descriptor, a hello and a key, at most Handshake::kMaxMessageBytes each.
  if (unproved_.size() >= DescriptorsForUnproved()) {
    Refuse(*unproved_.front(), RefuseReason::kClosing,
           "too many connections begin at once; try again");
  }
  unproved_.push_back(link.get());
  runtime_->users[link->endpoint.get()] = link.get();
  const InboundLink* key = link.get();
  links_.emplace(key, std::move(link));
}

void InboundHub::CloseLink(InboundLink& link, const absl::Status& why) {
  std::erase(unproved_, &link);
  link.Close(why);
}

void InboundHub::Refuse(InboundLink& link, RefuseReason reason, const std::string& text) {
  const RefuseFrame frame{.reason = reason, .target = runtime_->incarnation, .text = text};
  const std::string message = EncodeMessage(FrameType::kRefuse, 0, 0, frame);
  link.endpoint->Send(std::as_bytes(std::span(message)));
  CloseLink(link, absl::FailedPreconditionError(text));
}

// Nothing of this agent changes for an initiator before it has proved who it is.
void InboundHub::OnHandshake(InboundLink& link, std::span<const std::byte> message) {
  Handshake& handshake = *link.handshake;
  // The second of hello and key is what a signature answers.
  const bool answers = handshake.state() == Handshake::State::kHasHello ||
                       handshake.state() == Handshake::State::kHasKey;
  if (answers && !handshakes_.Take(Now())) {
    return Refuse(link, RefuseReason::kClosing, "too many connections begin at once; try again");
  }
  const auto answer = handshake.Take(message);
  if (!answer.ok()) {
    const std::string why(answer.status().message());
    if (handshake.refusal() == RefuseReason::kNotProved) {
      Log(LogLevel::kWarning, "refused a connection ({}): {}", link.endpoint->Describe().path, why);
    }
    return Refuse(link, handshake.refusal(), why);
  }
  if (!answer->empty() && !link.endpoint->Send(std::as_bytes(std::span(*answer)))) {
    return CloseLink(link, absl::InternalError("no room for the answer to a hello"));
  }
  if (handshake.state() == Handshake::State::kProved) OnProved(link);
}

void InboundHub::OnProved(InboundLink& link) {
  const std::unique_ptr<Handshake> handshake = std::move(link.handshake);
  std::erase(unproved_, &link);
  link.heard = Now();
  link.timer.Set(link.heard + kSilence);
  link.dialled_number = handshake->link();
  InboundSession* session = Attach(link, handshake->hello());
  if (session == nullptr) return;
  link.session = session;
  session->Join(link);
  session->shared->OnLinkUp(link);
  if (auto status = session->channel.OnAck(handshake->hello_ack()); !status.ok()) {
    return session->shared->Fail(status);
  }
  link.endpoint->Authorize();
  session->transfers.AddLink(link.number);
  session->Act(absl::OkStatus());
  SendHelloAck(link, handshake->version());
  if (session->wants_slots) GrantSlots(*session);
  runtime_->presence.LinkUp(session->name, session->initiator);
}

SharedSession& InboundHub::SessionWith(const Incarnation& peer, const std::string& name) {
  std::unique_ptr<SharedSession>& shared = shared_[peer];
  if (shared == nullptr) {
    SharedSession::User* const user = this;
    shared = std::make_unique<SharedSession>(
        &runtime_->timers, user,
        Session::Party{.name = runtime_->options.name, .incarnation = runtime_->incarnation},
        Session::Party{.name = name, .incarnation = peer},
        PeerWatch::Pace{.heartbeat = runtime_->options.heartbeat,
                        .suspect_after = runtime_->options.suspect_after});
  }
  return *shared;
}

void InboundHub::Release(const Incarnation& peer) {
  const auto it = shared_.find(peer);
  if (it == shared_.end() || it->second->in_use()) return;
  if (it->second->session().state() == Session::State::kNew) shared_.erase(it);
}

// The session that `hello` continues or begins; null after a refusal.
InboundSession* InboundHub::Attach(InboundLink& link, const HelloFrame& hello) {
  SharedSession& shared = SessionWith(hello.initiator, hello.name);
  released_.push_back(hello.initiator);
  if (!link.carries && !shared.linked()) {
    Refuse(link, RefuseReason::kCarrier,
           absl::StrCat("control = ", ToAbsl(NameOf(runtime_->options.control)),
                        " here, and no connection carries control frames so; set the same there, "
                        "or leave this backend out"));
    return nullptr;
  }
  Session::Meaning meaning = shared.session().OnHello(hello);
  if (meaning == Session::Meaning::kPeerEnded) {
    shared.End(absl::UnavailableError(absl::StrCat("peer ", hello.name, " began a new session")),
               SharedSession::Ends::kPreceding);
    meaning = shared.session().OnHello(hello);
  }
  const auto known = sessions_.find(hello.initiator);
  InboundSession* const session = known == sessions_.end() ? nullptr : known->second.get();
  if (meaning == Session::Meaning::kEnding || (session != nullptr && session->over())) {
    Refuse(link, RefuseReason::kClosing, "the session before is being closed; try again");
    return nullptr;
  }
  if (meaning == Session::Meaning::kForgotten) {
    Refuse(link, RefuseReason::kSession, "the session is no longer known; start a new one");
    return nullptr;
  }
  if (session == nullptr) return Begin(link, hello, shared);
  if (session->Fits(link)) return session;
  if (shared.linked()) {
    Refuse(link, RefuseReason::kClosing,
           "the slots of its session have no room here over this backend as well");
    return nullptr;
  }
  const absl::Status why =
      absl::UnavailableError("others have taken the room for the slots of the session");
  shared.End(why, SharedSession::Ends::kPreceding);
  Refuse(link, RefuseReason::kSession, absl::StrCat(why.message(), "; start a new one"));
  return nullptr;
}

// The initiator's first connection in its session.
InboundSession* InboundHub::Begin(InboundLink& link, const HelloFrame& hello,
                                  SharedSession& shared) {
  if (stages_.CopiesForGone(hello.initiator)) {
    Refuse(link, RefuseReason::kClosing, "a copy for the session before is not over; try again");
    return nullptr;
  }
  if (runtime_->events.undrained() >
      kMaxUndrainedShares * size_t{runtime_->options.max_notifications}) {
    Refuse(link, RefuseReason::kClosing, "the application here does not take its notifications");
    return nullptr;
  }
  InboundSession::User* const user = this;
  auto session = std::make_unique<InboundSession>(runtime_, user, &shared, &stages_, &slots_,
                                                  ++last_session_id_);
  session->name = hello.name;
  shared.SetTarget(session.get());
  InboundSession* added = session.get();
  sessions_.emplace(hello.initiator, std::move(session));
  added->TellCredit();
  return added;
}

void InboundHub::SendHelloAck(InboundLink& link, uint16_t version) {
  HelloAckFrame ack{.version = version,
                    .target = runtime_->incarnation,
                    .session = link.session->shared->session().number(),
                    .last_region = runtime_->memory.last_region()};
  link.unlisted = {.first = 1, .last = ack.last_region};
  const std::string message = link.session->shared->session().Message(FrameType::kHelloAck, ack);
  if (!link.endpoint->Send(std::as_bytes(std::span(message)))) {
    return link.Close(absl::InternalError("no room for the answer to a hello"));
  }
  link.session->SendPages(link);
}

void InboundHub::OnDown(InboundLink& link, const absl::Status& why) {
  InboundSession* session = link.session;
  std::erase(unproved_, &link);
  runtime_->users.erase(link.endpoint.get());
  auto it = links_.find(&link);
  runtime_->finished.push_back(std::move(it->second));
  links_.erase(it);
  if (session == nullptr) return;
  Leave(*session, link);
  session->Act(session->transfers.OnLinkDown(link.number));
  runtime_->presence.LinkDown(session->name, session->initiator, why);
  // Nothing of it can land any more, and it answers nothing.
  if (session->over() && session->links.empty()) EndQuestions(*session);
  session->shared->OnLinkDown(link, why, Now());
}

void InboundHub::OnSilent(SharedSession& shared, Time heard) {
  const Session::Party& peer = shared.session().peer();
  runtime_->presence.Suspect(peer.name, peer.incarnation, heard, Now());
}

bool InboundHub::Awaits(const InboundSession& session) const {
  return questions_.AnyWaitsFor(session.local_id) || runtime_->leases.IsReading(session.reader()) ||
         runtime_->kv.watched();
}

void InboundHub::AwaitWriters() {
  const Time now = Now();
  for (const auto& [initiator, session] : sessions_) session->shared->Await(now);
}

// It may be gone after this.
void InboundHub::OnUnlinked(SharedSession& shared, const absl::Status& why) {
  const auto it = sessions_.find(shared.peer());
  // As in StartQuiesce: what its initiator has queued must not come in the name of this session.
  if (it != sessions_.end() &&
      (it->second->over() || questions_.AnyWaitsFor(it->second->local_id))) {
    return shared.End(why, SharedSession::Ends::kPreceding);
  }
  SweepBeyondBound();
}

// Nothing of the session can arrive any more (it has no connection): keeps nothing of it. Its
// initiator may know transfers as done whose notifications waited for their turn: that is now, but
// for an initiator that broke the protocol, as one does that sends more than it has credit for.
void InboundHub::OnOver(SharedSession& shared) {
  released_.push_back(shared.peer());
  const auto it = sessions_.find(shared.peer());
  if (it == sessions_.end()) return;
  // What led here may have begun in it.
  const auto& session = over_.emplace_back(std::move(it->second));
  sessions_.erase(it);
  shared.SetTarget(nullptr);
  if (session->state != InboundSession::State::kBroken) {
    auto given = session->transfers.GiveOut();
    session->Deliver(given);
  }
  runtime_->leases.Sweep(session->reader(), Now());
  slots_.Release(session->local_id);
  stages_.Sweep(session->local_id);
  gone_copies_ = stages_.CopiesForGone();
  EndQuestions(*session);
  runtime_->presence.Forget(session->name, session->initiator);
  GrantWaiting();
}

void InboundHub::EndQuestions(const InboundSession& session) {
  if (!questions_.AnyWaitsFor(session.local_id)) return;
  questions_.OnGone(session.local_id, gone_copies_ ? std::optional(kGone) : std::nullopt);
}

// Of sessions with peers that were not added.
void InboundHub::SweepBeyondBound() {
  SharedSession* oldest = nullptr;
  size_t unlinked = 0;
  for (const auto& [peer, shared] : shared_) {
    if (shared->has_initiator() || shared->session().state() != Session::State::kUnlinked) continue;
    ++unlinked;
    if (oldest == nullptr || shared->session().unlinked() < oldest->session().unlinked()) {
      oldest = shared.get();
    }
  }
  if (unlinked > kMaxUnlinked) {
    oldest->End(absl::ResourceExhaustedError("too many sessions have no connection"),
                SharedSession::Ends::kPreceding);
  }
}

// Of staging buffers that others wait for. Who has no connection cannot be asked to give them back.
void InboundHub::SweepHolders() {
  while (stages_.short_of_buffers()) {
    const auto holder = std::ranges::find_if(sessions_, [this](const auto& entry) {
      const InboundSession& session = *entry.second;
      return session.shared->session().state() == Session::State::kUnlinked &&
             stages_.HoldsAny(session.local_id);
    });
    if (holder == sessions_.end()) return;
    holder->second->shared->End(
        absl::UnavailableError("others wait for the staging buffers that it was lent"),
        SharedSession::Ends::kPreceding);
  }
}

Duration InboundHub::HelloWithin() const {
  return std::max<Duration>(kHelloWithin, runtime_->options.connect_timeout);
}

Time InboundHub::OnTimer(InboundLink& link, Time now) {
  if (link.closing) return Time::max();
  const Time due = link.heard + (link.session == nullptr ? HelloWithin() : kSilence);
  if (now < due) return due;
  CloseLink(link, link.session == nullptr ? absl::DeadlineExceededError("no hello came")
                                          : absl::UnavailableError("the initiator is silent"));
  return Time::max();
}

void InboundHub::Close(const absl::Status& why) {
  for (auto& [key, link] : links_) CloseLink(*link, why);
}

bool InboundHub::Remove(std::string_view peer, const absl::Status& why) {
  bool any = false;
  std::vector<SharedSession*> ending;
  for (auto& [initiator, session] : sessions_) {
    if (session->name != peer) continue;
    any = true;
    session->state = InboundSession::State::kRemoved;
    for (InboundLink* link : session->links) link->Close(why);
    if (session->links.empty()) EndQuestions(*session);
    if (!session->shared->has_initiator()) ending.push_back(session->shared);
  }
  for (SharedSession* const shared : ending) shared->End(why, SharedSession::Ends::kAll);
  return any;
}

absl::StatusOr<QuestionBook::Question> InboundHub::StartQuiesce(const QuiesceScope& scope) {
  if (scope.regions.size() > kMaxListedRegions) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Quiesce of ", scope.regions.size(), " regions; one call names at most ", kMaxListedRegions,
        ": leave the list empty to mean all, or call several times"));
  }
  if (auto status = questions_.CheckSpace(); !status.ok()) return status;
  return Ask(scope, false);
}

uint64_t InboundHub::StartRevoke(std::span<const RegionId> regions) {
  return Ask({.peer = {}, .regions = {regions.begin(), regions.end()}}, true).token;
}

QuestionBook::Question& InboundHub::Ask(const QuiesceScope& scope, bool revoke) {
  QuestionBook::Question& question = questions_.Open(revoke);
  std::set<SlotTable::SessionId> waiting;
  QuiesceFrame frame{.id = question.token, .all_regions = scope.regions.empty(), .revoke = revoke};
  for (RegionId region : scope.regions) frame.regions.push_back(static_cast<uint32_t>(region));
  std::vector<SharedSession*> gone;
  const Time now = Now();
  for (auto& [initiator, session] : sessions_) {
    if (!scope.peer.empty() && session->name != scope.peer) continue;
    // Nothing of it can land any more.
    if (session->over() && session->links.empty()) continue;
    if (session->shared->session().state() == Session::State::kUnlinked) {
      // Without a connection nothing lands; and what its initiator still has queued must not come
      // later in the name of this session.
      gone.push_back(session->shared);
      continue;
    }
    waiting.insert(session->local_id);
    session->shared->Await(now);
    if (!session->over()) session->channel.Push(FrameType::kQuiesce, frame);
  }
  for (SharedSession* const shared : gone) {
    shared->End(absl::UnavailableError("the peer is not connected, and memory has to be quiet"),
                SharedSession::Ends::kPreceding);
  }
  if (gone_copies_) waiting.insert(kGone);
  questions_.Ask(question, std::move(waiting));
  return question;
}

std::string InboundHub::Pending(uint64_t token) const {
  ShortList pending;
  const auto* const waiting = questions_.WaitingOf(token);
  if (waiting == nullptr) return {};
  for (const auto& [initiator, session] : sessions_) {
    if (!waiting->contains(session->local_id) || !pending.Add()) continue;
    const std::string silence =
        runtime_->presence.SilenceOf(session->name, session->initiator, Now());
    pending.Name(silence.empty() ? session->name : absl::StrCat(session->name, " (", silence, ")"));
  }
  return pending.Text();
}

}  // namespace kvxfer
