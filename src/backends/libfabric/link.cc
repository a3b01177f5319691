// Link: what both sides of a link share.

#include "src/backends/libfabric/link.h"

#include <utility>

#include "src/backends/libfabric/backend.h"

namespace kvxfer::libfabric {

Link::Link(LibfabricBackend* backend, net::PeerAddress peer)
    : ControlLink(&backend->hub(), std::move(peer)), backend_(backend) {}

Link::Link(LibfabricBackend* backend, net::Fd control, std::string from)
    : ControlLink(&backend->hub(), std::move(control), std::move(from)), backend_(backend) {}

absl::Status Link::OnFrame(std::span<const std::byte> frame) {
  absl::StatusOr<Frame> decoded = Decode(frame);
  return decoded.ok() ? OnDecoded(*decoded) : decoded.status();
}

}  // namespace kvxfer::libfabric
