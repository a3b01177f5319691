#include "src/agent/session/path_set.h"

#include <algorithm>
#include <random>

#include "absl/strings/str_join.h"
#include "src/core/base/log.h"
#include "src/core/base/random.h"
#include "src/core/base/strings.h"

namespace kvxfer {
namespace {

// Redialling: first after 5 ms, twice as long each time, at most 1 s, ± 25 %.
constexpr Duration kFirstBackoff = std::chrono::milliseconds(5);
constexpr Duration kMaxBackoff = std::chrono::seconds(1);
// A backend bounds its attempts, connect_timeout for each of the peer's addresses; beyond so many
// of them the agent does.
constexpr int kMaxAddresses = 16;
// A path that failed rests so many times connect_timeout while another one carries.
constexpr int kTryAgain = 30;

Duration Backoff(uint32_t failures) {
  thread_local std::minstd_rand random{RandomNonZero32()};
  Duration wait = kFirstBackoff * (1u << std::min(failures, 10u));
  wait = std::min(wait, kMaxBackoff);
  return wait * (750 + static_cast<int>(random() % 500)) / 1000;
}

}  // namespace

PathSet::PathSet(Runtime* runtime, const AgentMetadata* metadata, const RemoteRegions* regions,
                 User* user)
    : runtime_(runtime), metadata_(metadata), regions_(regions), user_(user) {
  const auto& required = runtime_->options.require_backends;
  for (size_t i = 0; i < runtime_->backends.size(); ++i) {
    for (const auto& [name, address] : metadata_->backends) {
      const Backend& backend = *runtime_->backends[i];
      if (name != backend.name()) continue;
      Path path{.backend = i, .address = address};
      path.host = backend.capabilities().Takes(MemoryKind::kHost);
      path.reachable = required.empty() || std::ranges::find(required, name) != required.end()
                           ? backend.Reachable(address, metadata_->host)
                           : absl::UnavailableError("not among AgentOptions::require_backends");
      paths_.push_back(std::move(path));
    }
  }
}

size_t PathSet::links() const {
  return static_cast<size_t>(
      std::ranges::count_if(paths_, [](const Path& path) { return path.link != nullptr; }));
}

Link* PathSet::UpLink() {
  for (Path& path : paths_) {
    if (Up(path)) return path.link.get();
  }
  return nullptr;
}

void PathSet::ForEachLink(absl::FunctionRef<void(Link&)> visit) {
  for (Path& path : paths_) {
    if (path.link) visit(*path.link);
  }
}

void PathSet::ForEachUpLink(absl::FunctionRef<void(Link&)> visit) {
  for (Path& path : paths_) {
    if (Up(path)) visit(*path.link);
  }
}

void PathSet::OnMetadata() {
  ForEachLink([](Link& link) { link.ForgetBeyond(); });
}

std::string_view PathSet::NameOf(const Path& path) const {
  return runtime_->backends[path.backend]->name();
}

bool PathSet::IsOf(const Path& path, const std::string& backend) const {
  return backend.empty() || NameOf(path) == backend;
}

// The indices of paths_, best first for a transfer of `bytes`.
PathOrder PathSet::Preferred(uint64_t bytes, Time now) const {
  if (paths_.size() == 1) return {0};
  absl::InlinedVector<PathFigures, 8> figures;
  for (const Path& path : paths_) figures.push_back(path.seen.At(now));
  return OrderPaths(figures, bytes);
}

// The link for a transfer of `bytes` posted at `posted` that asks for `backend` (empty: any); null
// while one is being made; or why there is none. `second` is as good as a path that does not suit
// can be: what suits and failed is not waited for.
absl::StatusOr<Link*> PathSet::LinkFor(const std::string& backend, uint64_t bytes, Time posted,
                                       Time now, Suits suits, Link* second) {
  if (!user_->MayConnect()) return nullptr;
  const PathOrder order = Preferred(bytes, now);
  // What carries no data needs no rail.
  const auto takes = [bytes](const Path& path) { return bytes > 0 ? Ready(path) : Up(path); };
  const auto fits = [&](const Path& path) { return IsOf(path, backend) && suits(path); };
  // The best of those that can take it now.
  const auto other = [&]() -> Link* {
    for (const uint8_t index : order) {
      if (fits(paths_[index]) && takes(paths_[index])) return paths_[index].link.get();
    }
    return nullptr;
  };
  bool wait = false;
  bool late = false;
  Path* tried_on = nullptr;
  for (const uint8_t index : order) {
    Path& path = paths_[index];
    if (!fits(path)) continue;
    if (takes(path)) return path.link.get();
    if (!path.reachable.ok()) continue;
    // A path that failed is tried again when there is no other, not for every transfer.
    if (path.failures > 0 && (second != nullptr || other() != nullptr)) {
      TryAgain(path, now);
      continue;
    }
    if (path.link) {
      if (!Up(path) || now < path.link->prove_by) return nullptr;
      PassOver(path);
      late = true;
      continue;
    }
    if (path.failures > 0 && path.failed_at >= posted) {
      if (tried_on == nullptr && IsTriedOn(path, now)) tried_on = &path;
      continue;
    }
    if (now < path.retry_at) {
      wait = true;  // but a path after it may be up
      continue;
    }
    if (wait) continue;
    if (Dial(path, now).ok()) return nullptr;
  }
  if (wait) return nullptr;
  if (Link* const link = other()) return link;
  if (second != nullptr) return second;
  if (late) return nullptr;
  if (tried_on == nullptr) return Unreachable(backend);
  if (now >= tried_on->retry_at) Dial(*tried_on, now).IgnoreError();
  return nullptr;
}

// Where no other path is left: it carried, and its attempts since then are no proof that the peer
// cannot be reached, for the peer is connected to this agent.
bool PathSet::IsTriedOn(const Path& path, Time now) const {
  if (absl::IsFailedPrecondition(path.last_error))
    return false;  // another one is there, or it refuses
  return path.lost_at != Time{} && now - path.lost_at < Session::kAbandonAfter &&
         user_->PeerIsConnected();
}

// Words pass on it, and data not yet.
void PathSet::PassOver(Path& path) {
  if (path.failures > 0) return;
  path.failures = 1;
  path.last_error = absl::UnavailableError(Connecting(path));
}

// Of a path that failed while another one carries: its reason may have gone since.
void PathSet::TryAgain(Path& path, Time now) {
  const Duration rest = kTryAgain * runtime_->options.connect_timeout;
  if (path.link || now < path.retry_at || now - path.failed_at < rest) return;
  Dial(path, now).IgnoreError();
}

// What is under way on a path that is not Ready.
std::string PathSet::Connecting(const Path& path) const {
  if (!Up(path)) return "connecting";
  return absl::StrCat("connected, ", path.link->endpoint->Describe().path,
                      path.link->rails.WhyNone());
}

bool PathSet::HasReady(const std::string& backend) const {
  return std::ranges::any_of(paths_,
                             [&](const Path& path) { return IsOf(path, backend) && Ready(path); });
}

// ResourceExhausted where each path that was tried found nothing left to connect with, here or at
// the peer: the peer is not lost, and to try again helps only once there is more.
absl::Status PathSet::Unreachable(const std::string& backend) const {
  std::string why;
  bool exhausted = false;
  bool unavailable = false;
  for (const Path& path : paths_) {
    if (!IsOf(path, backend)) continue;
    const std::string_view name = NameOf(path);
    const absl::Status& cause = path.reachable.ok() ? path.last_error : path.reachable;
    if (cause.code() == absl::StatusCode::kFailedPrecondition && path.reachable.ok()) {
      return Annotate(cause, absl::StrCat("peer ", metadata_->name));
    }
    if (path.reachable.ok() && path.failures > 0) {
      (absl::IsResourceExhausted(cause) ? exhausted : unavailable) = true;
    }
    absl::StrAppend(&why, why.empty() ? "" : "; ", ToAbsl(name), ": ",
                    cause.ok() ? Connecting(path) : cause.message());
  }
  if (why.empty()) {
    why = backend.empty() ? "no backend in common"
                          : absl::StrCat("backend ", backend, " is not offered by both sides");
  }
  const bool has_nothing = exhausted && !unavailable;
  return absl::Status(
      has_nothing ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kUnavailable,
      absl::StrCat("peer ", metadata_->name, " on host ", metadata_->host.hostname,
                   has_nothing ? " cannot be connected to (" : " is unreachable (", why, ")"));
}

absl::Status PathSet::Dial(Path& path, Time now) {
  Backend& backend = *runtime_->backends[path.backend];
  auto endpoint = backend.Connect(path.address, metadata_->host);
  if (!endpoint.ok()) {
    path.last_error = endpoint.status();
    path.failed_at = now;
    path.retry_at = now + Backoff(path.failures++);
    return endpoint.status();
  }
  path.link =
      std::make_unique<Link>(user_, ++last_link_, path.backend, runtime_->Carries(path.backend),
                             &path.seen, *std::move(endpoint));
  path.link->give_up = now + kMaxAddresses * runtime_->options.connect_timeout;
  runtime_->users[path.link->endpoint.get()] = path.link.get();
  return absl::OkStatus();
}

absl::StatusOr<Link*> PathSet::LinkForMessages(Time posted, Time now) {
  if (absl::Status carried = CheckCarrier(); !carried.ok()) return carried;
  return LinkFor("", 0, posted, now,
                 [this](const Path& path) { return runtime_->Carries(path.backend); });
}

void PathSet::Redial(Time now) {
  if (!user_->MayConnect()) return;
  for (Path& path : paths_) {
    if (path.link || !path.reachable.ok() || now < path.retry_at) continue;
    if (!user_->MaySpeak() && !runtime_->Carries(path.backend)) continue;
    if (Dial(path, now).ok()) break;
  }
}

// Both its session and a rail of it are up.
void PathSet::OnProven(Link& link) {
  link.proven = true;
  const std::string_view name = runtime_->backends[link.backend]->name();
  Log(LogLevel::kInfo, "peer {}: connected over {} ({})", metadata_->name, name,
      link.endpoint->Describe().path);
  for (Path& path : paths_) {
    if (path.link.get() == &link) {
      path.failures = 0;
      path.last_error = absl::OkStatus();
      path.retry_at = Time{};
      break;
    }
    // A peer that a backend is not made for, as shm for other hosts, is no failure of it.
    const absl::Status& why = path.failures > 0 ? path.last_error : path.reachable;
    if (warned_fallback_ || (path.failures == 0 && !absl::IsFailedPrecondition(why))) continue;
    warned_fallback_ = true;
    Log(LogLevel::kWarning, "peer {}: using {} because {} failed: {}", metadata_->name, name,
        NameOf(path), ToStd(why.message()));
  }
}

void PathSet::OnDown(Link& link, const absl::Status& why, Time now) {
  const auto path = std::ranges::find_if(paths_, [&](Path& p) { return p.link.get() == &link; });
  path->last_error = why;
  if (link.proven) {
    path->lost_at = now;
  } else {
    if (!link.refused) path->failed_at = now;
    path->retry_at = now + Backoff(path->failures++);
  }
  runtime_->users.erase(link.endpoint.get());
  runtime_->finished.push_back(std::move(path->link));
}

absl::Status PathSet::CheckReachable(const std::vector<std::string>& backends) const {
  std::string why;
  auto code = absl::StatusCode::kFailedPrecondition;
  for (const Path& path : paths_) {
    const std::string_view name = NameOf(path);
    // Metadata that cannot be right from here, such as loopback of another host.
    if (absl::IsInvalidArgument(path.reachable)) code = absl::StatusCode::kInvalidArgument;
    if (!backends.empty() && std::ranges::find(backends, name) == backends.end()) continue;
    if (path.reachable.ok()) return absl::OkStatus();
    absl::StrAppend(&why, why.empty() ? "" : "; ", ToAbsl(name), ": ", path.reachable.message());
  }
  if (why.empty()) why = "both sides have no such backend in common";
  const std::string over = backends.empty() ? ""
                                            : absl::StrCat(" over a required backend (",
                                                           absl::StrJoin(backends, ", "), ")");
  return absl::Status(code,
                      absl::StrCat("peer ", metadata_->name, " on host ", metadata_->host.hostname,
                                   " cannot be reached", over, ": ", why));
}

absl::Status PathSet::CheckCarrier() const {
  if (runtime_->options.control == ControlCarrier::kAuto) return absl::OkStatus();
  std::string names;
  for (const Path& path : paths_) {
    if (!path.reachable.ok()) continue;
    if (runtime_->Carries(path.backend)) return absl::OkStatus();
    absl::StrAppend(&names, names.empty() ? "" : ", ", ToAbsl(NameOf(path)));
  }
  return absl::FailedPreconditionError(
      absl::StrCat("control = ", ToAbsl(kvxfer::NameOf(runtime_->options.control)),
                   ": none of the backends that reach peer ", metadata_->name, " (",
                   names.empty() ? "none does" : names, ") carries control frames so"));
}

Time PathSet::NextTimer(bool waiting, Time pumped) const {
  Time next = Time::max();
  for (const Path& path : paths_) {
    if (path.link) {
      if (path.link->state == Link::State::kClosing) continue;
      next = std::min(next, path.link->rails.next());
      if (!Up(path)) next = std::min(next, path.link->give_up);
      const bool proving = Up(path) && !path.link->proven && path.link->prove_by > pumped;
      if (waiting && proving) next = std::min(next, path.link->prove_by);
    } else if (waiting && path.retry_at > pumped) {
      next = std::min(next, path.retry_at);
    }
  }
  return next;
}

}  // namespace kvxfer
