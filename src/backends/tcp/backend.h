// The tcp backend: listeners, endpoints to peers, local regions, and metadata for peers that ask
// for it.
//
// Lifetime: endpoints and registrations may outlive it; they then do nothing.
// Thread-safety: none, see kvxfer/backend.h; Register from any thread.

#ifndef KVXFER_BACKENDS_TCP_BACKEND_H_
#define KVXFER_BACKENDS_TCP_BACKEND_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/backend.h"
#include "src/backends/tcp/data_thread.h"
#include "src/backends/tcp/endpoint.h"
#include "src/backends/tcp/local_addresses.h"
#include "src/backends/tcp/options.h"
#include "src/backends/tcp/stage_pool.h"
#include "src/transport/endpoint_hub.h"
#include "src/transport/handouts.h"
#include "src/transport/regions.h"

namespace kvxfer::tcp {

class TcpBackend final : public Backend, private net::EndpointHub::Client {
 public:
  static absl::StatusOr<std::unique_ptr<Backend>> Create(const BackendContext& context);
  ~TcpBackend() override { hub_.Close(); }

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
  net::RegionMap& regions() { return regions_; }
  const AgentOptions& options() const { return options_; }
  // A buffer for one system call: for bytes that must not be written to memory, and for short runs
  // that go through it together.
  std::span<std::byte> scratch();
  // Buffers that rails read into, while they have bytes in them.
  StagePool& stages() { return stages_; }
  DataThreads& threads() { return *threads_; }

 private:
  TcpBackend(const BackendContext& context, TcpOptions options);

  absl::Status Listen();
  std::unique_ptr<net::ControlEndpoint> Accept(net::Incoming incoming) override;
  bool TakeStream(net::Fd& fd, const Preamble& preamble, const std::string& from) override;
  std::optional<Time> deadline() const override { return handouts_.deadline(); }
  void OnDeadline(Time now) override { handouts_.OnDeadline(now); }
  void OnDataPreamble(net::Fd& fd, const Preamble& preamble);
  void OnMetadataPreamble(net::Fd& fd, const std::string& from);
  void OnRegionClosed(const net::Region* region);

  const AgentOptions options_;
  const TcpOptions tcp_;
  const HostIdentity host_;
  const std::function<std::shared_ptr<const std::string>()> metadata_;
  BackendInfo info_;
  std::vector<LocalAddress> local_;  // that data streams are bound to
  std::unique_ptr<std::byte[]> scratch_;
  StagePool stages_;
  net::EndpointHub hub_;
  net::RegionMap regions_{[this](const net::Region* region) { OnRegionClosed(region); }};
  std::unique_ptr<DataThreads> threads_;  // never null once Create has returned
  net::Handouts handouts_;                // destroyed before the hub
};

}  // namespace kvxfer::tcp

#endif  // KVXFER_BACKENDS_TCP_BACKEND_H_
