// TcpEndpoint: how it comes up, on either side, and its deadlines.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/backends/tcp/backend.h"
#include "src/backends/tcp/endpoint.h"
#include "src/core/base/strings.h"

namespace kvxfer::tcp {
namespace {

// Once one data stream is up, the others have this long until the endpoint goes up without them.
constexpr Duration kJoinGrace = std::chrono::milliseconds(200);

}  // namespace

void TcpEndpoint::Dial() {
  state_ = State::kDialling;
  dialler_->Start();
  FollowDialler();
}

void TcpEndpoint::FollowDialler() {
  deadline_ = dialler_->deadline();
  if (dialler_->state() == net::Dialler::State::kFailed) return Down(dialler_->status(), false);
  Activate();
  if (dialler_->state() == net::Dialler::State::kBusy) return;
  id_ = dialler_->link();
  state_ = State::kJoining;
  join_by_ = deadline_;
  give_up_ = *deadline_;
  for (uint32_t i = 0; i < rails() && !down(); ++i) StartRail(i);
}

void TcpEndpoint::WorkConnecting() {
  if (state_ == State::kDialling) {
    dialler_->Work();
    FollowDialler();
  }
  if (!joining()) return;
  WorkDialling();
  DropHungUp();
  if (!joining() || ready_ || !(control_.readable() || control_.HasFrame())) return;
  ReceiveControl(false);
}

bool TcpEndpoint::Join(const Preamble& preamble, net::Fd* fd) {
  if (down() || preamble.rail >= rails_.size()) return false;
  TcpRail& rail = *rails_[preamble.rail];
  if (preamble.life <= rail.life()) return false;
  // The initiator has given up the life before this one.
  if (rail.attached()) CloseEnd(preamble.rail, absl::UnavailableError("a later one has come"));
  net::Answer(*fd, {.code = WelcomeCode::kJoin, .link = id_});
  rail.Take(std::move(*fd), preamble.life);
  fences_.Open(preamble.rail, preamble.life);
  Activate();
  return true;
}

void TcpEndpoint::GoUp() {
  state_ = State::kUp;
  reported_ = true;
  join_by_.reset();
  deadline_.reset();
  net::SetUserTimeout(control_.fd(), net::Dialler::kUserTimeoutMs);
  net::TuneIfLocal(control_.fd());
  // A broken stream is noticed when the control stream is read.
  control_.Push(ControlKind::kReady, {}).IgnoreError();
  Activate();
}

// Goes up as soon as no rail's first attempt is outstanding; if `late`, with the rails that are up
// by now. If no rail can be connected, the endpoint goes down.
void TcpEndpoint::TryGoUp(bool late) {
  if (!joining()) return;
  const bool any = std::ranges::any_of(rails_, [](const auto& rail) { return rail->up(); });
  const bool settled = std::ranges::all_of(lives_, &RailLife::settled);
  if (settled && !any) {
    std::string why = absl::StrCat("tcp peer ", Name(), ": no data stream can be made");
    for (const RailLife& life : lives_) absl::StrAppend(&why, "; ", life.why().message());
    return Down(absl::Status(lives_.front().why().code(), why), true);
  }
  // The target must have reported the endpoint before this side does, so that a message finds an
  // endpoint.
  if (!any || !ready_) return;
  if (!settled && !late) {
    join_by_ = std::min(*join_by_, Now() + kJoinGrace);
    return Schedule(*join_by_);
  }
  state_ = State::kUp;
  join_by_.reset();
  Emit(EventKind::kConnected);
  Activate();
}

void TcpEndpoint::OnJoinDeadline() {
  if (side_ == Side::kAccepting) return Down(absl::DeadlineExceededError("never joined"), false);
  TryGoUp(/*late=*/true);
  if (!joining()) return;
  // Rails that were up when kJoinGrace began may be down again; others may still come up until
  // give_up_.
  if (Now() < give_up_) {
    join_by_ = give_up_;
    return;
  }
  Fail(absl::UnavailableError(
           absl::StrCat("no connection within ",
                        backend_->options().connect_timeout / std::chrono::milliseconds(1), " ms")),
       "data streams");
}

void TcpEndpoint::Schedule(Time when) {
  if (deadline_ && *deadline_ <= when) return;
  deadline_ = when;
  backend_->Watch(this);
}

void TcpEndpoint::OnDeadline() {
  if (state_ == State::kDialling) {
    dialler_->OnDeadline();
    return FollowDialler();
  }
  const Time now = Now();
  deadline_.reset();
  if (join_by_ && *join_by_ <= now) OnJoinDeadline();
  if (!down()) RailTimers(now);
  if (!down() && look_at_ && *look_at_ <= now) CheckAcknowledgements(now);
  if (down()) return;
  if (join_by_) Schedule(*join_by_);
  if (look_at_) Schedule(*look_at_);
  for (const RailLife& life : lives_) {
    if (life.deadline()) Schedule(*life.deadline());
  }
}

}  // namespace kvxfer::tcp
