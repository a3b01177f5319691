#include "src/backends/verbs/accepted.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "src/backends/verbs/backend.h"
#include "src/backends/verbs/errors.h"
#include "src/core/base/strings.h"

namespace kvxfer::verbs {
VerbsAcceptedEndpoint::VerbsAcceptedEndpoint(VerbsBackend* backend, net::Fd control,
                                             std::string peer)
    : VerbsEndpoint(backend, std::move(control), std::move(peer)) {}

VerbsAcceptedEndpoint::~VerbsAcceptedEndpoint() {
  if (backend_ == nullptr) return;
  for (uint32_t i = 0; i < rails_.size(); ++i) Kill(i);
  if (scratch_) backend_->accepted_scratch().Give(*scratch_);
  for (const Undestroyed& left : undestroyed_) backend_->RemoveReceiver(left.number, *left.device);
}

void VerbsAcceptedEndpoint::SayHello() { Tell(Ports{.ports = backend_->PortInfos()}); }

EndpointInfo VerbsAcceptedEndpoint::Describe() const {
  std::string path = Name();
  for (const AcceptedRail& rail : rails_) {
    if (rail.end != nullptr) absl::StrAppend(&path, ", ", rail.end->address().port.name);
  }
  absl::StrAppend(&path, ", ", carrier().Path());
  return {.path = std::move(path), .rails = std::vector<RailInfo>(rails_offered_)};
}

void VerbsAcceptedEndpoint::Authorize() {
  if (std::exchange(authorized_, true)) return;
  OnAuthorized();
  for (AcceptedRail& rail : rails_) {
    if (down() || !rail.offer) continue;
    Make(*std::exchange(rail.offer, nullptr));
  }
  if (!down()) carrier().Authorize();
}

Posted VerbsAcceptedEndpoint::Post(const Op& op) {
  if (!up()) return false;
  Emit(MakeRefused(this, op, "verbs"));
  return true;
}

absl::StatusOr<std::unique_ptr<RemoteKey>> VerbsAcceptedEndpoint::Import(const RemoteRegion& region,
                                                                         std::string_view key) {
  absl::StatusOr<std::unique_ptr<VerbsRemoteKey>> decoded = VerbsRemoteKey::Decode(region, key);
  if (!decoded.ok()) return decoded.status();
  return std::unique_ptr<RemoteKey>(*std::move(decoded));
}

absl::Status VerbsAcceptedEndpoint::OnDecoded(Blob& blob) {
  if (const auto* offer = std::get_if<Offer>(&blob)) return OnOffer(*offer);
  if (const auto* quiet = std::get_if<Quiet>(&blob); quiet && authorized_) {
    OnQuiet(quiet->transfer);
    return absl::OkStatus();
  }
  if (const auto* probe = std::get_if<Probe>(&blob);
      probe && authorized_ && probe->rail < rails_.size()) {
    return OnProbe(*probe);
  }
  if (const auto* lost = std::get_if<RailLost>(&blob); lost && lost->rail < rails_.size()) {
    AcceptedRail& rail = rails_[lost->rail];
    if (rail.offer && rail.offer->life == lost->life) rail.offer.reset();
    if (rail.life == lost->life) Kill(lost->rail);
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("the peer sent a verbs frame that has no place here");
}

absl::Status VerbsAcceptedEndpoint::OnOffer(const Offer& offer) {
  const bool fresh = offer.rail < rails_.size() && offer.life > rails_[offer.rail].life &&
                     (!rails_[offer.rail].offer || offer.life > rails_[offer.rail].offer->life);
  if (!fresh) {
    return absl::InvalidArgumentError("the peer offered a queue pair of no rail, or an old one");
  }
  rails_offered_ = std::max(rails_offered_, offer.rail + 1u);
  if (authorized_) {
    Make(offer);
  } else {
    rails_[offer.rail].offer = std::make_unique<Offer>(offer);
  }
  return absl::OkStatus();
}

void VerbsAcceptedEndpoint::Make(const Offer& offer) {
  Kill(offer.rail);
  rails_[offer.rail].offer = std::make_unique<Offer>(offer);
  rails_[offer.rail].life = offer.life;
  rails_[offer.rail].probed = false;
  absl::Status status = TryMake(offer);
  if (!status.ok()) OnSetUp(offer.rail, std::move(status), nullptr);
}

absl::Status VerbsAcceptedEndpoint::TryMake(const Offer& offer) {
  if (offer.port >= backend_->ports().size()) {
    return absl::InvalidArgumentError("no such port");
  }
  const VerbsBackend::PortRef& ref = backend_->ports()[offer.port];
  if (ref.device->broken()) return ref.device->why_broken();
  if (absl::Status status = ref.device->Refresh(ref.index); !status.ok()) return status;
  if (absl::Status status = backend_->destroyer().CheckSpace(*ref.device); !status.ok()) {
    return status;
  }
  if (!scratch_) {
    absl::StatusOr<Scratch::Slot> taken = backend_->accepted_scratch().Take(backend_->devices());
    if (!taken.ok()) return taken.status();
    scratch_ = *taken;
  }
  if (!scratch_->registration->has(ref.device->ordinal())) {
    return scratch_->registration->why_missing();
  }
  rails_[offer.rail].job = backend_->setups().Start(
      {.device = ref.device, .port = ref.port(), .to = offer.from}, this, offer.rail);
  return absl::OkStatus();
}

// Nothing can arrive through `pair` yet: the peer does not know its number.
void VerbsAcceptedEndpoint::OnSetUp(uint32_t rail, absl::Status status,
                                    std::unique_ptr<QueuePair> pair) {
  AcceptedRail& of = rails_[rail];
  of.job = 0;
  of.offer.reset();
  if (status.ok()) status = pair->device().why_broken();
  Answer answer{.rail = static_cast<uint8_t>(rail), .life = of.life};
  if (status.ok()) {
    answer.at = pair->address();
    answer.scratch = scratch_->address();
    answer.scratch_key = scratch_->registration->rkey_of(pair->device().ordinal());
    // Before the peer learns the number, so that no completion finds it unknown.
    backend_->AddReceiver(pair->number(), pair->device(), this, rail);
    of.end = std::move(pair);
  } else {
    backend_->destroyer().Destroy(std::move(pair));
    answer.error = std::string(status.message());
  }
  Tell(answer);
}

absl::Status VerbsAcceptedEndpoint::OnProbe(const Probe& probe) {
  AcceptedRail& rail = rails_[probe.rail];
  if (probe.life > rail.life || (probe.life == rail.life && std::exchange(rail.probed, true))) {
    return absl::InvalidArgumentError(
        "the peer asked about a probe over a queue pair that it did not offer, or twice");
  }
  // If that queue pair is gone, the peer has been notified or has offered another one.
  if (probe.life != rail.life || rail.end == nullptr) return absl::OkStatus();
  const bool found = LoadScratch(scratch_->at + probe.rail * 8) == probe.nonce;
  Tell(Probed{.rail = probe.rail, .life = probe.life, .found = found});
  return absl::OkStatus();
}

void VerbsAcceptedEndpoint::OnImmediate(uint32_t rail, uint32_t immediate) {
  backend_->arrival_flusher().OnImmediate();
  Emit({.kind = EventKind::kImmediate, .endpoint = this, .rail = rail, .immediate = immediate});
}

void VerbsAcceptedEndpoint::Kill(uint32_t rail) {
  backend_->setups().Cancel(std::exchange(rails_[rail].job, 0));
  rails_[rail].offer.reset();
  // Taken out first: a receive that it flushes must not end it a second time.
  std::unique_ptr<QueuePair> end = std::move(rails_[rail].end);
  if (end == nullptr) return;
  Device& device = end->device();
  const uint32_t number = end->number();
  // In the error state nothing more is executed. The immediates that have been written are in the
  // completion queue once the last receive is reported.
  end->SetError();
  device.AwaitLastReceive(number);
  device.DrainReceived();
  if (backend_->destroyer().Destroy(std::move(end), this, rail)) {
    Gone(device, number);
  } else {
    undestroyed_.push_back({.rail = rail, .device = &device, .number = number});
  }
}

void VerbsAcceptedEndpoint::Gone(Device& device, uint32_t number) {
  // Completions that arrived while it was destroyed.
  device.DrainReceived();
  backend_->RemoveReceiver(number, device);
}

void VerbsAcceptedEndpoint::OnDestroyed(uint32_t rail, Device& device, uint32_t number) {
  Gone(device, number);
  // A device may refuse several queue pairs of one rail.
  std::erase_if(undestroyed_, [&](const Undestroyed& one) {
    return one.device == &device && one.number == number;
  });
  if (rails_[rail].fence_due && !IsUndestroyed(rail)) FinishFenceRail(rail);
  if (!undestroyed_.empty()) return;
  for (const uint64_t transfer : std::exchange(fenced_, {})) {
    Emit(MakeFenced(this, {.transfer = transfer}));
  }
  FinishDown();
}

bool VerbsAcceptedEndpoint::IsUndestroyed(uint32_t rail) const {
  return std::ranges::find(undestroyed_, rail, &Undestroyed::rail) != undestroyed_.end();
}

void VerbsAcceptedEndpoint::Lose(uint32_t rail, std::string_view why) {
  if (rails_[rail].end == nullptr) return;
  Kill(rail);
  Tell(net::LostRail(rail, rails_[rail].life, why));
}

void VerbsAcceptedEndpoint::Fence(FenceScope scope) {
  if (!up()) return;
  if (scope.rail != FenceScope::kEveryRail) {
    FenceRail(scope.rail);
  } else if (scope.transfer != FenceScope::kEveryTransfer) {
    FenceTransfer(scope.transfer);
  }
}

void VerbsAcceptedEndpoint::FenceTransfer(uint64_t transfer) {
  AnswerFences(transfer, fences_.Ask(transfer, Now()));
  Reschedule();
}

void VerbsAcceptedEndpoint::OnQuiet(uint64_t transfer) {
  AnswerFences(transfer, fences_.OnQuiet(transfer));
}

void VerbsAcceptedEndpoint::AnswerFences(uint64_t transfer, uint32_t count) {
  if (count == 0) return;
  // Immediates of the transfer that are in the completion queue must be reported before kFenced.
  for (const AcceptedRail& rail : rails_) {
    if (rail.end != nullptr) rail.end->device().DrainReceived();
  }
  for (; count > 0; --count) {
    if (undestroyed_.empty()) {
      Emit(MakeFenced(this, {.transfer = transfer}));
    } else {
      fenced_.push_back(transfer);
    }
  }
}

void VerbsAcceptedEndpoint::OnRailDeadline(Time now) {
  if (!fences_.late(now)) return;
  for (uint32_t i = 0; i < rails_.size(); ++i) {
    Lose(i, "a transfer had to be stopped, and its initiator did not say that it was");
  }
  // Without queue pairs all other fences are quiet too.
  for (const uint64_t transfer : fences_.unanswered()) {
    AnswerFences(transfer, fences_.OnQuiet(transfer));
  }
}

void VerbsAcceptedEndpoint::FenceRail(uint32_t rail) {
  if (rail >= rails_.size()) return;
  Kill(rail);
  rails_[rail].fence_due = true;
  if (!IsUndestroyed(rail)) FinishFenceRail(rail);
}

void VerbsAcceptedEndpoint::FinishFenceRail(uint32_t rail) {
  rails_[rail].fence_due = false;
  Emit(MakeFenced(this, {.rail = rail}));
}

void VerbsAcceptedEndpoint::OnRailPort(const Device& device, uint8_t port, ibv_event_type type) {
  // The peer tries a rail again when one of its ports has come up or changed its address.
  if (type != IBV_EVENT_PORT_ERR) SayHello();
  if (type == IBV_EVENT_PORT_ACTIVE) return;
  for (uint32_t i = 0; i < rails_.size(); ++i) {
    if (rails_[i].job != 0) Remake(i, device, port);
    if (rails_[i].end == nullptr || &rails_[i].end->device() != &device) continue;
    const std::string name = rails_[i].end->address().port.name;
    if (name == absl::StrCat(device.name(), ":", port)) {
      Lose(i, ToStd(absl::StrCat(name, ": ", ToAbsl(EventName(type)))));
    }
  }
}

// An end that is being made over that port would get the port's earlier address.
void VerbsAcceptedEndpoint::Remake(uint32_t rail, const Device& device, uint8_t port) {
  const Offer offer = *rails_[rail].offer;
  const VerbsBackend::PortRef& ref = backend_->ports()[offer.port];
  if (ref.device == &device && ref.port().number == port) Make(offer);
}

void VerbsAcceptedEndpoint::OnRailQueuePair(const Device& device, uint32_t number,
                                            const absl::Status& why) {
  for (uint32_t i = 0; i < rails_.size(); ++i) {
    if (rails_[i].end == nullptr || rails_[i].end->number() != number ||
        &rails_[i].end->device() != &device) {
      continue;
    }
    Lose(i, ToStd(why.message()));
  }
}

void VerbsAcceptedEndpoint::OnRailDevice(const Device& device, const absl::Status& why) {
  for (uint32_t i = 0; i < rails_.size(); ++i) {
    if (rails_[i].end == nullptr || &rails_[i].end->device() != &device) continue;
    Lose(i, ToStd(why.message()));
  }
}

void VerbsAcceptedEndpoint::EndRails(const absl::Status&) {
  for (uint32_t i = 0; i < rails_.size(); ++i) Kill(i);
  fences_.Clear();
  fenced_.clear();
  for (AcceptedRail& rail : rails_) rail.fence_due = false;
}

}  // namespace kvxfer::verbs
