// Link: rails that come up, fail alone, and come back.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/backends/tcp/backend.h"
#include "src/backends/tcp/link.h"
#include "src/core/base/strings.h"
#include "src/core/base/text.h"
#include "src/transport/rail_backoff.h"

namespace kvxfer::tcp {
namespace {

// A life that carried nothing has cost its transfers seconds, so it counts as several failed
// attempts.
constexpr uint32_t kInVainFailures = 3;
// A kernel answers a connection request at once. If an earlier attempt succeeded, this one need not
// wait until the kernel repeats a lost packet (1 s): it is given up after kConnectFactor times the
// earlier duration, but not before kShortestConnect, and tried again.
constexpr Duration kShortestConnect = std::chrono::milliseconds(250);
constexpr int kConnectFactor = 8;
// How often the acknowledgements of sent data are checked.
constexpr Duration kLookInterval = std::chrono::milliseconds(500);

}  // namespace

bool Link::rail_up(uint32_t rail) const {
  return up() && rail < rails_.size() && rails_[rail]->up();
}

RailInfo Link::rail_info(uint32_t rail) const {
  if (rail >= dials_.size() || !paths_->named()) return {};
  return {.bytes_per_second = paths_->Mbps(dials_[rail].pair) * 1e6 / 8, .name = PathOf(rail)};
}

std::string Link::Describe() const {
  std::string out =
      absl::StrCat(Name(), ", ", rails_.size(), rails_.size() == 1 ? " stream" : " streams");
  for (uint32_t i = 0; i < dials_.size(); ++i) {
    const RailDial& dial = dials_[i];
    if (rails_[i]->up() && dial.silent.empty() && !paths_->named()) continue;
    absl::StrAppend(&out, ", ", PathOf(i));
    if (!rails_[i]->up() && !dial.why.ok()) {
      absl::StrAppend(&out, " (not in use: ", dial.why.message(), ")");
    }
    for (const RailPair& pair : dial.silent) {
      absl::StrAppend(&out, " (", paths_->Name(pair, dialler_->address()), " does not answer)");
    }
  }
  return out;
}

std::string Link::PathOf(uint32_t rail) const {
  return paths_->Name(dials_[rail].pair, dialler_->address());
}

std::string Link::Where(uint32_t rail) const {
  const std::string stream = absl::StrCat("tcp peer ", Name(), ", data stream ", rail);
  const net::SocketAddress own = net::LocalAddress(rails_[rail]->fd());
  if (!connecting()) {
    return own.length == 0 ? stream : absl::StrCat(stream, " (to ", own.ToString(), ")");
  }
  if (own.length == 0 || own.IsWildcard()) return absl::StrCat(stream, " (", PathOf(rail), ")");
  const net::SocketAddress to = paths_->To(dials_[rail].pair, dialler_->address());
  return absl::StrCat(stream, " (", own.ToString(), " → ", to.ToString(), ")");
}

void Link::EmitRail(EventKind kind, uint32_t rail, absl::Status status) {
  sink().Say(kind, this, 0, std::move(status), rail);
}

void Link::StartRail(uint32_t rail) {
  RailDial& dial = dials_[rail];
  dial.began = Now();
  const Duration most = backend_->options().connect_timeout;
  const Duration limit =
      dial.took.count() == 0
          ? most
          : std::min<Duration>(most,
                               std::max<Duration>(kShortestConnect, dial.took * kConnectFactor));
  dial.deadline = dial.began + limit;
  const absl::Status status =
      rails_[rail]->Dial(paths_->From(dial.pair), paths_->To(dial.pair, dialler_->address()));
  if (!status.ok()) return AttemptFailed(rail, status);
  Schedule(*dial.deadline);
  Activate();
}

void Link::WorkDialling() {
  for (uint32_t i = 0; i < rails() && !down(); ++i) {
    Rail& rail = *rails_[i];
    if (!rail.dialling()) continue;
    const Rail::State before = rail.state();
    absl::Status status;
    if (rail.hung_up()) {
      const int error = net::SocketError(rail.fd());
      status = absl::UnavailableError(error != 0 ? ErrnoText("connect", error)
                                                 : "the peer did not take the stream");
    } else {
      status = rail.Greet({.role = Role::kData,
                           .rail = static_cast<uint8_t>(i),
                           .rails = static_cast<uint8_t>(rails()),
                           .target = dialler_->peer().incarnation,
                           .link = id_});
    }
    if (!status.ok()) {
      AttemptFailed(i, status);
    } else if (rail.up()) {
      RailIsUp(i);
    } else if (rail.state() != before) {
      // The connection exists; now the peer's process must answer.
      RailDial& dial = dials_[i];
      dial.took = std::max<Duration>(Now() - dial.began, std::chrono::nanoseconds(1));
      dial.deadline = Now() + backend_->options().connect_timeout;
      Schedule(*dial.deadline);
    }
  }
}

void Link::RailIsUp(uint32_t rail) {
  RailDial& dial = dials_[rail];
  dial.was_up = dial.settled = true;
  // The planned pair works after all, so earlier silence is no longer worth reporting.
  if (dial.pair == paths_->planned(rail)) dial.silent.clear();
  dial.failures = 0;
  dial.why = absl::OkStatus();
  dial.deadline.reset();
  if (up()) return EmitRail(EventKind::kRailUp, rail);
  TryGoUp(false);
}

// A pair that never worked is replaced as long as there is another one.
void Link::AttemptFailed(uint32_t rail, const absl::Status& why) {
  RailDial& dial = dials_[rail];
  dial.why = Annotate(why, Where(rail));
  rails_[rail]->Close(dial.why);
  // ResourceExhausted is this host's own lack, and says nothing about the pair.
  if (!dial.settled && !absl::IsResourceExhausted(why)) {
    dial.silent.push_back(dial.pair);
    std::vector<RailPair> used;
    for (const RailDial& other : dials_) {
      if (&other != &dial) used.push_back(other.pair);
    }
    if (const std::optional<RailPair> other = paths_->Other(used, dial.silent)) {
      dial.pair = *other;
      dial.took = {};
      dial.deadline = Now();
      return Schedule(*dial.deadline);
    }
    dial.pair = paths_->planned(rail);
    dial.took = {};
  }
  dial.settled = true;
  dial.deadline = Now() + RailBackoff(dial.failures++, dial.was_up);
  Schedule(*dial.deadline);
  TryGoUp(false);
}

void Link::RailTimers(Time now) {
  for (uint32_t i = 0; i < dials_.size() && !down(); ++i) {
    RailDial& dial = dials_[i];
    if (!dial.deadline || *dial.deadline > now) continue;
    dial.deadline.reset();
    if (!rails_[i]->dialling()) {
      StartRail(i);
      continue;
    }
    const auto waited = (now - dial.began) / std::chrono::milliseconds(1);
    AttemptFailed(
        i, absl::UnavailableError(absl::StrCat(rails_[i]->state() == Rail::State::kConnecting
                                                   ? "no connection within "
                                                   : "connected, and no answer of the peer within ",
                                               waited, " ms")));
  }
}

void Link::ReopenRail(uint32_t rail) {
  if (!up() || !connecting() || rail >= rails_.size()) return;
  RailDial& dial = dials_[rail];
  if (rails_[rail]->state() != Rail::State::kDown || dial.deadline) return;
  dial.failures = 0;
  // A rail that comes up and carries nothing is treated like one that never came up.
  dial.deadline =
      Now() + RailBackoff(dial.in_vain * kInVainFailures, dial.was_up && dial.in_vain == 0);
  Schedule(*dial.deadline);
}

void Link::RailFailed(uint32_t rail, const absl::Status& status) {
  if (down()) return;
  if (!absl::IsUnavailable(status)) return Fail(status, absl::StrCat("data stream ", rail));
  const absl::Status why = Annotate(status, Where(rail));
  if (!connecting()) {
    const uint32_t life = rails_[rail]->life();
    CloseEnd(rail, why);
    const std::string lost = Encode(RailLost{
        .rail = static_cast<uint8_t>(rail), .life = life, .why = ForPeer(ToStd(why.message()))});
    // An error shows when the control stream is read or flushed.
    control_.Push(ControlKind::kFrame, std::as_bytes(std::span(lost))).IgnoreError();
    return Activate();
  }
  if (!up()) return AttemptFailed(rail, status);
  RailDial& dial = dials_[rail];
  // A rail that came up is not proven to work: a path may drop large packets only.
  const Rail::Outcome outcome = rails_[rail]->outcome();
  const bool unheard = outcome == Rail::Outcome::kUnheard;
  // Once is not enough: the stream may have been cut before anything arrived.
  const bool again = std::exchange(dial.unheard, unheard) && unheard;
  if (outcome == Rail::Outcome::kPiggybacked) dial.in_vain = 0;
  if (outcome == Rail::Outcome::kInVain || again) ++dial.in_vain;
  rails_[rail]->Close(why);
  dial.why = why;
  EmitRail(EventKind::kRailDown, rail, why);
}

// Nothing more is read from a stream that has ended, even if its socket still holds bytes.
void Link::DropHungUp() {
  for (uint32_t i = 0; i < rails() && !down(); ++i) {
    if (!rails_[i]->hung_up() || !rails_[i]->up()) continue;
    const int error = net::SocketError(rails_[i]->fd());
    RailFailed(i,
               absl::UnavailableError(error != 0 ? ErrnoText("connection lost", error)
                                                 : "the peer closed the connection (end of file)"));
  }
}

// Accepting side: closes its end of the rail, which makes the rail quiet.
void Link::CloseEnd(uint32_t rail, const absl::Status& why) {
  // A peer may request this repeatedly; an end that is closed is skipped.
  if (!rails_[rail]->attached()) return;
  rails_[rail]->Close(why);
  for (const auto& [transfer, answers] : fences_.Close(rail)) {
    for (uint32_t n = answers; n > 0; --n) Emit(EventKind::kFenced, transfer);
  }
}

void Link::FenceRail(uint32_t rail) {
  if (!up() || connecting() || rail >= rails_.size()) return;
  CloseEnd(rail, absl::UnavailableError("its initiator gave it up"));
  EmitRail(EventKind::kRailFenced, rail);
}

// The peer has closed its end of a rail. Its reason is better than the end of file that follows.
absl::Status Link::OnRailLost(std::span<const std::byte> frame) {
  absl::StatusOr<RailLost> lost = DecodeRailLost(frame);
  if (!lost.ok()) return lost.status();
  if (lost->rail >= rails()) return absl::InvalidArgumentError("the peer lost a rail of no number");
  const Rail& rail = *rails_[lost->rail];
  // A report about an earlier life is stale.
  if (!rail.up() || rail.life() != lost->life) return absl::OkStatus();
  RailFailed(lost->rail,
             absl::UnavailableError(absl::StrCat("the peer's end of it failed: ", lost->why)));
  return absl::OkStatus();
}

Time Link::WatchAcknowledgements() {
  const Time now = Now();
  if (!look_at_) {
    look_at_ = now + kLookInterval;
    Schedule(*look_at_);
  }
  return now;
}

void Link::CheckAcknowledgements(Time now) {
  look_at_.reset();
  for (uint32_t i = 0; i < rails() && !down(); ++i) {
    Rail& rail = *rails_[i];
    if (!rail.up() || !rail.watched()) continue;
    if (rail.Stalled(now)) {
      const bool in_vain = rail.outcome() == Rail::Outcome::kInVain;
      RailFailed(i, absl::UnavailableError(absl::StrCat(
                        "nothing of what was sent has been acknowledged for ",
                        net::Dialler::kUserTimeoutMs, " ms",
                        in_vain ? ", though the stream came up: does the path take packets of "
                                  "the interface's MTU?"
                                : "")));
    } else if (rail.watched()) {
      look_at_ = now + kLookInterval;
    }
  }
}

}  // namespace kvxfer::tcp
