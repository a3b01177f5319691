// DialledLink: opening, probing, failing and reopening rails.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/backends/libfabric/backend.h"
#include "src/backends/libfabric/dialled.h"
#include "src/core/base/strings.h"
#include "src/core/base/text.h"

namespace kvxfer::libfabric {
namespace {

// Limits of the interval between two attempts for a rail.
constexpr Duration kMinBackOff = std::chrono::milliseconds(1);
constexpr Duration kMaxBackOff = std::chrono::seconds(1);

}  // namespace

void DialledLink::Attempt(uint32_t index) {
  Rail& rail = rails_[index];
  ++rail.life;
  rail.worked = rail.probe_posted = rail.probe_arrived = false;
  rail.sent = rail.heard = rail.immediate = rail.barrier = kFirstCount;
  absl::StatusOr<std::unique_ptr<End>> end = End::Open(backend_->domains()[index].get());
  if (!end.ok()) return FailRail(index, end.status());
  rail.end = *std::move(end);
  rail.state = Rail::State::kOffered;
  backend_->hub().TimersChanged();
  Tell(Offer{
      .rail = static_cast<uint8_t>(index), .life = rail.life, .address = rail.end->address()});
}

absl::Status DialledLink::OnAnswer(const Answer& answer) {
  Rail& rail = rails_[answer.rail];
  // The rail failed after it was offered.
  const bool over = rail.state == Rail::State::kFailed || rail.state == Rail::State::kWaiting;
  if (answer.life != rail.life || over) return absl::OkStatus();
  if (rail.state != Rail::State::kOffered) {
    return absl::InvalidArgumentError("the peer answered what it was not asked");
  }
  absl::Status status = answer.error.empty()
                            ? rail.end->SetPeer(answer.address)
                            : absl::UnavailableError("the peer's end: " + answer.error);
  if (!status.ok()) {
    FailRail(answer.rail, status);
    return absl::OkStatus();
  }
  rail.sink = answer.sink;
  rail.sink_key = answer.sink_key;
  rail.state = Rail::State::kProbing;
  rail.until = Now() + backend_->options().connect_timeout;
  backend_->hub().TimersChanged();
  BeBusy();
  TryProbe(answer.rail);
  return absl::OkStatus();
}

// Posts the probe. Some providers connect with the first write; until they have done so they ask to
// try again, and PollData does.
void DialledLink::TryProbe(uint32_t index) {
  Rail& rail = rails_[index];
  if (rail.state != Rail::State::kProbing || rail.probe_posted) return;
  const bool carries = rail.end->domain().carries_immediates();
  absl::StatusOr<bool> posted = PostNothing(rail, carries ? std::optional(0u) : std::nullopt, {});
  if (!posted.ok()) return FailRail(index, posted.status());
  rail.probe_posted = *posted;
}

// A rail whose immediates the peer does not receive must not come up: every transfer would wait for
// them in vain.
void DialledLink::UpIfProbed(uint32_t index) {
  Rail& rail = rails_[index];
  if (rail.state != Rail::State::kProbing || !rail.probe_arrived || rail.heard != rail.sent) return;
  rail.state = Rail::State::kUp;
  rail.why = absl::OkStatus();
  ever_up_ = true;
  backend_->hub().TimersChanged();
  Say(EventKind::kRailUp, 0, {}, index);
}

absl::Status DialledLink::OnCount(const Count& count) {
  Rail& rail = rails_[count.rail];
  if (count.life != rail.life) return absl::OkStatus();
  // Modulo 2^32: the peer cannot receive more than was sent.
  if (count.count - rail.heard > rail.sent - rail.heard) {
    return absl::InvalidArgumentError("the peer has heard immediates that were not sent");
  }
  rail.heard = count.count;
  UpIfProbed(count.rail);
  return absl::OkStatus();
}

void DialledLink::OnLost(const RailLost& lost) {
  const Rail& rail = rails_[lost.rail];
  if (lost.life != rail.life || rail.end == nullptr) return;
  FailRail(lost.rail, absl::UnavailableError("the peer's end: " + lost.why));
}

void DialledLink::FailRail(uint32_t index, const absl::Status& why, std::span<const Done> ended) {
  Rail& rail = rails_[index];
  if (!up() || rail.state == Rail::State::kFailed) return;
  const bool was_up = rail.state == Rail::State::kUp;
  rail.state = Rail::State::kFailed;
  rail.why = absl::UnavailableError(
      absl::StrCat(Where(), ", ", backend_->domains()[index]->Name(), ": ", why.message()));
  backend_->hub().TimersChanged();
  // Sent before any op completes. Failed ops may still write, and only the peer's closing of its
  // end stops them; so the peer has to know before it is told that a transfer is quiet.
  Tell(RailLost{.rail = static_cast<uint8_t>(index),
                .life = rail.life,
                .why = ForPeer(ToStd(why.message()))});
  for (const Done& one : ended) {
    if (one.flight.transfer != 0) OpDone(index, one.flight, OwnError(one));
  }
  if (rail.end != nullptr) {
    for (const Flight& flight : rail.end->Close()) {
      if (flight.transfer != 0) OpDone(index, flight, rail.why);
    }
    rail.end.reset();
  }
  const auto failed = [](const Rail& one) { return !one.why.ok(); };
  if (!ever_up_ && std::ranges::all_of(rails_, failed)) return Down(rail.why, true);
  // A rail that never came up carried nothing that would have to be fenced.
  if (!was_up) return ReopenRail(index);
  Say(EventKind::kRailDown, 0, rail.why, index);
}

void DialledLink::ReopenRail(uint32_t index) {
  if (!up() || index >= rails_.size() || rails_[index].state != Rail::State::kFailed) return;
  Rail& rail = rails_[index];
  // Starts over after a life in which an op completed, and doubles otherwise.
  rail.back_off =
      rail.worked ? kMinBackOff : std::clamp(2 * rail.back_off, kMinBackOff, kMaxBackOff);
  rail.state = Rail::State::kWaiting;
  rail.until = Now() + rail.back_off;
  backend_->hub().TimersChanged();
}

void DialledLink::OnRailDeadline(uint32_t index, Time now) {
  const Rail& rail = rails_[index];
  if (rail.state == Rail::State::kWaiting && rail.until <= now) return Attempt(index);
  if (rail.state != Rail::State::kProbing || rail.until > now) return;
  FailRail(index,
           absl::UnavailableError(
               rail.probe_arrived
                   ? "a write landed in time, and its immediate did not come out at the "
                     "peer: the device or its provider does not tell of peers' writes, or the peer "
                     "did not look in time"
                   : "no write over libfabric was answered in time"));
}

}  // namespace kvxfer::libfabric
