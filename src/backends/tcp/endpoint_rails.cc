// TcpEndpoint: rails that come up, fail alone, and come back.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/backends/tcp/backend.h"
#include "src/backends/tcp/endpoint.h"
#include "src/core/base/strings.h"
#include "src/core/base/text.h"

namespace kvxfer::tcp {
namespace {

// A kernel answers a connection request at once. If an earlier attempt succeeded, this one need not
// wait until the kernel repeats a lost packet (1 s): it is given up after kConnectFactor times the
// earlier duration, but not before kShortestConnect, and tried again.
constexpr Duration kShortestConnect = std::chrono::milliseconds(250);
constexpr int kConnectFactor = 8;
// How often the acknowledgements of sent data are checked.
constexpr Duration kLookInterval = std::chrono::milliseconds(500);

}  // namespace

EndpointInfo TcpEndpoint::Describe() const {
  EndpointInfo info{.path = DescribePath()};
  for (uint32_t i = 0; i < rails(); ++i) info.rails.push_back(DescribeRail(i));
  return info;
}

RailInfo TcpEndpoint::DescribeRail(uint32_t rail) const {
  RailInfo info{.up = up() && rails_[rail]->up()};
  if (rail >= lives_.size() || !paths_->named()) return info;
  info.bytes_per_second = paths_->Mbps(lives_[rail].pair()) * 1e6 / 8;
  info.name = PathOf(rail);
  return info;
}

std::string TcpEndpoint::DescribePath() const {
  std::string out =
      absl::StrCat(Name(), ", ", rails_.size(), rails_.size() == 1 ? " stream" : " streams");
  if (std::ranges::any_of(lent_, [](const auto& lent) { return lent != nullptr; })) {
    absl::StrAppend(&out, ", data threads");
  }
  for (uint32_t i = 0; i < lives_.size(); ++i) {
    const RailLife& life = lives_[i];
    if (life.up() && life.bad_pairs().empty() && !paths_->named()) continue;
    absl::StrAppend(&out, ", ", PathOf(i), life.why().ok() ? "" : life.NotInUse());
    for (const RailPair& pair : life.bad_pairs()) {
      absl::StrAppend(&out, " (", paths_->Name(pair, dialler().address()), " does not answer)");
    }
  }
  return out;
}

std::string TcpEndpoint::PathOf(uint32_t rail) const {
  return paths_->Name(lives_[rail].pair(), dialler().address());
}

std::string TcpEndpoint::Where(uint32_t rail) const {
  const std::string stream = absl::StrCat(Where(), ", data stream ", rail);
  const net::SocketAddress own = net::LocalAddress(rails_[rail]->fd());
  if (!connecting()) {
    return own.length == 0 ? stream : absl::StrCat(stream, " (to ", own.ToString(), ")");
  }
  if (own.length == 0 || own.IsWildcard()) return absl::StrCat(stream, " (", PathOf(rail), ")");
  const net::SocketAddress to = paths_->To(lives_[rail].pair(), dialler().address());
  return absl::StrCat(stream, " (", own.ToString(), " → ", to.ToString(), ")");
}

std::optional<RailPair> TcpEndpoint::OtherPair(uint32_t rail, std::span<const RailPair> bad) const {
  std::vector<RailPair> used;
  for (const RailLife& other : lives_) {
    if (&other != &lives_[rail]) used.push_back(other.pair());
  }
  return paths_->Other(used, bad);
}

void TcpEndpoint::StartRail(uint32_t rail) {
  RailLife& life = lives_[rail];
  life.Attempt();
  Duration limit = backend_->options().connect_timeout;
  if (life.round_trip().count() != 0) {
    limit = std::clamp<Duration>(life.round_trip() * kConnectFactor,
                                 std::min(kShortestConnect, limit), limit);
  }
  life.Step(RailLife::State::kConnecting, Now(), limit);
  const absl::Status status = rails_[rail]->Dial(life.number(), paths_->From(life.pair()),
                                                 paths_->To(life.pair(), dialler().address()));
  if (!status.ok()) return AttemptFailed(rail, status);
  Reschedule();
  Activate();
}

void TcpEndpoint::WorkDialling() {
  for (uint32_t i = 0; i < rails() && !down(); ++i) {
    TcpRail& rail = *rails_[i];
    if (!rail.dialling()) continue;
    const TcpRail::State before = rail.state();
    absl::Status status;
    if (rail.hung_up()) {
      const int error = net::SocketError(rail.fd());
      status = absl::UnavailableError(error != 0 ? ErrnoText("connect", error)
                                                 : "the peer did not take the stream");
    } else {
      status = rail.Greet({.role = Role::kData,
                           .rail = static_cast<uint8_t>(i),
                           .rails = static_cast<uint8_t>(rails()),
                           .target = dialler().peer().incarnation,
                           .link = dialler().link()});
    }
    if (!status.ok()) {
      AttemptFailed(i, status);
    } else if (rail.up()) {
      RailIsUp(i);
    } else if (rail.state() != before) {
      // The connection exists; now the peer's process must answer.
      const Time now = Now();
      lives_[i].Answered(now);
      lives_[i].Step(RailLife::State::kProbing, now, backend_->options().connect_timeout);
      Reschedule();
    }
  }
}

void TcpEndpoint::RailIsUp(uint32_t rail) {
  lives_[rail].Up();
  Reschedule();
  if (up()) return Say(EventKind::kRailUp, 0, {}, rail);
  TryGoUp(false);
}

void TcpEndpoint::AttemptFailed(uint32_t rail, const absl::Status& why) {
  RailLife& life = lives_[rail];
  life.End(Annotate(why, Where(rail)));
  rails_[rail]->Close(life.why());
  // ResourceExhausted is this host's own lack, and says nothing about the pair.
  const bool own = absl::IsResourceExhausted(why);
  const bool at_once = life.Retry(Now(), own ? RailLife::Blame::kThisHost : RailLife::Blame::kPair);
  Reschedule();
  if (!at_once) TryGoUp(false);
}

void TcpEndpoint::RailTimers(Time now) {
  for (uint32_t i = 0; i < lives_.size() && !down(); ++i) {
    RailLife& life = lives_[i];
    if (!life.Due(now)) continue;
    if (life.state() == RailLife::State::kWaiting) {
      StartRail(i);
      continue;
    }
    const auto waited = (now - life.began()) / std::chrono::milliseconds(1);
    AttemptFailed(
        i, absl::UnavailableError(absl::StrCat(life.state() == RailLife::State::kConnecting
                                                   ? "no connection within "
                                                   : "connected, and no answer of the peer within ",
                                               waited, " ms")));
  }
}

void TcpEndpoint::ReopenRail(uint32_t rail) {
  if (!up() || !connecting() || rail >= rails_.size() || !lives_[rail].Reopen(Now())) return;
  Reschedule();
}

void TcpEndpoint::RailFailed(uint32_t rail, const absl::Status& status) {
  if (down()) return;
  Recall(rail);
  if (!absl::IsUnavailable(status)) return Fail(status, absl::StrCat("data stream ", rail));
  const absl::Status why = Annotate(status, Where(rail));
  if (!connecting()) {
    const uint32_t life = rails_[rail]->life();
    CloseEnd(rail, why);
    const std::string lost = Encode(StreamLost{
        .rail = static_cast<uint8_t>(rail), .life = life, .why = ForPeer(ToStd(why.message()))});
    return Tell(lost);
  }
  if (!up()) return AttemptFailed(rail, status);
  lives_[rail].End(why, rails_[rail]->carried());
  rails_[rail]->Close(why);
  Say(EventKind::kRailDown, 0, why, rail);
}

// Nothing more is read from a stream that has ended, even if its socket still holds bytes.
void TcpEndpoint::DropHungUp() {
  for (uint32_t i = 0; i < rails() && !down(); ++i) {
    if (!AtHome(i) || !rails_[i]->hung_up() || !rails_[i]->up()) continue;
    RailFailed(i, rails_[i]->WhyHungUp());
  }
}

// Accepting side: closes its end of the rail, which makes the rail quiet.
void TcpEndpoint::CloseEnd(uint32_t rail, const absl::Status& why) {
  // A peer may request this repeatedly; an end that is closed is skipped.
  if (!rails_[rail]->attached()) return;
  Recall(rail);
  rails_[rail]->Close(why);
  for (const auto& [transfer, answers] : fences_.Close(rail)) {
    EmitFenced({.transfer = transfer}, answers);
  }
}

void TcpEndpoint::FenceRail(uint32_t rail) {
  if (!up() || connecting() || rail >= rails_.size()) return;
  CloseEnd(rail, absl::UnavailableError("its initiator gave it up"));
  EmitFenced({.rail = rail});
}

// The peer has closed its end of a rail. Its reason is better than the end of file that follows.
absl::Status TcpEndpoint::OnStreamLost(std::span<const std::byte> frame) {
  absl::StatusOr<StreamLost> lost = DecodeStreamLost(frame);
  if (!lost.ok()) return lost.status();
  if (lost->rail >= rails()) return absl::InvalidArgumentError("the peer lost a rail of no number");
  const TcpRail& rail = *rails_[lost->rail];
  // A report about an earlier life is stale.
  if (!rail.up() || rail.life() != lost->life) return absl::OkStatus();
  RailFailed(lost->rail,
             absl::UnavailableError(absl::StrCat("the peer's end of it failed: ", lost->why)));
  return absl::OkStatus();
}

void TcpEndpoint::OnSent(uint32_t /*rail*/) {
  if (look_at_) return;
  look_at_ = Now() + kLookInterval;
  Reschedule();
}

void TcpEndpoint::CheckAcknowledgements(Time now) {
  look_at_.reset();
  for (uint32_t i = 0; i < rails() && !down(); ++i) {
    bool stalled = false;
    bool in_vain = false;
    {
      const Held rail = Hold(i);
      if (!rail->up() || !rail->watched()) continue;
      stalled = rail->Stalled(now);
      in_vain = stalled && rail->carried() == RailLife::Carried::kNothing;
      if (!stalled && rail->watched()) look_at_ = now + kLookInterval;
    }
    if (stalled) {
      RailFailed(i, absl::UnavailableError(absl::StrCat(
                        "nothing of what was sent has been acknowledged for ",
                        net::Dialler::kUserTimeoutMs, " ms",
                        in_vain ? ", though the stream came up: does the path take packets of "
                                  "the interface's MTU?"
                                : "")));
    }
  }
}

}  // namespace kvxfer::tcp
