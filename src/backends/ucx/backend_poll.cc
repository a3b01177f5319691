// Turns. Within UCX's progress frames are taken and answers noted; what closes endpoints, and most
// of what sends, comes after it.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/backends/ucx/backend.h"
#include "src/core/base/log.h"
#include "src/core/base/strings.h"

namespace kvxfer::ucx {
namespace {

// Calls of UCX's progress in one turn; each takes in a handful of frames.
constexpr int kProgressPerPoll = 16;
// What all links make frames of in one turn, and one link before the next has its turn.
constexpr size_t kSentPerPoll = 1024 * 1024;
constexpr size_t kSentPerLink = 256 * 1024;
// More connections to the listener are rejected, more hellos of new workers dropped.
constexpr size_t kMaxPaths = 4096;
// Over RDMA each makes queue pairs.
constexpr int kAcceptedPerPoll = 4;
// Hellos that wait, one is taken a turn.
constexpr size_t kMaxHellos = 1024;
// Paths without links that are kept for the next one.
constexpr size_t kMaxIdlePaths = 64;
// UCX does not let itself be armed while sends wait for a peer that takes nothing, and shows no
// descriptor for them: after so many attempts the backend sleeps a little instead, longer each
// time.
constexpr uint32_t kBusyArms = 64;
constexpr Duration kShortNap = std::chrono::microseconds(20);
constexpr Duration kNap = std::chrono::milliseconds(1);

}  // namespace

size_t UcxBackend::Poll(std::span<Event> out, bool readable) {
  if (events_.size() < out.size()) {
    if (readable) poller_.Dispatch();
    Progress(out.size());
    FailPaths();
    EndLateDials();
    TakeConnections();
    TakeHello();
    SendAll();
  }
  return events_.Take(out);
}

// Also where nothing is readable: what comes through shared memory shows there first.
void UcxBackend::Progress(size_t room) {
  left_over_ = true;
  for (int i = 0; i < kProgressPerPoll && events_.size() < room; ++i) {
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
    const auto it = links_.find(head->cookie);
    if (it == links_.end()) return OnStray(*head, body);
    return it->second->OnFrame(*head, body);
  }
  absl::StatusOr<Hello> hello = DecodeHello(body);
  // One that comes from here would have UCX call back in the middle of a send.
  const bool own = hello.ok() && hello->worker == worker_->address();
  if (!hello.ok() || hello->version != kWireVersion || own || callers_.size() >= kMaxHellos) {
    Log(LogLevel::kDebug,
        "ucx: a hello is not answered: it makes no sense, is of another version, "
        "or one of too many");
    return;
  }
  std::string place = kByWorker + hello->worker;
  if (from != nullptr) {
    const auto back =
        std::ranges::find_if(paths_, [from](const auto& entry) { return entry.second->Is(from); });
    if (back == paths_.end()) return;  // it has failed already
    place = back->first;
  }
  callers_.push_back({.hello = *std::move(hello), .place = std::move(place)});
}

// For a link that is no more, or never was. The peer of one that ended unheard is told, once.
void UcxBackend::OnStray(const FrameHead& head, std::span<const std::byte> body) {
  const auto it = ended_.find(head.cookie);
  if (it == ended_.end() || head.kind == FrameKind::kBye) return;
  Ended ended = it->second;
  if (head.kind == FrameKind::kWelcome && ended.peer_cookie == 0) {
    ended.peer_cookie = DecodeWelcome(body).value_or(ucx::Welcome{}).cookie;
  }
  const auto path = paths_.find(ended.place);
  if (ended.peer_cookie == 0 || path == paths_.end() || !path->second->room()) return;
  ended_.erase(it);
  Refuse(path->second.get(), ended.peer_cookie, "the link has ended");
}

void UcxBackend::Refuse(Path* path, uint64_t cookie, std::string_view why) {
  if (!path->room()) return;
  path->Begin().Append(std::as_bytes(std::span(why)));
  path->Send({.kind = FrameKind::kBye, .cookie = cookie});
}

// UCX tells nothing of a peer that is there and does not answer, as a stopped one.
void UcxBackend::EndLateDials() {
  if (dialling_.empty()) return;
  const Time late = Now() - connect_timeout_;
  while (!dialling_.empty() && dialling_.front()->made() <= late) {
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
  // What the caller connected is not made again here.
  if (!known && (caller.place.front() != kByWorker || paths_.size() >= kMaxPaths)) return;
  Welcome(caller.hello, caller.place);
}

void UcxBackend::Welcome(const Hello& hello, const std::string& place) {
  // A path that the dialler has made anew says that the one here leads nowhere.
  const auto known = paths_.find(place);
  const bool ours = hello.target == incarnation_;
  if (ours && known != paths_.end() && known->second->peer_id() != 0 &&
      known->second->peer_id() != hello.path) {
    known->second->Fail(absl::UnavailableError("the peer connected anew"));
    // By socket it does so by another connection.
    if (place.front() != kByWorker) return;
  }
  auto path = PathTo(place, hello.reports_failure);
  if (!path.ok()) {
    Log(LogLevel::kWarning, "ucx: a peer that connects cannot be answered: {}",
        std::string(path.status().message()));
    return;
  }
  if (!ours) {
    return Refuse(*path, hello.cookie, "another agent lives here: the one meant has restarted");
  }
  (*path)->set_peer_id(hello.path);
  (*path)->WatchProcess(hello.host, host_);
  if (accepted_ >= kMaxAccepted) {
    return Refuse(*path, hello.cookie, "this agent has as many connections as it takes");
  }
  ++accepted_;
  auto link = std::make_unique<Link>(this, *path, hello);
  links_.emplace(link->cookie(), link.get());
  Activate(link.get());
  events_.Push(MakeAccepted(std::move(link)));
}

void UcxBackend::FailPaths() {
  for (auto it = paths_.begin(); it != paths_.end();) {
    Path* const path = (it++)->second.get();
    if (path->failed()) DropPath(path);
  }
  std::erase_if(closing_, [](const auto& path) { return path->closed(); });
  TrimPaths();
}

void UcxBackend::TrimPaths() {
  if (paths_.size() <= kMaxIdlePaths) return;
  // Who has just come has not said hello yet.
  const Time young = Now() - connect_timeout_;
  const auto idle = [young](const auto& entry) {
    const Path& path = *entry.second;
    return path.links.empty() && (path.place().front() != kAccepted || path.made() < young);
  };
  size_t excess = static_cast<size_t>(std::ranges::count_if(paths_, idle));
  for (auto it = paths_.begin(); it != paths_.end() && excess > kMaxIdlePaths;) {
    const auto entry = it++;
    if (!idle(*entry)) continue;
    DropPath(entry->second.get());
    --excess;
  }
}

// In turns, so that one link's plenty is not in the way of another's word.
void UcxBackend::SendAll() {
  size_t left = kSentPerPoll;
  const std::vector<Link*> links = active_;
  const size_t first = links.empty() ? 0 : turn_++ % links.size();
  for (size_t i = 0; i < links.size() && left > 0; ++i) {
    size_t budget = std::min(left, kSentPerLink);
    left -= budget;
    links[(first + i) % links.size()]->Pump(budget);
    left += budget;
  }
  std::erase_if(active_, [](const Link* link) { return !link->WantsToSend(); });
}

bool UcxBackend::HasWork() const {
  if (!events_.empty() || !callers_.empty() || left_over_) return true;
  if (listener_ != nullptr && listener_->waiting()) return true;
  const auto failed = [](const auto& entry) { return entry.second->failed(); };
  if (std::ranges::any_of(paths_, failed)) return true;
  return std::ranges::any_of(
      active_, [](const Link* link) { return link->WantsToSend() && link->path()->room(); });
}

bool UcxBackend::Arm() {
  if (HasWork()) return false;
  if (worker_->Arm()) {
    busy_arms_ = 0;
    if (!dialling_.empty()) {
      poller_.Nap(std::max<Duration>(dialling_.front()->made() + connect_timeout_ - Now(), kNap));
    }
    return true;
  }
  if (++busy_arms_ < kBusyArms) return false;
  poller_.Nap(std::min<Duration>(kNap, (busy_arms_ - kBusyArms + 1) * kShortNap));
  return true;
}

}  // namespace kvxfer::ucx
