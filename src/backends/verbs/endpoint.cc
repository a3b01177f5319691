#include "src/backends/verbs/endpoint.h"

#include <utility>

#include "src/backends/verbs/backend.h"
#include "src/transport/hello.h"

namespace kvxfer::verbs {

VerbsEndpoint::VerbsEndpoint(VerbsBackend* backend, net::PeerAddress peer)
    : ControlEndpoint(&backend->hub(), std::move(peer)),
      backend_(backend),
      carrier_(backend, this, Carrier::Side::kConnects) {}

VerbsEndpoint::VerbsEndpoint(VerbsBackend* backend, net::Fd control, std::string from)
    : ControlEndpoint(&backend->hub(), std::move(control), std::move(from)),
      backend_(backend),
      carrier_(backend, this, Carrier::Side::kAccepts) {}

VerbsEndpoint::~VerbsEndpoint() {
  if (backend_ != nullptr) backend_->destroyer().Forget(this);
}

void VerbsEndpoint::OnDetached() {
  backend_->destroyer().Forget(this);
  carrier_.Detach();
  backend_ = nullptr;
}

absl::Status VerbsEndpoint::OnFrame(std::span<const std::byte> frame) {
  absl::StatusOr<Blob> blob = Decode(frame);
  if (!blob.ok()) return blob.status();
  if (Carrier::Handles(*blob) && up()) return carrier_.OnFrame(*blob);
  return OnDecoded(*blob);
}

bool VerbsEndpoint::Send(std::span<const std::byte> message) {
  if (!carrier_.has_pair()) return ControlEndpoint::Send(message);
  return up() && message.size() <= net::kMaxMessageBytes && carrier_.Send(message);
}

void VerbsEndpoint::OnCarrierMessage(std::string message) {
  Emit({.kind = EventKind::kMessage,
        .endpoint = this,
        .message = backend_->messages().Keep(std::move(message))});
}

void VerbsEndpoint::OnPort(const Device& device, uint8_t port, ibv_event_type type) {
  carrier_.OnPort(device, port, type);
  if (!down()) OnRailPort(device, port, type);
}

void VerbsEndpoint::OnQueuePair(const Device& device, uint32_t number, const absl::Status& why) {
  carrier_.OnQueuePair(device, number, why);
  if (!down()) OnRailQueuePair(device, number, why);
}

void VerbsEndpoint::OnBroken(const Device& device, const absl::Status& why) {
  carrier_.OnBroken(device, why);
  if (!down()) OnRailDevice(device, why);
}

void VerbsEndpoint::OnDataDeadline(Time now) {
  carrier_.OnDeadline(now);
  if (!down()) OnRailDeadline(now);
}

void VerbsEndpoint::Turn() {
  carrier_.Work();
  if (!down()) RailTurn();
  ControlEndpoint::Turn();
}

void VerbsEndpoint::EndData(const absl::Status& why) {
  carrier_.End();
  EndRails(why);
}

}  // namespace kvxfer::verbs
