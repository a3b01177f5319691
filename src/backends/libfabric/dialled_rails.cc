// LibfabricDialledEndpoint: opening, probing, failing and reopening rails.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/backends/libfabric/backend.h"
#include "src/backends/libfabric/dialled.h"
#include "src/core/base/strings.h"

namespace kvxfer::libfabric {

void LibfabricDialledEndpoint::Attempt(uint32_t index) {
  DialledRail& rail = rails_[index];
  rail.life.Attempt();
  rail.worked = rail.probe_posted = rail.probe_arrived = false;
  rail.sent = rail.heard = rail.announced = rail.held_until = kFirstCount;
  absl::StatusOr<std::unique_ptr<End>> end = End::Open(backend_->domains()[index].get());
  if (!end.ok()) return FailRail(index, end.status());
  rail.end = *std::move(end);
  rail.life.Step(RailLife::State::kOffered, Now());
  Reschedule();
  Tell(Offer{.rail = static_cast<uint8_t>(index),
             .life = rail.life.number(),
             .address = rail.end->address()});
}

absl::Status LibfabricDialledEndpoint::OnAnswer(const Answer& answer) {
  DialledRail& rail = rails_[answer.rail];
  // Without an end: the rail failed after it was offered.
  if (answer.life != rail.life.number() || rail.end == nullptr) return absl::OkStatus();
  if (rail.life.state() != RailLife::State::kOffered) {
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
  rail.life.Step(RailLife::State::kProbing, Now(), backend_->options().connect_timeout);
  Reschedule();
  BeBusy();
  TryProbe(answer.rail);
  return absl::OkStatus();
}

// Posts the probe. Some providers connect with the first write; until they have done so they ask to
// try again, and PollData does.
void LibfabricDialledEndpoint::TryProbe(uint32_t index) {
  DialledRail& rail = rails_[index];
  if (!rail.life.probing() || rail.probe_posted) return;
  const bool carries = rail.end->domain().carries_immediates();
  absl::StatusOr<bool> posted = PostNothing(rail, carries ? std::optional(0u) : std::nullopt, {});
  if (!posted.ok()) return FailRail(index, posted.status());
  rail.probe_posted = *posted;
}

// A rail whose immediates the peer does not receive must not come up: every transfer would wait for
// them in vain.
void LibfabricDialledEndpoint::UpIfProbed(uint32_t index) {
  DialledRail& rail = rails_[index];
  if (!rail.life.probing() || !rail.probe_arrived || rail.heard != rail.sent) return;
  rail.life.Up();
  Reschedule();
  Say(EventKind::kRailUp, 0, {}, index);
}

absl::Status LibfabricDialledEndpoint::OnCount(const Count& count) {
  DialledRail& rail = rails_[count.rail];
  if (count.life != rail.life.number()) return absl::OkStatus();
  // Modulo 2^32: the peer cannot receive more than was sent.
  if (count.count - rail.heard > rail.sent - rail.heard) {
    return absl::InvalidArgumentError("the peer has heard immediates that were not sent");
  }
  rail.heard = count.count;
  UpIfProbed(count.rail);
  return absl::OkStatus();
}

void LibfabricDialledEndpoint::OnLost(const RailLost& lost) {
  const DialledRail& rail = rails_[lost.rail];
  if (lost.life != rail.life.number() || rail.end == nullptr) return;
  FailRail(lost.rail, absl::UnavailableError("the peer's end: " + lost.why));
}

void LibfabricDialledEndpoint::FailRail(uint32_t index, const absl::Status& why,
                                        std::span<const Done> ended) {
  DialledRail& rail = rails_[index];
  RailLife& life = rail.life;
  if (!up() || !(life.up() || life.attempting())) return;
  const bool was_up = life.up();
  life.End(absl::UnavailableError(absl::StrCat(Where(), ", ", backend_->domains()[index]->Name(),
                                               ": ", why.message())),
           rail.worked ? RailLife::Carried::kData : RailLife::Carried::kUnheard);
  // Sent before any op completes. Failed ops may still write, and only the peer's closing of its
  // end stops them; so the peer has to know before it is told that a transfer is quiet.
  Tell(net::LostRail(index, life.number(), ToStd(why.message())));
  for (const Done& one : ended) {
    if (one.flight.transfer != 0) OpDone(index, one.flight, OwnError(one));
  }
  if (rail.end != nullptr) {
    for (const Flight& flight : rail.end->Close()) {
      if (flight.transfer != 0) OpDone(index, flight, life.why());
    }
    rail.end.reset();
  }
  Reschedule();
  if (was_up) return Say(EventKind::kRailDown, 0, life.why(), index);
  // A rail that never came up carried nothing that would have to be fenced.
  life.Retry(Now(), RailLife::Blame::kPair);
  const auto hopeless = [](const DialledRail& one) { return one.life.hopeless(); };
  if (std::ranges::all_of(rails_, hopeless)) Down(life.why(), true);
}

void LibfabricDialledEndpoint::ReopenRail(uint32_t index) {
  if (!up() || index >= rails_.size() || !rails_[index].life.Reopen(Now())) return;
  Reschedule();
}

void LibfabricDialledEndpoint::OnRailDeadline(uint32_t index, Time now) {
  DialledRail& rail = rails_[index];
  if (!rail.life.Due(now)) return;
  if (rail.life.state() == RailLife::State::kWaiting) return Attempt(index);
  FailRail(index,
           absl::UnavailableError(
               rail.probe_arrived
                   ? "a write landed in time, and its immediate did not come out at the "
                     "peer: the device or its provider does not tell of peers' writes, or the peer "
                     "did not look in time"
                   : "no write over libfabric was answered in time"));
}

}  // namespace kvxfer::libfabric
