// LibfabricDialledEndpoint: the peer's frames, deadlines, coming up and ending.

#include "src/backends/libfabric/dialled.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "src/backends/libfabric/backend.h"
#include "src/backends/libfabric/regions.h"

namespace kvxfer::libfabric {
namespace {

// How long the end of an endpoint waits for ops in flight.
constexpr Duration kDrain = std::chrono::milliseconds(50);

}  // namespace

LibfabricDialledEndpoint::~LibfabricDialledEndpoint() {
  if (backend_ != nullptr) backend_->arrival_flusher().Forget(this);
}

EndpointInfo LibfabricDialledEndpoint::Describe() const {
  EndpointInfo out{.path = Name(), .rails = std::vector<RailInfo>(rails_.size())};
  for (size_t i = 0; i < rails_.size(); ++i) {
    RailInfo& rail = out.rails[i];
    rail.up = rails_[i].life.up();
    if (backend_ == nullptr) continue;
    const Domain& domain = *backend_->domains()[i];
    const fid_nic* const nic = domain.info().nic;
    const bool known = nic != nullptr && nic->link_attr != nullptr;
    rail.bytes_per_second = known ? static_cast<double>(nic->link_attr->speed) / 8 : 0;
    rail.name = domain.Name();
    absl::StrAppend(&out.path, ", ", rail.name, rails_[i].life.NotInUse());
  }
  return out;
}

absl::StatusOr<std::unique_ptr<RemoteKey>> LibfabricDialledEndpoint::Import(
    const RemoteRegion& region, std::string_view key) {
  absl::StatusOr<std::unique_ptr<LibfabricRemoteKey>> decoded =
      LibfabricRemoteKey::Decode(region, key);
  if (!decoded.ok()) return decoded.status();
  // A rail posts with the key of its domain, so the key has to cover all rails.
  if (!rails_.empty() && !(*decoded)->has(rails_.size() - 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("libfabric: region ", static_cast<uint32_t>(region.id), " of ", Name(),
                     " is not registered with every domain that it has; take the metadata again"));
  }
  return std::unique_ptr<RemoteKey>(*std::move(decoded));
}

absl::Status LibfabricDialledEndpoint::OnDecoded(const Frame& frame) {
  if (const auto* hello = std::get_if<Hello>(&frame); hello != nullptr && greeting()) {
    return OnHello(*hello);
  }
  const auto ours = [&](const auto* of) { return of != nullptr && of->rail < rails_.size(); };
  if (const auto* answer = std::get_if<Answer>(&frame); ours(answer)) return OnAnswer(*answer);
  if (const auto* lost = std::get_if<RailLost>(&frame); ours(lost)) {
    OnLost(*lost);
    return absl::OkStatus();
  }
  if (const auto* count = std::get_if<Count>(&frame); ours(count)) return OnCount(*count);
  return absl::InvalidArgumentError("the peer sent a libfabric frame that has no place here");
}

absl::Status LibfabricDialledEndpoint::OnHello(const Hello& hello) {
  // Rails are the domains that both sides have, by number.
  const size_t count = std::min<size_t>(backend_->domains().size(), hello.domains);
  if (count == 0) return absl::InvalidArgumentError("the peer has no domain");
  rails_.resize(count);
  GoUp();
  for (uint32_t i = 0; i < count && up(); ++i) Attempt(i);
  return absl::OkStatus();
}

std::optional<Time> LibfabricDialledEndpoint::DataDeadline() const {
  std::optional<Time> next = stopping_.deadline();
  for (const DialledRail& rail : rails_) next = Earlier(next, rail.life.deadline());
  return next;
}

void LibfabricDialledEndpoint::OnDataDeadline(Time now) {
  for (uint32_t i = 0; i < rails_.size() && up(); ++i) OnRailDeadline(i, now);
  if (up()) CheckStuckFences(now);
}

// Closing an endpoint stops what is in flight. Before that ops get a little time to complete,
// because with some providers a close in the middle of an op breaks the peer's endpoint.
void LibfabricDialledEndpoint::EndData(const absl::Status& why) {
  stopping_.Clear();
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
    rails_[i].life.End(rails_[i].life.why());
  }
}

}  // namespace kvxfer::libfabric
