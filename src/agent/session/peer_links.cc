// Connecting, keeping alive, and losing connections.
#include <algorithm>
#include <random>

#include "src/agent/session/peer.h"
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
// Between pings on a connection without transfers; well within the target's patience (kSilence,
// inbound.cc).
constexpr int kIdleHeartbeats = 10;
constexpr Duration kIdlePing = std::chrono::seconds(10);
constexpr Duration kIdleGrid = std::chrono::seconds(1);
// A path that failed rests so many times connect_timeout while another one carries.
constexpr int kTryAgain = 30;
// Between questions whether the process of a peer that cannot be reached is gone.
constexpr Duration kDeathAsked = std::chrono::milliseconds(5);

// On the grid where that is fine enough, so that one wake-up serves all idle links.
Time NextIdlePing(Time now, Duration heartbeat) {
  const Duration interval = std::min<Duration>(heartbeat * kIdleHeartbeats, kIdlePing);
  const Time next = now + interval;
  return interval < 2 * kIdleGrid ? next : next - next.time_since_epoch() % kIdleGrid;
}

Duration Backoff(uint32_t failures) {
  thread_local std::minstd_rand random{RandomNonZero32()};
  Duration wait = kFirstBackoff * (1u << std::min(failures, 10u));
  wait = std::min(wait, kMaxBackoff);
  return wait * (750 + static_cast<int>(random() % 500)) / 1000;
}

}  // namespace

void Link::OnEvent(Event& event) {
  switch (event.kind) {
    case EventKind::kConnected:
      return peer->OnConnected(*this);
    case EventKind::kDown:
      return peer->OnDown(*this, event.status);
    case EventKind::kMessage:
      return peer->OnMessage(*this, event.message);
    case EventKind::kCompletion:
      return peer->OnCompletion(*this, event.id, event.status);
    case EventKind::kFenced:     // its ops have completed one by one
    case EventKind::kImmediate:  // nothing writes to a connecting side
    case EventKind::kAccepted:
      return;
    case EventKind::kRailDown:
      return peer->OnRailDown(*this, event.rail, event.status);
    case EventKind::kRailUp:
      return peer->OnRailUp(*this, event.rail);
  }
}

size_t Peer::links() const {
  return static_cast<size_t>(
      std::ranges::count_if(paths_, [](const Path& path) { return path.link != nullptr; }));
}

Link* Peer::UpLink() {
  for (Path& path : paths_) {
    if (Up(path)) return path.link.get();
  }
  return nullptr;
}

bool Peer::IsOf(const Path& path, const std::string& backend) const {
  return backend.empty() || runtime_->backends[path.backend]->name() == backend;
}

// The indices of paths_, best first for a transfer of `bytes`.
PathOrder Peer::Preferred(uint64_t bytes, Time now) const {
  absl::InlinedVector<PathFigures, 8> figures;
  for (const Path& path : paths_) figures.push_back(path.seen.At(now));
  return OrderPaths(figures, bytes);
}

// The link for a transfer of `bytes` posted at `posted` that asks for `backend` (empty: any); null
// while one is being made; or why there is none. `second` is as good as a path that does not suit
// can be: what suits and failed is not waited for.
absl::StatusOr<Link*> Peer::LinkFor(const std::string& backend, uint64_t bytes, Time posted,
                                    Time now, Suits suits, Link* second) {
  const PathOrder order = Preferred(bytes, now);
  // What carries no data needs no rail.
  const auto takes = [bytes](const Path& path) { return bytes > 0 ? Ready(path) : Up(path); };
  const auto fits = [&](const Path& path) { return IsOf(path, backend) && suits(path); };
  Link* other = nullptr;
  for (const uint8_t index : order) {
    Path& path = paths_[index];
    if (other == nullptr && fits(path) && takes(path)) other = path.link.get();
  }
  bool wait = false;
  bool late = false;
  for (const uint8_t index : order) {
    Path& path = paths_[index];
    if (!fits(path)) continue;
    if (takes(path)) return path.link.get();
    if (!path.reachable.ok()) continue;
    // A path that failed is tried again when there is no other, not for every transfer.
    if (path.failures > 0 && (other != nullptr || second != nullptr)) {
      TryAgain(path, now);
      continue;
    }
    if (path.link) {
      if (!Up(path) || now < path.link->prove_by) return nullptr;
      PassOver(path);
      late = true;
      continue;
    }
    const bool failed = path.failures > 0 && path.failed_at >= posted;
    if (failed) continue;
    if (now < path.retry_at) {
      wait = true;  // but a path after it may be up
      continue;
    }
    if (wait) continue;
    if (Dial(path, now).ok()) return nullptr;
  }
  if (wait) return nullptr;
  if (other != nullptr) return other;
  if (second != nullptr) return second;
  if (late) return nullptr;
  return Unreachable(backend);
}

// Words pass on it, and data not yet.
void Peer::PassOver(Path& path) {
  if (path.failures > 0) return;
  path.failures = 1;
  path.last_error = absl::UnavailableError(Connecting(path));
}

// Of a path that failed while another one carries: its reason may have gone since.
void Peer::TryAgain(Path& path, Time now) {
  const Duration rest = kTryAgain * runtime_->options.connect_timeout;
  if (path.link || now < path.retry_at || now - path.failed_at < rest) return;
  Dial(path, now).IgnoreError();
}

// What is under way on a path that is not Ready.
std::string Peer::Connecting(const Path& path) const {
  if (!Up(path)) return "connecting";
  return absl::StrCat("connected, ", path.link->endpoint->Describe().path,
                      path.link->rails.WhyNone());
}

bool Peer::HasReady(const std::string& backend) const {
  return std::ranges::any_of(paths_,
                             [&](const Path& path) { return IsOf(path, backend) && Ready(path); });
}

// ResourceExhausted where each path that was tried found nothing left to connect with, here or at
// the peer: the peer is not lost, and to try again helps only once there is more.
absl::Status Peer::Unreachable(const std::string& backend) const {
  std::string why;
  bool exhausted = false;
  bool unavailable = false;
  for (const Path& path : paths_) {
    if (!IsOf(path, backend)) continue;
    const std::string_view name = runtime_->backends[path.backend]->name();
    const absl::Status& cause = path.reachable.ok() ? path.last_error : path.reachable;
    if (cause.code() == absl::StatusCode::kFailedPrecondition && path.reachable.ok()) {
      return Annotate(cause, absl::StrCat("peer ", metadata_.name));
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
      absl::StrCat("peer ", metadata_.name, " on host ", metadata_.host.hostname,
                   has_nothing ? " cannot be connected to (" : " is unreachable (", why, ")"));
}

absl::Status Peer::Dial(Path& path, Time now) {
  Backend& backend = *runtime_->backends[path.backend];
  auto endpoint = backend.Connect(path.address, metadata_.host);
  if (!endpoint.ok()) {
    path.last_error = endpoint.status();
    path.failed_at = now;
    path.retry_at = now + Backoff(path.failures++);
    return endpoint.status();
  }
  // The target may have forgotten a session that was idle, and would refuse to go on with it.
  if (links() == 0 && SessionIsIdle()) NewSession();
  path.link = std::make_unique<Link>(this, path.backend, &path.seen, *std::move(endpoint));
  path.link->give_up = now + kMaxAddresses * runtime_->options.connect_timeout;
  runtime_->users[path.link->endpoint.get()] = path.link.get();
  return absl::OkStatus();
}

void Peer::CloseLink(Link& link, const absl::Status& why) {
  if (link.state == Link::State::kClosing) return;
  link.state = Link::State::kClosing;
  link.endpoint->Shutdown(why);
}

// Both its session and a rail of it are up.
void Peer::OnProven(Link& link) {
  link.proven = true;
  const std::string_view name = runtime_->backends[link.backend]->name();
  Log(LogLevel::kInfo, "peer {}: connected over {} ({})", metadata_.name, name,
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
    Log(LogLevel::kWarning, "peer {}: using {} because {} failed: {}", metadata_.name, name,
        runtime_->backends[path.backend]->name(), ToStd(why.message()));
  }
}

void Peer::OnDown(Link& link, const absl::Status& why) {
  const bool was_up = link.was_up;
  const bool proven = link.proven;
  const Time now = Now();
  const absl::Status cause =
      why.ok() ? absl::UnavailableError("connection closed by the peer") : why;
  auto path = std::ranges::find_if(paths_, [&](Path& p) { return p.link.get() == &link; });
  path->last_error = cause;
  if (!proven) {
    if (!link.refused) path->failed_at = now;
    path->retry_at = now + Backoff(path->failures++);
  }
  runtime_->users.erase(link.endpoint.get());
  runtime_->finished.push_back(std::move(path->link));
  LoseData(link, cause);
  if (was_up) {
    // What it had taken may be lost, whatever other connections there are.
    channel_.Rewind();
    if (UpLink() == nullptr) unlinked_ = now;
    if (link.carried) runtime_->reverse_session->PiggybackLinkFromLost(metadata_.incarnation);
  }
  if (was_up) runtime_->presence.LinkDown(metadata_.name, metadata_.incarnation, cause);
  CheckDeath(cause);
}

// Fails what had data on the lost link; what only waits for a word of the target goes on.
void Peer::LoseData(Link& link, const absl::Status& why) {
  const absl::Status cause = absl::UnavailableError(
      absl::StrCat("connection to peer ", metadata_.name, " lost over ",
                   ToAbsl(runtime_->backends[link.backend]->name()), ": ", why.message()));
  const auto lost = [&](const Outbound& outbound) { return outbound.link == &link; };
  ForEachActive(lost, [&](Outbound& outbound) {
    const bool asks = outbound.fetch == Outbound::Fetch::kAsked && outbound.ops == 0;
    const bool control_only = (outbound.opened && !outbound.book.counted()) || asks;
    outbound.link = nullptr;
    if (control_only && !outbound.ending) return;
    BeginEnd(outbound, TransferState::kFailed, cause, Now());
  });
}

// Makes sure that there is a connection while anything waits for the target's word.
void Peer::KeepAlive(Time now) {
  if (UpLink() != nullptr) return;
  const bool session_waits = !active_.empty() || channel_.kept() > 0;
  if (session_waits && unlinked_ != Time{} && now - unlinked_ > kAbandonAfter) {
    const absl::Status why = Unreachable("");
    ResetSession(absl::Status(why.code(), absl::StrCat("peer ", metadata_.name,
                                                       " not reached again: ", why.message())),
                 unlinked_);
  }
  if (active_.empty() && quarantined_.empty() && !stager_.unsettled()) return;
  // Transfers that wait for word only are failed by the first attempt that fails after the loss,
  // which may itself have been one.
  const auto any = [](const Path&) { return true; };
  auto link = LinkFor("", 0, unlinked_ + Duration(1), now, any);
  if (link.ok()) return;
  // An attempt that fails at once has no kDown to say so. The kernel is not asked in every round.
  if (now - death_asked_ >= kDeathAsked) {
    death_asked_ = now;
    CheckDeath(link.status());
  }
  if (active_.empty() && quarantined_.empty() && !stager_.unsettled()) return;
  const auto goes_on = [](const Outbound& outbound) { return !outbound.ending; };
  ForEachActive(goes_on, [&](Outbound& outbound) {
    BeginEnd(outbound, TransferState::kFailed, link.status(), now);
  });
  // Quarantines wait for the peer to come back.
  for (Path& path : paths_) {
    if (!path.link && path.reachable.ok() && path.retry_at <= now) {
      if (Dial(path, now).ok()) break;
    }
  }
}

void Peer::Heartbeat(Link& link, Time now) {
  if (link.state == Link::State::kClosing) return;
  if (link.state != Link::State::kUp) {
    if (now >= link.give_up) {
      CloseLink(link, absl::UnavailableError(
                          absl::StrCat("peer ", metadata_.name, " did not answer within ",
                                       std::chrono::duration_cast<std::chrono::milliseconds>(
                                           runtime_->options.connect_timeout)
                                           .count(),
                                       " ms")));
    }
    return;
  }
  if (now < link.ping_at) return;
  const auto& options = runtime_->options;
  if (link.unanswered == Time{}) {
    link.unanswered = now;
  } else if (now - link.unanswered >= options.suspect_after - options.heartbeat) {
    runtime_->presence.Suspect(
        metadata_.name, metadata_.incarnation,
        absl::UnavailableError(absl::StrCat(
            "no sign of life over ", ToAbsl(runtime_->backends[link.backend]->name()), " for ",
            std::chrono::duration_cast<std::chrono::milliseconds>(now - link.heard).count(),
            " ms (stopped, or cut off)")));
  }
  const std::string ping =
      EncodeMessage(FrameType::kPing, 0, channel_.received(), PingFrame{.nonce = 1});
  link.endpoint->Send(std::as_bytes(std::span(ping)));
  const bool in_use = !active_.empty() || link.unanswered != now;
  link.ping_at = in_use ? now + options.heartbeat : NextIdlePing(now, options.heartbeat);
}

}  // namespace kvxfer
