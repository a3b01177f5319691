// The cuda_ipc backend: GPU memory of processes on one host. The GPUs of the process that connected
// do the copies.
//
// CUDA is not touched before GPU memory is registered. No descriptor signals the end of a batch: a
// timer fires shortly before the end that is predicted, and then the word of memory is watched that
// the GPU writes.
//
// Lifetime: endpoints and registrations may outlive it; they then do nothing.
// Thread-safety: none, see kvxfer/backend.h; Register from any thread.

#ifndef KVXFER_BACKENDS_CUDA_IPC_BACKEND_H_
#define KVXFER_BACKENDS_CUDA_IPC_BACKEND_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/backend.h"
#include "src/backends/cuda_ipc/copy_queue.h"
#include "src/backends/cuda_ipc/lifeline_listener.h"
#include "src/backends/cuda_ipc/opened.h"
#include "src/backends/cuda_ipc/peer_region.h"
#include "src/backends/cuda_ipc/regions.h"
#include "src/transport/endpoint_hub.h"
#include "src/transport/ring_choice.h"
#include "src/transport/ring_pair.h"
#include "src/transport/sockets/socket.h"

namespace kvxfer::cuda_ipc {

class CudaIpcBackend final : public Backend,
                             private net::EndpointHub::Client,
                             private LifelineListener::Owner,
                             private CudaIpcRegistration::Owner {
 public:
  static absl::StatusOr<std::unique_ptr<Backend>> Create(const BackendContext& context);
  ~CudaIpcBackend() override;

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
  const HostIdentity& host() const { return host_; }
  uint64_t ipc_namespace() const { return ipc_namespace_; }
  CopyQueue& copies() { return copies_; }
  OpenedTable& opened() { return opened_; }
  // The devices that have registered memory.
  std::vector<int> devices() const;
  // Null: the region is closed, or never existed.
  const CudaIpcRegistration* FindRegion(uint64_t number) const;
  // "GPU 0 -> GPU 1 over NVLink, copy kernel, 2 streams".
  std::string PathOf(const PeerRegion& region, int device) const;
  net::RingChoice& ring_choice() { return ring_choice_; }
  // The eventfd that peers ring.
  int bell() const { return bell_.get(); }
  // Scratch space of RingPair::Receive.
  std::span<char> ring_buffer() { return ring_buffer_; }
  // Keeps a message until the next Poll.
  std::span<const std::byte> KeepMessage(std::string message) {
    return std::as_bytes(std::span(messages_.emplace_back(std::move(message))));
  }

 private:
  explicit CudaIpcBackend(const BackendContext& context);
  absl::Status Open(const Incarnation& incarnation);
  absl::Status MakeBell();
  void WorkBeside();
  void FindDevices();
  std::unique_ptr<CudaIpcRegistration> Add(const LocalRegion& region, const cuda::Driver* driver,
                                           cuda::DeviceSpan span);
  std::unique_ptr<net::ControlEndpoint> Accept(net::Incoming incoming) override;
  std::optional<Time> deadline() const override;
  void OnDial(std::unique_ptr<Lifeline> lifeline, const DialPacket& dial) override;
  void OnClosed(const CudaIpcRegistration& registration) override;

  const AgentOptions options_;
  const HostIdentity host_;
  const uint64_t ipc_namespace_;
  BackendInfo info_;
  net::EndpointHub hub_;
  LifelineListener lifeline_listener_{this};  // destroyed before the hub
  OpenedTable opened_;
  CopyQueue copies_;
  mutable std::mutex mu_;                                       // guards the next three
  std::unordered_map<uint64_t, CudaIpcRegistration*> regions_;  // by number
  uint64_t last_region_ = 0;
  std::map<int, size_t> devices_;       // device → its registrations
  std::atomic<bool> cuda_used_{false};  // Register has initialised CUDA
  net::RingChoice ring_choice_;
  net::Fd bell_;
  bool armed_ = false;    // peers were asked to ring the bell
  size_t ring_turn_ = 0;  // which endpoint goes first
  std::array<char, net::RingPair::kMaxPartBytes> ring_buffer_{};
  std::deque<std::string> messages_;  // of the last Poll; a deque: growing it does not move them
};

}  // namespace kvxfer::cuda_ipc

#endif  // KVXFER_BACKENDS_CUDA_IPC_BACKEND_H_
