// UcxBackend: Poll. Within UCX's progress frames are handled and answers queued. Endpoints are
// closed only afterwards, because UCX forbids it within its callbacks; most sending also happens
// afterwards.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/backends/ucx/backend.h"
#include "src/core/base/log.h"
#include "src/core/base/strings.h"

namespace kvxfer::ucx {
namespace {

// How often one Poll calls UCX's progress; each call receives a handful of frames.
constexpr int kProgressPerPoll = 16;
// How many bytes all endpoints send in one Poll, and how many one endpoint sends before the next
// endpoint's turn.
constexpr size_t kSentPerPoll = 1024 * 1024;
constexpr size_t kSentPerEndpoint = 256 * 1024;
// Above this many paths, connections to the listener are rejected and hellos of new workers
// dropped.
constexpr size_t kMaxPaths = 4096;
// How many connections one Poll accepts. Over RDMA UCX makes queue pairs for each.
constexpr int kAcceptedPerPoll = 4;
// How many hellos may wait; one Poll answers one.
constexpr size_t kMaxHellos = 1024;
// How many paths without endpoints are kept for reuse.
constexpr size_t kMaxIdlePaths = 64;
// UCX refuses to be armed while sends wait for a peer that takes nothing, and no descriptor becomes
// readable for them. After kBusyArms refusals the backend lets the agent sleep anyway, for
// kShortNap and then longer each time, up to kNap.
constexpr uint32_t kBusyArms = 64;
constexpr Duration kShortNap = std::chrono::microseconds(20);
constexpr Duration kNap = std::chrono::milliseconds(1);

}  // namespace

size_t UcxBackend::Poll(std::span<Event> out, Input input) {
  if (events_.size() < out.size()) {
    if (input == Input::kAll) reactor_->Collect();
    Progress(out.size());
    FailPaths();
    EndLateDials();
    TakeConnections();
    TakeHello();
    SendAll();
  }
  return events_.Take(out);
}

// Runs even if nothing is readable: for frames through shared memory progress sees them before the
// descriptor shows them.
void UcxBackend::Progress(size_t space) {
  left_over_ = true;
  for (int i = 0; i < kProgressPerPoll && events_.size() < space; ++i) {
    if (worker_->Progress() == 0) {
      left_over_ = false;
      return;
    }
    busy_arms_ = 0;
  }
}

void UcxBackend::OnFrame(std::span<const std::byte> frame, ucp_ep_h from) {
  absl::StatusOr<FrameHead> head = DecodeFrameHead(frame);
  if (!head.ok()) {
    Log(LogLevel::kDebug, "ucx: a frame is passed over: {}", std::string(head.status().message()));
    return;
  }
  const std::span<const std::byte> body = frame.subspan(kFrameHeadBytes);
  if (head->kind != FrameKind::kHello) {
    const auto it = endpoints_.find(head->cookie);
    if (it == endpoints_.end()) return OnStray(*head, body);
    return it->second->OnFrame(*head, body);
  }
  absl::StatusOr<Hello> hello = DecodeHello(body);
  // A hello from this very worker is not answered: UCX would deliver the answer by calling back in
  // the middle of a send.
  const bool own = hello.ok() && hello->worker == worker_->address();
  if (!hello.ok() || hello->version != kWireVersion || own || callers_.size() >= kMaxHellos) {
    Log(LogLevel::kDebug,
        "ucx: a hello is not answered: it makes no sense, is of another version, "
        "or one of too many");
    return;
  }
  // A hello over an accepted connection is answered over that connection, any other by worker
  // address.
  std::string place = kByWorker + hello->worker;
  if (from != nullptr) {
    const auto back =
        std::ranges::find_if(paths_, [from](const auto& entry) { return entry.second->Is(from); });
    if (back == paths_.end()) return;  // the path has failed already
    place = back->first;
  }
  callers_.push_back({.hello = *std::move(hello), .place = std::move(place)});
}

// A frame for an endpoint that has ended or never existed. The peer of an endpoint that ended
// without a bye is sent one now, once.
void UcxBackend::OnStray(const FrameHead& head, std::span<const std::byte> body) {
  const auto it = ended_.find(head.cookie);
  // Answering a bye would make two sides without the endpoint answer each other.
  if (it == ended_.end() || head.kind == FrameKind::kBye) return;
  Ended ended = it->second;
  // If the endpoint ended before the peer's welcome arrived, the welcome brings the cookie that the
  // bye has to name.
  if (head.kind == FrameKind::kWelcome && ended.peer_cookie == 0) {
    ended.peer_cookie = DecodeWelcome(body).value_or(ucx::Welcome{}).cookie;
  }
  const auto path = paths_.find(ended.place);
  // Without space the entry stays, and the peer's next frame is answered.
  if (ended.peer_cookie == 0 || path == paths_.end() || !path->second->space()) return;
  ended_.erase(it);
  Refuse(path->second.get(), ended.peer_cookie, "the connection has ended");
}

void UcxBackend::Refuse(Path* path, uint64_t cookie, std::string_view why) {
  if (!path->space()) return;
  path->Begin().Append(std::as_bytes(std::span(why)));
  // A bye without order: no endpoint's sequence has a number for it.
  path->Send({.kind = FrameKind::kBye, .cookie = cookie});
}

// UCX does not report a peer whose process exists and does not answer, for example because it is
// stopped. dialling_ is sorted by age, so the first endpoint that is young enough ends the search.
void UcxBackend::EndLateDials() {
  if (dialling_.empty()) return;
  const Time late = Now() - connect_timeout_;
  while (!dialling_.empty() && dialling_.front()->made() <= late) {
    // Shutdown removes the endpoint from dialling_ through Forget.
    dialling_.front()->Shutdown(absl::UnavailableError(
        absl::StrCat("no answer within ", connect_timeout_ / std::chrono::milliseconds(1), " ms")));
  }
}

void UcxBackend::TakeConnections() {
  if (listener_ == nullptr) return;
  for (int i = 0; i < kAcceptedPerPoll; ++i) {
    ucp_conn_request_h const request = listener_->Take();
    if (request == nullptr) return;
    if (paths_.size() >= kMaxPaths) {
      listener_->Reject(request);
      continue;
    }
    auto path = Path::Accept(parts(), request);
    if (path.ok()) {
      std::string place = (*path)->place();
      paths_.emplace(std::move(place), *std::move(path));
    } else {
      Log(LogLevel::kWarning, "ucx: a connection is not accepted: {}",
          std::string(path.status().message()));
    }
  }
}

void UcxBackend::TakeHello() {
  if (callers_.empty()) return;
  const Caller caller = std::move(callers_.front());
  callers_.pop_front();
  const bool known = paths_.contains(caller.place);
  // An accepted path that is gone cannot be opened from here: the caller made that connection.
  if (!known && (caller.place.front() != kByWorker || paths_.size() >= kMaxPaths)) return;
  Welcome(caller.hello, caller.place);
}

// Nothing of the hello is proved: it costs the caller's own endpoint, and nobody else's.
void UcxBackend::Welcome(const Hello& hello, const std::string& place) {
  auto path = PathTo(place, hello.reports_failure);
  if (!path.ok()) {
    Log(LogLevel::kWarning, "ucx: a peer that connects cannot be answered: {}",
        std::string(path.status().message()));
    return;
  }
  if (hello.target != incarnation_) {
    // The caller used the metadata of an earlier agent with the same address.
    return Refuse(*path, hello.cookie, "another agent lives here: the one meant has restarted");
  }
  if ((*path)->reports_failure() != hello.reports_failure) {
    // UCX could not join such ends, and would fail this one, which another peer may need.
    Log(LogLevel::kDebug,
        "ucx: a hello is not answered: its UCX endpoint {} failures, and the one here {}",
        hello.reports_failure ? "reports" : "does not report",
        hello.reports_failure ? "cannot" : "can");
    return;
  }
  if (place.front() != kByWorker) {
    // The connection is the caller's own, so its id is known from the first hello on. A new path of
    // the caller comes with a connection of its own.
    if ((*path)->peer_id() == 0) (*path)->set_peer_id(hello.path);
    if ((*path)->peer_id() != hello.path) {
      return Refuse(*path, hello.cookie, "a connection does not change its path");
    }
  }
  if (!MakeSpace()) {
    return Refuse(*path, hello.cookie, "this agent has as many connections as it takes");
  }
  ++accepted_;
  auto endpoint = std::make_unique<UcxEndpoint>(this, *path, hello);
  endpoints_.emplace(endpoint->cookie(), endpoint.get());
  unproved_.push_back(endpoint.get());
  Activate(endpoint.get());
  events_.Push(MakeAccepted(std::move(endpoint)));
}

bool UcxBackend::MakeSpace() {
  if (accepted_ < kMaxAccepted && unproved_.size() < MaxUnproved()) return true;
  if (unproved_.empty()) return false;
  unproved_.front()->Shutdown(absl::ResourceExhaustedError("too many connections begin at once"));
  return true;
}

void UcxBackend::FailPaths() {
  // Here, outside UCX's callbacks, endpoints may be closed.
  for (auto it = paths_.begin(); it != paths_.end();) {
    Path* const path = (it++)->second.get();
    if (path->failed()) DropPath(path);
  }
  std::erase_if(closing_, [](const auto& path) { return path->closed(); });
  TrimPaths();
}

void UcxBackend::TrimPaths() {
  if (paths_.size() <= kMaxIdlePaths) return;
  // A path that was just accepted has no endpoint because its peer has not sent a hello yet.
  const Time young = Now() - connect_timeout_;
  const auto idle = [young](const auto& entry) {
    const Path& path = *entry.second;
    return path.endpoints.empty() && (path.place().front() != kAccepted || path.made() < young);
  };
  size_t excess = static_cast<size_t>(std::ranges::count_if(paths_, idle));
  for (auto it = paths_.begin(); it != paths_.end() && excess > kMaxIdlePaths;) {
    const auto entry = it++;
    if (!idle(*entry)) continue;
    DropPath(entry->second.get());
    --excess;
  }
}

// The endpoints take turns, so that one endpoint's bulk data does not delay another's messages.
void UcxBackend::SendAll() {
  size_t left = kSentPerPoll;
  // A copy: Pump may end an endpoint, which removes it from active_.
  const std::vector<UcxEndpoint*> endpoints = active_;
  const size_t first = endpoints.empty() ? 0 : turn_++ % endpoints.size();
  for (size_t i = 0; i < endpoints.size() && left > 0; ++i) {
    size_t budget = std::min(left, kSentPerEndpoint);
    left -= budget;
    endpoints[(first + i) % endpoints.size()]->Pump(budget);
    left += budget;
  }
  std::erase_if(active_, [](const UcxEndpoint* endpoint) { return !endpoint->WantsToSend(); });
}

bool UcxBackend::HasWork() const {
  if (!events_.empty() || !callers_.empty() || left_over_) return true;
  if (listener_ != nullptr && listener_->waiting()) return true;
  const auto failed = [](const auto& entry) { return entry.second->failed(); };
  if (std::ranges::any_of(paths_, failed)) return true;
  return std::ranges::any_of(active_, [](const UcxEndpoint* endpoint) {
    return endpoint->WantsToSend() && endpoint->path()->space();
  });
}

bool UcxBackend::Arm() {
  // Arming tells UCX to make fd() readable at the next event. UCX refuses if events wait already.
  if (HasWork()) return false;
  if (worker_->Arm()) {
    busy_arms_ = 0;
    if (!dialling_.empty()) {
      // Wakes the agent in time for EndLateDials.
      reactor_->SetTimer(
          std::max<Time>(dialling_.front()->made() + connect_timeout_, Now() + kNap));
    }
    return true;
  }
  if (++busy_arms_ < kBusyArms) return false;
  reactor_->SetTimer(Now() + std::min<Duration>(kNap, (busy_arms_ - kBusyArms + 1) * kShortNap));
  return true;
}

}  // namespace kvxfer::ucx
