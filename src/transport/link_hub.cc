#include "src/transport/link_hub.h"

#include <algorithm>
#include <utility>

#include "src/core/base/strings.h"
#include "src/transport/control_link.h"
#include "src/transport/dialler.h"
#include "src/transport/event_queue.h"

namespace kvxfer::net {
namespace {

// The host without the port, because the port in `advertise` is tcp's.
std::string HostOf(const std::string& advertise) {
  const size_t colon = advertise.rfind(':');
  if (colon == std::string::npos || advertise.find(']', colon) != std::string::npos) {
    return advertise;
  }
  const bool has_port = advertise.find(':') == colon || advertise[colon - 1] == ']';
  return has_port ? advertise.substr(0, colon) : advertise;
}

}  // namespace

absl::Status LinkHub::Open() {
  absl::StatusOr<std::unique_ptr<Reactor>> reactor = Reactor::Create();
  if (!reactor.ok()) return Annotate(reactor.status(), settings_.backend);
  reactor_ = *std::move(reactor);
  return absl::OkStatus();
}

absl::Status LinkHub::Listen(const AgentOptions& options, const std::string& own,
                             std::string_view own_name) {
  absl::StatusOr<std::vector<SocketAddress>> at =
      Resolve(own.empty() ? options.listen : own, kDefaultPort, Names::kResolve);
  if (!at.ok()) {
    return Annotate(at.status(), own.empty() ? "`listen` (KVXFER_LISTEN)" : own_name);
  }
  // `listen` names tcp's port, so this listener takes any free one.
  if (own.empty()) at->front().set_port(0);
  absl::StatusOr<std::unique_ptr<Listener>> listener =
      Listener::Create(reactor_.get(), this, at->front());
  if (!listener.ok()) return listener.status();
  listener_ = *std::move(listener);
  AgentOptions told = options;
  told.advertise = HostOf(options.advertise);
  absl::StatusOr<std::vector<SocketAddress>> advertised = Advertised(told, listener_->address());
  if (!advertised.ok()) return advertised.status();
  advertised_ = *std::move(advertised);
  return absl::OkStatus();
}

void LinkHub::Close() {
  // Endpoints that were never reported are destroyed with the events that hold them.
  sink_.TakeQueue().clear();
  for (ControlLink* link : std::exchange(links_, {})) link->Detach();
  active_.clear();
  listener_.reset();
  lingering_.Clear();
}

void LinkHub::Dial(ControlLink* link) {
  links_.push_back(link);
  link->Dial();
  SetTimer();
}

void LinkHub::OnPreamble(Fd fd, const Preamble& preamble, const std::string& from) {
  Welcome welcome;
  if (preamble.version != kStreamVersion) {
    welcome.code = WelcomeCode::kWrongVersion;
  } else if (preamble.target != settings_.incarnation) {
    welcome.code = WelcomeCode::kWrongIncarnation;
  } else if (preamble.service != settings_.service || preamble.role != Role::kControl) {
    // A stream for another service, or a data stream, has no answer here.
    reactor_->Remove(fd.get());
    return;
  }
  Answer(fd, welcome);
  if (welcome.code != WelcomeCode::kJoin) {
    reactor_->Remove(fd.get());
    return;
  }
  SetUserTimeout(fd.get(), Dialler::kUserTimeoutMs);
  TuneIfLocal(fd.get());
  std::unique_ptr<ControlLink> link = owner_->Accept(std::move(fd), from);
  ControlLink* const accepted = link.get();
  links_.push_back(accepted);
  // Accepted before it sends its hello: the agent must get the event before any event of this link.
  sink_.Emit(MakeAccepted(std::move(link)));
  accepted->SayHello();
  Activate(accepted);
}

bool LinkHub::Begin(std::span<Event> out, bool readable) {
  ++poll_number_;
  sink_.Begin(out);
  // The caller's span is full with events that waited; no work, so that messages stay valid.
  if (sink_.full()) return false;
  if (readable) reactor_->Collect();
  return true;
}

void LinkHub::Work() {
  if (next_deadline_ && *next_deadline_ <= Now()) OnDeadlines();
  listener_->Work();
  WorkLinks();
  // After the links: what they closed in this turn starts to linger at once.
  lingering_.Work();
  SetTimer();
}

void LinkHub::WorkLinks() {
  // A copy: work on one link may activate others (it destroys none).
  for (ControlLink* link : std::vector<ControlLink*>(active_)) {
    if (!sink_.full()) link->Work();
  }
  std::erase_if(active_, [](ControlLink* link) {
    link->active = link->HasWork();
    return !link->active;
  });
}

bool LinkHub::HasWork() const {
  return sink_.waiting() || listener_->HasWork() || lingering_.HasWork() ||
         std::ranges::any_of(active_, [](const ControlLink* link) { return link->HasWork(); });
}

std::optional<Time> LinkHub::UnreportedDeadline() const {
  return Earlier(listener_->deadline(), owner_->deadline());
}

std::optional<Time> LinkHub::NextDeadline() const {
  std::optional<Time> next = Earlier(UnreportedDeadline(), lingering_.deadline());
  for (const ControlLink* link : links_) next = Earlier(next, link->deadline());
  return next;
}

void LinkHub::SetTimer() {
  const std::optional<Time> unreported = UnreportedDeadline();
  // Links report changes of their deadlines (TimersChanged); the listener and the owner do not, so
  // theirs is compared in every turn. Asking all links costs O(links) and happens only after a
  // change.
  if (!timers_changed_ && (!unreported || (next_deadline_ && *next_deadline_ <= *unreported)))
    return;
  timers_changed_ = false;
  next_deadline_ = NextDeadline();
  reactor_->SetTimer(next_deadline_);
}

void LinkHub::OnDeadlines() {
  const Time now = Now();
  timers_changed_ = true;
  listener_->OnDeadline(now);
  // Handling one deadline may end another link, but destroys none.
  for (ControlLink* link : std::vector<ControlLink*>(links_)) {
    if (link->deadline() && *link->deadline() <= now) link->OnDeadline(now);
  }
  owner_->OnDeadline(now);
  lingering_.OnDeadline(now);
}

void LinkHub::Activate(ControlLink* link) {
  if (std::exchange(link->active, true)) return;
  active_.push_back(link);
}

void LinkHub::Forget(ControlLink* link) {
  std::erase(links_, link);
  std::erase(active_, link);
  sink_.Purge(link);
  timers_changed_ = true;
}

void LinkHub::Linger(Fd control, std::string queued) {
  if (!control.valid()) return;
  lingering_.Add(reactor_.get(), std::move(control), {}, std::move(queued));
  timers_changed_ = true;
}

}  // namespace kvxfer::net
