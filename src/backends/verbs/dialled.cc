#include "src/backends/verbs/dialled.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "src/backends/verbs/backend.h"
#include "src/backends/verbs/errors.h"
#include "src/core/base/log.h"
#include "src/core/base/strings.h"

namespace kvxfer::verbs {
namespace {

// The most pairs per rail that Describe lists as tried in vain.
constexpr size_t kMaxNamed = 4;

}  // namespace

VerbsDialledEndpoint::VerbsDialledEndpoint(VerbsBackend* backend, net::PeerAddress peer,
                                           Scratch::Slot scratch)
    : VerbsEndpoint(backend, std::move(peer)), scratch_(scratch) {}

VerbsDialledEndpoint::~VerbsDialledEndpoint() {
  if (backend_ == nullptr) return;
  rails_.clear();
  backend_->arrival_flusher().Forget(this);
  backend_->dialled_scratch().Give(scratch_);
}

Device& VerbsDialledEndpoint::local_device(size_t port) const {
  return *backend_->ports()[port].device;
}
const LocalPort& VerbsDialledEndpoint::local_port(size_t port) const {
  return backend_->ports()[port].port();
}
absl::Status VerbsDialledEndpoint::RefreshPort(size_t port) {
  return local_device(port).Refresh(backend_->ports()[port].index);
}

std::optional<Time> VerbsDialledEndpoint::RailDeadline() const {
  std::optional<Time> next = stopping_.deadline();
  for (const auto& rail : rails_) next = Earlier(next, rail->life().deadline());
  return next;
}

void VerbsDialledEndpoint::OnRailDeadline(Time now) {
  for (const auto& rail : rails_) {
    if (!down()) rail->OnDeadline(now);
  }
  if (!down()) CheckStuckFences(now);
}

absl::Status VerbsDialledEndpoint::OnDecoded(Blob& blob) {
  // The peer's hello.
  if (auto* ports = std::get_if<Ports>(&blob); ports != nullptr && greeting()) {
    OnPorts(std::move(*ports));
    return absl::OkStatus();
  }
  if (auto* ports = std::get_if<Ports>(&blob); ports != nullptr && up()) {
    return OnPortsAgain(std::move(*ports));
  }
  const auto rail_of = [&](const auto& of) -> VerbsRail* {
    return of.rail < rails_.size() ? rails_[of.rail].get() : nullptr;
  };
  VerbsRail* rail = nullptr;
  if (const auto* answer = std::get_if<Answer>(&blob)) {
    if ((rail = rail_of(*answer)) != nullptr) rail->OnAnswer(*answer);
  } else if (const auto* probed = std::get_if<Probed>(&blob)) {
    if ((rail = rail_of(*probed)) != nullptr) rail->OnProbed(*probed);
  } else if (const auto* lost = std::get_if<RailLost>(&blob)) {
    if ((rail = rail_of(*lost)) != nullptr) rail->OnLost(*lost);
  }
  if (rail == nullptr) {
    return absl::InvalidArgumentError("the peer sent a verbs frame that has no place here");
  }
  return absl::OkStatus();
}

void VerbsDialledEndpoint::OnPorts(Ports ports) {
  remote_ = std::move(ports.ports);
  const std::vector<PortInfo> local = backend_->PortInfos();
  const std::vector<Pair> pairs = ChoosePairs(local, remote_, net::kMaxRails);
  if (pairs.empty()) {
    return Down(Annotate(CheckPairs(local, remote_), Where()), true);
  }
  for (size_t i = 0; i < pairs.size(); ++i) {
    rails_.push_back(std::make_unique<VerbsRail>(this, static_cast<uint32_t>(i), pairs[i]));
  }
  GoUp();
  for (const auto& rail : rails_) {
    if (!down()) rail->Attempt();
  }
}

// One of the peer's ports came up or has another address, so waiting rails are worth another
// attempt.
absl::Status VerbsDialledEndpoint::OnPortsAgain(Ports ports) {
  if (ports.ports.size() < remote_.size()) {
    return absl::InvalidArgumentError("the peer has fewer ports than it told before");
  }
  remote_ = std::move(ports.ports);
  for (const auto& rail : rails_) rail->OnPortUp();
  return absl::OkStatus();
}

std::optional<Pair> VerbsDialledEndpoint::OtherPair(uint32_t rail,
                                                    std::span<const Pair> bad) const {
  const auto pair_of = [&](size_t other) { return rails_[other]->pair(); };
  return ChooseOther(backend_->PortInfos(), remote_, PairsOfOthers(rails_.size(), rail, pair_of),
                     bad);
}

// If every pair of every rail was tried in vain, the endpoint is of no use.
void VerbsDialledEndpoint::OnAttemptFailed() {
  const auto hopeless = [](const auto& rail) { return rail->life().hopeless(); };
  if (!up() || !std::ranges::all_of(rails_, hopeless)) return;
  std::string why;
  for (const auto& rail : rails_) {
    absl::StrAppend(&why, "; ", rail->Path(), ": ", rail->life().why().message());
  }
  Down(absl::UnavailableError(absl::StrCat(Where(), ": no pair of ports passes data", why)), true);
}

void VerbsDialledEndpoint::RailUp(uint32_t rail) {
  Say(EventKind::kRailUp, 0, {}, rail);
  carrier().OnRailUp(rails_[rail]->pair());
}

void VerbsDialledEndpoint::RailDown(uint32_t rail, const absl::Status& why) {
  Log(LogLevel::kWarning, "verbs: rail {} is down: {}", rail,
      std::string_view(why.message().data(), why.message().size()));
  Say(EventKind::kRailDown, 0, why, rail);
}

void VerbsDialledEndpoint::ReopenRail(uint32_t rail) {
  if (up() && rail < rails_.size()) rails_[rail]->Reopen();
}

void VerbsDialledEndpoint::OnRailPort(const Device& device, uint8_t port, ibv_event_type type) {
  for (const auto& rail : rails_) {
    if (down() || !rail->uses(device, port)) continue;
    // A rail may have waited for the port's new address.
    if (type != IBV_EVENT_PORT_ERR) rail->OnPortUp();
    if (type != IBV_EVENT_PORT_ACTIVE) {
      rail->Fail(absl::UnavailableError(
                     absl::StrCat(Where(), ", ", rail->Path(), ": ", ToAbsl(EventName(type)))),
                 true);
    }
  }
}

void VerbsDialledEndpoint::OnRailQueuePair(const Device& device, uint32_t number,
                                           const absl::Status& why) {
  for (const auto& rail : rails_) {
    if (!down() && rail->uses(device) && rail->queue_pair() == number) rail->Fail(why, true);
  }
}

void VerbsDialledEndpoint::OnRailDevice(const Device& device, const absl::Status& why) {
  for (const auto& rail : rails_) {
    if (!down() && rail->uses(device)) rail->Fail(why, true);
  }
}

void VerbsDialledEndpoint::OnSetUp(uint32_t rail, absl::Status status,
                                   std::unique_ptr<QueuePair> pair) {
  rails_[rail]->OnSetUp(std::move(status), std::move(pair));
}

void VerbsDialledEndpoint::OnDestroyed(uint32_t rail, Device&, uint32_t) {
  rails_[rail]->OnDestroyed();
  FinishDown();
}

bool VerbsDialledEndpoint::RailsAreQuiet() const {
  return std::ranges::none_of(rails_, [](const auto& rail) { return rail->if_refused(); });
}

void VerbsDialledEndpoint::OnUncovered(const Device& device, const absl::Status& why) {
  OnRailDevice(device, why);
}

std::string VerbsDialledEndpoint::Path() const {
  std::string out = Name();
  if (backend_ == nullptr) return out;
  for (const auto& rail : rails_) {
    absl::StrAppend(&out, ", ", rail->Path(), rail->life().NotInUse());
    if (rail->up()) continue;
    const std::span<const Pair> bad = rail->life().bad_pairs();
    for (const Pair& pair : bad.first(std::min(bad.size(), kMaxNamed))) {
      absl::StrAppend(&out, " (", local_port(pair.local).info.name, " → ",
                      remote_[pair.remote].name, " does not answer)");
    }
  }
  for (size_t i = 0; i < backend_->ports().size(); ++i) {
    const auto is = [i](const auto& rail) { return rail->pair().local == i; };
    const absl::Status why = backend_->ports()[i].why();
    if (why.ok() || std::ranges::any_of(rails_, is)) continue;
    absl::StrAppend(&out, ", ", local_port(i).info.name, " (not in use: ", why.message(), ")");
  }
  absl::StrAppend(&out, ", ", carrier().Path());
  return out;
}

RailInfo VerbsDialledEndpoint::InfoOf(const VerbsRail& rail) const {
  const Pair& pair = rail.pair();
  const uint32_t mbps = std::min(local_port(pair.local).info.mbps, remote_[pair.remote].mbps);
  return {.up = rail.up(),
          .bytes_per_second = mbps * 1e6 / 8,
          .name = rail.Path(),
          .round_trip = rail.life().round_trip()};
}

EndpointInfo VerbsDialledEndpoint::Describe() const {
  EndpointInfo info{.path = Path()};
  for (const auto& rail : rails_) {
    info.rails.push_back(backend_ == nullptr ? RailInfo{.up = rail->up()} : InfoOf(*rail));
  }
  return info;
}

uint32_t VerbsDialledEndpoint::rail_distance(uint32_t rail, const Registration& local,
                                             const RemoteKey& remote) const {
  if (rail >= rails_.size() || backend_ == nullptr) return 0;
  const Pair& pair = rails_[rail]->pair();
  return static_cast<const VerbsRegistration&>(local).penalty(local_device(pair.local).ordinal()) +
         static_cast<const VerbsRemoteKey&>(remote).penalty(remote_[pair.remote].device);
}

absl::StatusOr<std::unique_ptr<RemoteKey>> VerbsDialledEndpoint::Import(const RemoteRegion& region,
                                                                        std::string_view key) {
  absl::StatusOr<std::unique_ptr<VerbsRemoteKey>> decoded = VerbsRemoteKey::Decode(region, key);
  if (!decoded.ok()) return decoded.status();
  VerbsRemoteKey& imported = **decoded;
  if (imported.parts() != nullptr) {
    if (!backend_->ordered()) {
      // An op is one request there, which a boundary between parts must not cut in two.
      return absl::FailedPreconditionError(
          absl::StrCat("verbs: region ", static_cast<uint32_t>(region.id), " of ", Name(),
                       " is in several parts, and the devices here keep no order"));
    }
    ++keys_in_parts_;
    imported.set_holder(this);
  }
  const auto has = [&](const PortInfo& port) { return imported.has(port.device); };
  if (std::ranges::none_of(remote_, has) && !remote_.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "verbs: region ", static_cast<uint32_t>(region.id), " of ", Name(),
        " is not registered with any device that it has now; take the metadata again"));
  }
  if (!std::ranges::all_of(remote_, has)) {
    partial_[&imported] = region.id;
    imported.set_holder(this);
    // A rail to a device of the peer without the region's key must not be used from now on.
    for (const auto& rail : rails_) {
      const absl::Status why = CheckKeys(remote_[rail->pair().remote].device);
      if (!why.ok()) rail->Fail(why, true);
    }
  }
  return std::unique_ptr<RemoteKey>(*std::move(decoded));
}

absl::Status VerbsDialledEndpoint::CheckKeys(size_t remote_device) const {
  for (const auto& [key, region] : partial_) {
    if (key->has(remote_device)) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("region ", static_cast<uint32_t>(region), " of ", Name(),
                     " is not registered with that device of the peer; take the metadata again"));
  }
  return absl::OkStatus();
}

void VerbsDialledEndpoint::OnClosed(const VerbsRemoteKey& key) {
  if (key.parts() != nullptr) --keys_in_parts_;
  if (partial_.erase(&key) == 0 || backend_ == nullptr) return;
  // The closed key may have been what kept a rail down.
  for (const auto& rail : rails_) rail->OnPortUp();
}

void VerbsDialledEndpoint::EndRails(const absl::Status& why) {
  for (const auto& rail : rails_) rail->End(why);
  stopping_.Clear();
  stopped_.clear();
  flushing_.clear();
  flushes_ = 0;
}

}  // namespace kvxfer::verbs
