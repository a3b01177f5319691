// The libfabric backend: domains of one provider, and the endpoints to peers.
//
// No provider is relied on to signal when its completion queues have entries. They are polled, at
// least every kLook, while their endpoint is busy. The connecting side knows when that is, and
// notifies the other (Busy, Idle).
//
// Lifetime: endpoints and registrations may outlive it; they then do nothing.
// Thread-safety: see kvxfer/backend.h. What Register uses is safe on any thread.

#ifndef KVXFER_BACKENDS_LIBFABRIC_BACKEND_H_
#define KVXFER_BACKENDS_LIBFABRIC_BACKEND_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/backend.h"
#include "src/backends/libfabric/domain.h"
#include "src/backends/libfabric/regions.h"
#include "src/cuda/arrival_flusher.h"
#include "src/transport/endpoint_hub.h"

namespace kvxfer::libfabric {

// The limits before those of the provider, see Create.
inline constexpr uint64_t kMaxOpBytes = 1024 * 1024;
inline constexpr size_t kMaxPieces = 16;

class LibfabricBackend final : public Backend, private net::EndpointHub::Client {
 public:
  static absl::StatusOr<std::unique_ptr<Backend>> Create(const BackendContext& context);
  ~LibfabricBackend() override;

  // --- Backend ---
  const BackendInfo& Describe() const override { return info_; }
  absl::Status Reachable(std::string_view address, const HostIdentity& host) const override;
  absl::StatusOr<std::unique_ptr<Endpoint>> Connect(std::string_view address,
                                                    const HostIdentity& host) override;
  absl::StatusOr<std::unique_ptr<Registration>> Register(const LocalRegion& region) override;
  size_t Poll(std::span<Event> out, Input input) override;
  bool Arm() override;

  // --- for endpoints ---
  net::EndpointHub& hub() { return hub_; }
  const AgentOptions& options() const { return options_; }
  const std::vector<std::unique_ptr<Domain>>& domains() const { return domains_; }
  // GPU memory that peers' writes and own reads have reached since the last Poll.
  cuda::ArrivalFlusher& arrival_flusher() { return arrival_flusher_; }
  // Marks a read for the flush of the GPU memory that it went into.
  void OnRead(const Endpoint* endpoint, uint64_t op);

 private:
  // How soon the completion queues of busy endpoints are polled again.
  static constexpr Duration kLook = std::chrono::microseconds(50);

  explicit LibfabricBackend(const BackendContext& context);
  std::string provider() const;
  Capabilities Limits() const;
  absl::StatusOr<net::PeerAddress> Find(std::string_view address, const HostIdentity& host) const;
  std::unique_ptr<net::ControlEndpoint> Accept(net::Incoming incoming) override;
  std::optional<Time> deadline() const override;

  const AgentOptions options_;
  const HostIdentity host_;
  BackendInfo info_;
  std::vector<std::unique_ptr<Domain>> domains_;
  cuda::ArrivalFlusher arrival_flusher_;
  Registrations registrations_{&arrival_flusher_};
  // When the completion queues were last polled.
  Time looked_{};
  net::EndpointHub hub_;
};

}  // namespace kvxfer::libfabric

#endif  // KVXFER_BACKENDS_LIBFABRIC_BACKEND_H_
