#include "src/backends/verbs/endpoint.h"

#include <utility>

#include "src/backends/verbs/backend.h"

namespace kvxfer::verbs {

VerbsEndpoint::VerbsEndpoint(VerbsBackend* backend, net::PeerAddress peer)
    : ControlEndpoint(&backend->hub(), std::move(peer)), backend_(backend) {}

VerbsEndpoint::VerbsEndpoint(VerbsBackend* backend, net::Fd control, std::string from)
    : ControlEndpoint(&backend->hub(), std::move(control), std::move(from)), backend_(backend) {}

VerbsEndpoint::~VerbsEndpoint() {
  if (backend_ != nullptr) backend_->destroyer().Forget(this);
}

void VerbsEndpoint::OnDetached() {
  backend_->destroyer().Forget(this);
  backend_ = nullptr;
}

absl::Status VerbsEndpoint::OnFrame(std::span<const std::byte> frame) {
  absl::StatusOr<Blob> blob = Decode(frame);
  return blob.ok() ? OnDecoded(*blob) : blob.status();
}

}  // namespace kvxfer::verbs
