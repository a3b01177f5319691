#include "src/transport/endpoint_hub.h"

#include <algorithm>
#include <utility>

#include "src/core/base/descriptor_share.h"
#include "src/core/base/log.h"
#include "src/core/base/strings.h"
#include "src/transport/control_endpoint.h"
#include "src/transport/event_queue.h"

namespace kvxfer::net {
namespace {

constexpr size_t kMaxHalfOpen = 256;
// After looking for it this often in vain no further message is expected.
constexpr uint32_t kMaxLooks = 1024;

// The host without the port, because the port in `advertise` is another backend's.
std::string HostOf(const std::string& advertise) {
  const size_t colon = advertise.rfind(':');
  if (colon == std::string::npos || advertise.find(']', colon) != std::string::npos) {
    return advertise;
  }
  const bool has_port = advertise.find(':') == colon || advertise[colon - 1] == ']';
  return has_port ? advertise.substr(0, colon) : advertise;
}

}  // namespace

EndpointHub::EndpointHub(Settings settings, Client* client)
    : settings_(std::move(settings)), client_(client) {}

EndpointHub::~EndpointHub() { Close(); }

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
  AgentOptions told = options;
  if (!settings_.has_agent_port) {
    if (own.empty()) at->front().set_port(0);
    told.advertise = HostOf(options.advertise);
  }
  absl::StatusOr<SocketAddress> listening = ListenAlso(at->front());
  if (!listening.ok()) return listening.status();
  absl::StatusOr<std::vector<SocketAddress>> advertised = Advertised(told, *listening);
  if (!advertised.ok()) return advertised.status();
  advertised_ = *std::move(advertised);
  return absl::OkStatus();
}

absl::StatusOr<SocketAddress> EndpointHub::ListenAlso(const SocketAddress& at) {
  absl::StatusOr<std::unique_ptr<Listener>> listener = Listener::Create(reactor_.get(), this, at);
  if (!listener.ok()) return listener.status();
  listeners_.push_back(*std::move(listener));
  return listeners_.back()->address();
}

void EndpointHub::Close() {
  // Endpoints that were never reported are destroyed here, or with the events that hold them.
  half_open_.clear();
  sink_.TakeQueue().clear();
  for (ControlEndpoint* endpoint : std::exchange(endpoints_, {})) endpoint->Detach();
  active_.clear();
  unproved_.clear();
  rescheduled_.clear();
  timers_.clear();
  listeners_.clear();
  lingering_.Clear();
}

void EndpointHub::Dial(ControlEndpoint* endpoint) {
  endpoints_.push_back(endpoint);
  endpoint->Dial();
  SetTimer();
}

void EndpointHub::OnPreamble(Fd fd, const Preamble& preamble, const std::string& from) {
  if (preamble.version != kStreamVersion) {
    Log(LogLevel::kDebug, "{}: {} speaks version {} of the tcp streams, we {}", settings_.backend,
        from, preamble.version, kStreamVersion);
    return Refuse(fd, WelcomeCode::kWrongVersion);
  }
  const bool ours = preamble.service == settings_.service && preamble.role == Role::kControl;
  if (!ours && client_->TakeStream(fd, preamble, from)) return;
  if (preamble.target != settings_.incarnation) {
    return Refuse(fd, WelcomeCode::kWrongIncarnation);
  }
  if (ours) return Accept(std::move(fd), preamble, from);
  // A stream for another service, or a data stream, has no answer here.
  reactor_->Remove(fd.get());
}

void EndpointHub::Refuse(const Fd& fd, WelcomeCode code) {
  Answer(fd, {.code = code});
  reactor_->Remove(fd.get());
}

void EndpointHub::Accept(Fd fd, const Preamble& preamble, const std::string& from) {
  const LinkId id = settings_.has_data_streams ? Incarnation::Random().bytes : LinkId{};
  Answer(fd, {.code = WelcomeCode::kJoin, .link = id});
  // Beyond the limit the oldest half-open endpoint goes, so that peers that never join cannot
  // exhaust memory.
  if (half_open_.size() >= kMaxHalfOpen) half_open_.erase(half_open_.begin());
  half_open_.push_back(client_->Accept(
      {.control = std::move(fd), .from = from, .rails = preamble.rails, .link = id}));
  ControlEndpoint* const endpoint = half_open_.back().get();
  endpoints_.push_back(endpoint);
  unproved_.push_back({.since = Now(), .endpoint = endpoint});
  Reschedule(endpoint);
  if (!settings_.has_data_streams) Report(endpoint);
}

size_t EndpointHub::UnprovedDescriptors() const {
  size_t descriptors = 0;
  for (const auto& listener : listeners_) descriptors += listener->inbound();
  for (const Unproved& one : unproved_) descriptors += one.endpoint->descriptors();
  return descriptors;
}

void EndpointHub::KeepShare() {
  const size_t share = DescriptorsForUnproved();
  while (UnprovedDescriptors() > share && EndOldestUnproved()) {
  }
}

bool EndpointHub::EndOldestUnproved() {
  Listener* silent = nullptr;  // the listener of the oldest stream without a preamble
  for (const auto& listener : listeners_) {
    const std::optional<Time> oldest = listener->oldest();
    if (oldest && (silent == nullptr || *oldest < *silent->oldest())) silent = listener.get();
  }
  if (silent != nullptr && (unproved_.empty() || *silent->oldest() <= unproved_.front().since)) {
    silent->EndOldest();
    return true;
  }
  if (unproved_.empty()) return false;
  ControlEndpoint* const oldest = unproved_.front().endpoint;
  const auto half = std::ranges::find(half_open_, oldest, &std::unique_ptr<ControlEndpoint>::get);
  if (half != half_open_.end()) {
    half_open_.erase(half);
  } else {
    oldest->Drop(absl::ResourceExhaustedError("too many connections begin at once"));
  }
  return true;
}

void EndpointHub::NotUnproved(ControlEndpoint* endpoint) {
  std::erase_if(unproved_, [endpoint](const Unproved& one) { return one.endpoint == endpoint; });
}

void EndpointHub::Report(ControlEndpoint* endpoint) {
  const auto half = std::ranges::find(half_open_, endpoint, &std::unique_ptr<ControlEndpoint>::get);
  // Before its first frame is sent: the agent must get the event before any other of this endpoint.
  sink_.Emit(MakeAccepted(std::move(*half)));
  half_open_.erase(half);
  endpoint->OnReported();
}

bool EndpointHub::Begin(std::span<Event> out, bool readable) {
  ++poll_number_;
  sink_.Begin(out);
  // The caller's span is full with events that waited; no work, so that messages stay valid.
  if (sink_.full()) return false;
  receive_space_.BeginTurn();
  if (readable) reactor_->Collect();
  return true;
}

void EndpointHub::ReadExpected() {
  if (expected_ == nullptr) return;
  if (++looks_ > kMaxLooks) {
    expected_ = nullptr;
    return;
  }
  expected_->ReadControl();
}

void EndpointHub::Work() {
  if (next_deadline_ && *next_deadline_ <= Now()) OnDeadlines();
  for (const auto& listener : listeners_) listener->Work();
  WorkEndpoints();
  // After the endpoints: what they closed in this turn starts to linger at once.
  lingering_.Work();
  SetTimer();
}

void EndpointHub::WorkEndpoints() {
  // Work on one endpoint may activate others; it destroys none.
  const size_t count = active_.size();
  // Another endpoint goes first in each turn. When the sink is full, the endpoints that are left
  // keep their work.
  const size_t first = turn_++;
  for (size_t i = 0; i < count && !sink_.full(); ++i) active_[(first + i) % count]->Work();
  std::erase_if(active_, [](ControlEndpoint* endpoint) {
    endpoint->active = endpoint->HasWork();
    return !endpoint->active;
  });
}

bool EndpointHub::HasWork() const {
  const auto has_work = [](const auto& each) { return each->HasWork(); };
  return sink_.waiting() || lingering_.HasWork() || std::ranges::any_of(listeners_, has_work) ||
         std::ranges::any_of(active_, has_work);
}

std::optional<Time> EndpointHub::NextDeadline() const {
  std::optional<Time> next = Earlier(client_->deadline(), lingering_.deadline());
  for (const auto& listener : listeners_) next = Earlier(next, listener->deadline());
  return timers_.empty() ? next : Earlier(next, timers_.begin()->first);
}

void EndpointHub::SetTimer() {
  for (ControlEndpoint* endpoint : rescheduled_) SetTimerOf(endpoint);
  rescheduled_.clear();
  const std::optional<Time> next = NextDeadline();
  // The client's deadline may move away in every turn, and nobody reports that. The timer then
  // stays: one wake-up in vain costs less than a system call in every turn.
  const bool near_enough = next_deadline_ && (!next || *next_deadline_ <= *next);
  if (!std::exchange(timers_changed_, false) && near_enough) return;
  next_deadline_ = next;
  reactor_->SetTimer(next);
}

void EndpointHub::OnDeadlines() {
  const Time now = Now();
  timers_changed_ = true;
  for (const auto& listener : listeners_) listener->OnDeadline(now);
  std::vector<ControlEndpoint*> late;
  for (const auto& [when, endpoint] : timers_) {
    if (when > now) break;
    late.push_back(endpoint);
  }
  // Handling one deadline may end another endpoint, but destroys none.
  for (ControlEndpoint* endpoint : late) {
    if (endpoint->deadline() && *endpoint->deadline() <= now) endpoint->OnDeadline(now);
    Reschedule(endpoint);
  }
  // An endpoint that went down before it was reported belongs to no agent.
  std::erase_if(half_open_, [](const auto& endpoint) { return endpoint->down(); });
  client_->OnDeadline(now);
  lingering_.OnDeadline(now);
}

void EndpointHub::Reschedule(ControlEndpoint* endpoint) {
  if (!std::exchange(endpoint->rescheduled, true)) rescheduled_.push_back(endpoint);
}

void EndpointHub::SetTimerOf(ControlEndpoint* endpoint) {
  endpoint->rescheduled = false;
  const std::optional<Time> deadline = endpoint->deadline();
  if (deadline == endpoint->timer) return;
  if (endpoint->timer) timers_.erase({*endpoint->timer, endpoint});
  if (deadline) timers_.emplace(*deadline, endpoint);
  endpoint->timer = deadline;
  timers_changed_ = true;
}

void EndpointHub::Activate(ControlEndpoint* endpoint) {
  if (std::exchange(endpoint->active, true)) return;
  active_.push_back(endpoint);
}

void EndpointHub::Forget(ControlEndpoint* endpoint) {
  std::erase(endpoints_, endpoint);
  std::erase(active_, endpoint);
  std::erase(rescheduled_, endpoint);
  NotUnproved(endpoint);
  if (endpoint->timer) timers_.erase({*endpoint->timer, endpoint});
  if (expected_ == endpoint) expected_ = nullptr;
  sink_.Purge(endpoint);
  timers_changed_ = true;
}

void EndpointHub::Linger(Fd control, std::vector<Fd> data, std::string queued) {
  if (!control.valid()) return;
  lingering_.Add(reactor_.get(), std::move(control), std::move(data), std::move(queued));
  timers_changed_ = true;
}

}  // namespace kvxfer::net
