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

void TcpEndpoint::OnWelcome() {
  for (uint32_t i = 0; i < rails() && !down(); ++i) StartRail(i);
}

bool TcpEndpoint::Expects(const Preamble& preamble) const {
  return !connecting() && id_ == preamble.link && rails() == preamble.rails;
}

bool TcpEndpoint::Join(const Preamble& preamble, net::Fd& fd) {
  if (down() || preamble.rail >= rails_.size()) return false;
  TcpRail& rail = *rails_[preamble.rail];
  if (preamble.life <= rail.life()) return false;
  // The initiator has given up the life before this one.
  if (rail.attached()) CloseEnd(preamble.rail, absl::UnavailableError("a later one has come"));
  net::Answer(fd, {.code = WelcomeCode::kJoin, .link = id_});
  rail.Take(std::move(fd), preamble.life);
  fences_.Open(preamble.rail, preamble.life);
  // The first data stream makes the endpoint usable.
  if (greeting()) backend_->hub().Report(this);
  Activate();
  return true;
}

void TcpEndpoint::SayHello() {
  // A broken stream is noticed when the control stream is read.
  control().Push(ControlKind::kReady, {}).IgnoreError();
}

bool TcpEndpoint::TakeReady() {
  if (!connecting() || !greeting()) return false;
  ready_ = true;
  TryGoUp(false);
  return true;
}

// Goes up as soon as no rail's first attempt is outstanding; if `late`, with the rails that are up
// by now. If no rail can be connected, the endpoint goes down.
void TcpEndpoint::TryGoUp(bool late) {
  if (!greeting()) return;
  const bool any = std::ranges::any_of(rails_, [](const auto& rail) { return rail->up(); });
  const bool settled = std::ranges::all_of(lives_, &RailLife::settled);
  if (settled && !any) {
    std::string why = absl::StrCat(Where(), ": no data stream can be made");
    for (const RailLife& life : lives_) absl::StrAppend(&why, "; ", life.why().message());
    return Down(absl::Status(lives_.front().why().code(), why), true);
  }
  // The target must have reported the endpoint before this side does, so that a message finds an
  // endpoint.
  if (!any || !ready_) return;
  if (settled || late) {
    join_by_.reset();
    GoUp();
    return Activate();
  }
  if (join_by_) return;
  join_by_ = Now() + kJoinGrace;
  Reschedule();
}

void TcpEndpoint::OnGreetingDeadline() {
  TryGoUp(/*late=*/true);
  if (!greeting()) return;
  Fail(absl::UnavailableError(
           absl::StrCat("no connection within ",
                        backend_->options().connect_timeout / std::chrono::milliseconds(1), " ms")),
       "data streams");
}

std::optional<Time> TcpEndpoint::DataDeadline() const {
  std::optional<Time> next = Earlier(join_by_, look_at_);
  for (const RailLife& life : lives_) next = Earlier(next, life.deadline());
  return next;
}

void TcpEndpoint::OnDataDeadline(Time now) {
  if (join_by_ && *join_by_ <= now) {
    // Rails that were up when kJoinGrace began may be down again; others may still come up.
    join_by_.reset();
    TryGoUp(/*late=*/true);
  }
  if (!down()) RailTimers(now);
  if (!down() && look_at_ && *look_at_ <= now) CheckAcknowledgements(now);
}

}  // namespace kvxfer::tcp
