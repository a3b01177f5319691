// The connecting side: how it comes up, and how it ends.

#include "src/backends/libfabric/dialled.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "src/backends/libfabric/backend.h"
#include "src/backends/libfabric/regions.h"

namespace kvxfer::libfabric {
namespace {

// At the end of a link, for what is in flight.
constexpr Duration kDrain = std::chrono::milliseconds(50);

}  // namespace

std::string DialledLink::Describe() const {
  std::string out = Name();
  for (const Rail& rail : rails_) {
    if (rail.end == nullptr) continue;
    absl::StrAppend(&out, ", ", rail.end->domain().Name(), rail.up ? "" : " (not in use)");
  }
  return out;
}

RailInfo DialledLink::rail_info(uint32_t rail) const {
  if (rail >= rails_.size() || rails_[rail].end == nullptr) return {};
  const Domain& domain = rails_[rail].end->domain();
  const fid_nic* const nic = domain.info().nic;
  const bool known = nic != nullptr && nic->link_attr != nullptr;
  return {.bytes_per_second = known ? static_cast<double>(nic->link_attr->speed) / 8 : 0,
          .name = domain.Name()};
}

absl::StatusOr<std::unique_ptr<RemoteKey>> DialledLink::Import(const RemoteRegion& region,
                                                               std::string_view key) {
  absl::StatusOr<std::unique_ptr<LibfabricRemoteKey>> decoded =
      LibfabricRemoteKey::Decode(region, key);
  if (!decoded.ok()) return decoded.status();
  if (!rails_.empty() && !(*decoded)->has(rails_.size() - 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("libfabric: region ", static_cast<uint32_t>(region.id), " of ", Name(),
                     " is not registered with every domain that it has; take the metadata again"));
  }
  return std::unique_ptr<RemoteKey>(*std::move(decoded));
}

absl::Status DialledLink::OnWord(const Frame& frame) {
  if (const auto* hello = std::get_if<Hello>(&frame); hello != nullptr && greeting()) {
    return OnHello(*hello);
  }
  if (const auto* answer = std::get_if<Answer>(&frame);
      answer != nullptr && answer->rail < rails_.size()) {
    return OnAnswer(*answer);
  }
  return absl::InvalidArgumentError("the peer sent a libfabric frame that has no place here");
}

absl::Status DialledLink::OnHello(const Hello& hello) {
  const auto& domains = backend_->domains();
  const size_t count = std::min<size_t>(domains.size(), hello.domains);
  if (count == 0) return absl::InvalidArgumentError("the peer has no domain");
  std::vector<Rail> rails(count);
  for (size_t i = 0; i < count; ++i) {
    absl::StatusOr<std::unique_ptr<End>> end = End::Open(domains[i].get());
    if (!end.ok()) return end.status();
    rails[i].end = *std::move(end);
  }
  rails_ = std::move(rails);
  GoUp();
  for (size_t i = 0; i < count; ++i) {
    Tell(Offer{.rail = static_cast<uint8_t>(i), .address = rails_[i].end->address()});
  }
  return absl::OkStatus();
}

absl::Status DialledLink::OnAnswer(const Answer& answer) {
  Rail& rail = rails_[answer.rail];
  if (!up() || rail.probe_by || rail.up) {
    return absl::InvalidArgumentError("the peer answered what it was not asked");
  }
  if (!answer.error.empty()) {
    return absl::UnavailableError(
        absl::StrCat(rail.end->domain().Name(), ": the peer's end: ", answer.error));
  }
  if (absl::Status status = rail.end->SetPeer(answer.address); !status.ok()) return status;
  rail.sink = answer.sink;
  rail.sink_key = answer.sink_key;
  rail.probe_by = Now() + backend_->options().connect_timeout;
  backend_->hub().TimersChanged();
  BeBusy();
  TryProbe(answer.rail);
  return absl::OkStatus();
}

// Connections beneath are made by the first write: until then a provider says to try again.
void DialledLink::TryProbe(uint32_t index) {
  Rail& rail = rails_[index];
  if (!rail.probe_by || rail.probing || rail.up) return;
  absl::StatusOr<bool> posted = PostNothing(rail, std::nullopt, {});
  if (posted.ok()) {
    rail.probing = *posted;
  } else {
    failure_.Update(posted.status());
  }
}

void DialledLink::PollData() {
  std::vector<Done> done;
  for (uint32_t i = 0; i < rails_.size(); ++i) {
    done.clear();
    failure_.Update(rails_[i].end->Poll(64, done));
    for (const Done& one : done) OnDone(i, one);
    TryProbe(i);
  }
  if (!failure_.ok()) Down(Annotate(failure_, Where()), true);
}

// The peer may sleep too then.
void DialledLink::Rest() {
  if (!busy() || InFlight() || Probing() || Now() < busy_until_) return;
  told_busy_ = false;
  Tell(Idle{});
}

void DialledLink::OnDone(uint32_t index, const Done& done) {
  if (done.immediate) return;  // nobody writes here
  if (done.flight.transfer != 0) return OpDone(index, done.flight, done.status);
  Rail& rail = rails_[index];
  failure_.Update(done.status);
  rail.probing = false;
  if (!done.status.ok() || !up()) return;
  rail.probe_by.reset();
  rail.up = true;
  backend_->hub().TimersChanged();
  Say(EventKind::kRailUp, 0, {}, index);
}

bool DialledLink::unread() const {
  return std::ranges::any_of(
      rails_, [](const Rail& rail) { return rail.end != nullptr && rail.end->unread(); });
}

bool DialledLink::InFlight() const {
  return std::ranges::any_of(
      rails_, [](const Rail& rail) { return rail.end != nullptr && rail.end->in_flight() > 0; });
}

bool DialledLink::Probing() const {
  return std::ranges::any_of(rails_, [](const Rail& rail) { return rail.probe_by.has_value(); });
}

void DialledLink::BeBusy() {
  if (!std::exchange(told_busy_, true)) Tell(Busy{});
}

std::optional<Time> DialledLink::DataDeadline() const {
  std::optional<Time> next;
  for (const Rail& rail : rails_) next = Earlier(next, rail.probe_by);
  for (const auto& [transfer, stopping] : stopping_) next = Earlier(next, stopping.patience);
  return next;
}

void DialledLink::OnDataDeadline(Time now) {
  const bool probe = std::ranges::any_of(
      rails_, [now](const Rail& rail) { return rail.probe_by && *rail.probe_by <= now; });
  Down(absl::UnavailableError(
           absl::StrCat(Where(), probe ? ": no write over libfabric was answered in time"
                                       : ": a transfer has to stop, and what was posted of it "
                                         "does not end")),
       true);
}

// Closing an endpoint stops what is in flight; a little time first, for some providers leave the
// peer's side of it in pieces.
void DialledLink::EndData(const absl::Status& why) {
  stopping_.clear();
  const Time until = Now() + kDrain;
  for (uint32_t i = 0; i < rails_.size(); ++i) {
    if (rails_[i].end == nullptr) continue;
    std::vector<Done> done;
    rails_[i].end->Drain(until, done);
    for (const Done& one : done) {
      if (!one.immediate && one.flight.transfer != 0) OpDone(i, one.flight, one.status);
    }
    for (const Flight& flight : rails_[i].end->Close()) {
      if (flight.transfer != 0) OpDone(i, flight, why);
    }
    rails_[i].end.reset();
    rails_[i].up = false;
    rails_[i].probe_by.reset();
  }
}

}  // namespace kvxfer::libfabric
