#include "src/transport/endpoint_hub.h"

#include <algorithm>
#include <utility>

#include "src/core/base/strings.h"
#include "src/transport/control_endpoint.h"
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

absl::Status EndpointHub::Open() {
  absl::StatusOr<std::unique_ptr<Reactor>> reactor = Reactor::Create();
  if (!reactor.ok()) return Annotate(reactor.status(), settings_.backend);
  reactor_ = *std::move(reactor);
  return absl::OkStatus();
}

absl::Status EndpointHub::Listen(const AgentOptions& options, const std::string& own,
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

void EndpointHub::Close() {
  // Endpoints that were never reported are destroyed with the events that hold them.
  sink_.TakeQueue().clear();
  for (ControlEndpoint* endpoint : std::exchange(endpoints_, {})) endpoint->Detach();
  active_.clear();
  listener_.reset();
  lingering_.Clear();
}

void EndpointHub::Dial(ControlEndpoint* endpoint) {
  endpoints_.push_back(endpoint);
  endpoint->Dial();
  SetTimer();
}

void EndpointHub::OnPreamble(Fd fd, const Preamble& preamble, const std::string& from) {
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
  std::unique_ptr<ControlEndpoint> endpoint = client_->Accept(std::move(fd), from);
  ControlEndpoint* const accepted = endpoint.get();
  endpoints_.push_back(accepted);
  // Accepted before it sends its hello: the agent must get the event before any event of this
  // endpoint.
  sink_.Emit(MakeAccepted(std::move(endpoint)));
  accepted->SayHello();
  Activate(accepted);
}

bool EndpointHub::Begin(std::span<Event> out, bool readable) {
  ++poll_number_;
  sink_.Begin(out);
  // The caller's span is full with events that waited; no work, so that messages stay valid.
  if (sink_.full()) return false;
  if (readable) reactor_->Collect();
  return true;
}

void EndpointHub::Work() {
  if (next_deadline_ && *next_deadline_ <= Now()) OnDeadlines();
  listener_->Work();
  WorkEndpoints();
  // After the endpoints: what they closed in this turn starts to linger at once.
  lingering_.Work();
  SetTimer();
}

void EndpointHub::WorkEndpoints() {
  // A copy: work on one endpoint may activate others (it destroys none).
  for (ControlEndpoint* endpoint : std::vector<ControlEndpoint*>(active_)) {
    if (!sink_.full()) endpoint->Work();
  }
  std::erase_if(active_, [](ControlEndpoint* endpoint) {
    endpoint->active = endpoint->HasWork();
    return !endpoint->active;
  });
}

bool EndpointHub::HasWork() const {
  return sink_.waiting() || listener_->HasWork() || lingering_.HasWork() ||
         std::ranges::any_of(active_,
                             [](const ControlEndpoint* endpoint) { return endpoint->HasWork(); });
}

std::optional<Time> EndpointHub::UnreportedDeadline() const {
  return Earlier(listener_->deadline(), client_->deadline());
}

std::optional<Time> EndpointHub::NextDeadline() const {
  std::optional<Time> next = Earlier(UnreportedDeadline(), lingering_.deadline());
  for (const ControlEndpoint* endpoint : endpoints_) next = Earlier(next, endpoint->deadline());
  return next;
}

void EndpointHub::SetTimer() {
  const std::optional<Time> unreported = UnreportedDeadline();
  // Endpoints report changes of their deadlines (TimersChanged); the listener and the client do
  // not, so theirs is compared in every turn. Asking all endpoints costs O(endpoints) and happens
  // only after a change.
  if (!timers_changed_ && (!unreported || (next_deadline_ && *next_deadline_ <= *unreported)))
    return;
  timers_changed_ = false;
  next_deadline_ = NextDeadline();
  reactor_->SetTimer(next_deadline_);
}

void EndpointHub::OnDeadlines() {
  const Time now = Now();
  timers_changed_ = true;
  listener_->OnDeadline(now);
  // Handling one deadline may end another endpoint, but destroys none.
  for (ControlEndpoint* endpoint : std::vector<ControlEndpoint*>(endpoints_)) {
    if (endpoint->deadline() && *endpoint->deadline() <= now) endpoint->OnDeadline(now);
  }
  client_->OnDeadline(now);
  lingering_.OnDeadline(now);
}

void EndpointHub::Activate(ControlEndpoint* endpoint) {
  if (std::exchange(endpoint->active, true)) return;
  active_.push_back(endpoint);
}

void EndpointHub::Forget(ControlEndpoint* endpoint) {
  std::erase(endpoints_, endpoint);
  std::erase(active_, endpoint);
  sink_.Purge(endpoint);
  timers_changed_ = true;
}

void EndpointHub::Linger(Fd control, std::string queued) {
  if (!control.valid()) return;
  lingering_.Add(reactor_.get(), std::move(control), {}, std::move(queued));
  timers_changed_ = true;
}

}  // namespace kvxfer::net
