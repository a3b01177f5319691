// LibfabricEndpoint: what both sides of an endpoint share.

#include "src/backends/libfabric/endpoint.h"

#include <utility>

#include "src/backends/libfabric/backend.h"

namespace kvxfer::libfabric {

LibfabricEndpoint::LibfabricEndpoint(LibfabricBackend* backend, net::PeerAddress peer)
    : ControlEndpoint(&backend->hub(), std::move(peer)), backend_(backend) {}

LibfabricEndpoint::LibfabricEndpoint(LibfabricBackend* backend, net::Fd control, std::string from)
    : ControlEndpoint(&backend->hub(), std::move(control), std::move(from)), backend_(backend) {}

absl::Status LibfabricEndpoint::OnFrame(std::span<const std::byte> frame) {
  absl::StatusOr<Frame> decoded = Decode(frame);
  return decoded.ok() ? OnDecoded(*decoded) : decoded.status();
}

}  // namespace kvxfer::libfabric
