// The verbs backend: devices, a listener for control connections, and the endpoints to peers.
//
// Lifetime: endpoints and registrations may outlive it; they then do nothing.
// Thread-safety: none, see kvxfer/backend.h; Register from any thread. What that adds, the driver
// takes over before the next op is posted and before events are reported (TakeAdded).

#ifndef KVXFER_BACKENDS_VERBS_BACKEND_H_
#define KVXFER_BACKENDS_VERBS_BACKEND_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/backend.h"
#include "src/backends/verbs/destroy_queue.h"
#include "src/backends/verbs/device.h"
#include "src/backends/verbs/ibv.h"
#include "src/backends/verbs/message_buffers.h"
#include "src/backends/verbs/nearness.h"
#include "src/backends/verbs/regions.h"
#include "src/backends/verbs/request_pool.h"
#include "src/backends/verbs/scratch.h"
#include "src/backends/verbs/setup_queue.h"
#include "src/core/base/sysfs.h"
#include "src/core/topology/topology.h"
#include "src/cuda/arrival_flusher.h"
#include "src/transport/endpoint_hub.h"
#include "src/transport/open_registrations.h"
#include "src/transport/sockets/address.h"

namespace kvxfer::verbs {

class VerbsAcceptedEndpoint;
class VerbsEndpoint;
class WorkOwner;

// The most bytes of one op, and of one message of a device.
inline constexpr uint64_t kMaxOpBytes = 1024 * 1024;

class VerbsBackend final : public Backend,
                           private net::EndpointHub::Client,
                           private Device::Listener {
 public:
  // One of the ports in the list that peers receive, in the order of that list.
  struct PortRef {
    Device* device = nullptr;
    size_t index = 0;  // in Device::ports()
    const LocalPort& port() const { return device->ports()[index]; }
    // OK, or why the port cannot be used, as far as is known.
    absl::Status why() const;
  };

  // `topology` describes this host and `sysfs` its files. What `topology` lacks is asked of the
  // devices. CUDA is not initialised before GPU memory is registered.
  static absl::StatusOr<std::unique_ptr<VerbsBackend>> Create(const BackendContext& context,
                                                              std::unique_ptr<Ibv> ibv,
                                                              Topology topology = {},
                                                              Sysfs sysfs = Sysfs());
  ~VerbsBackend() override;

  // --- Backend ---
  const BackendInfo& Describe() const override { return info_; }
  absl::Status Reachable(std::string_view address, const HostIdentity& host) const override;
  absl::StatusOr<std::unique_ptr<Endpoint>> Connect(std::string_view address,
                                                    const HostIdentity& host) override;
  absl::StatusOr<std::unique_ptr<Registration>> Register(const LocalRegion& region) override;
  size_t Poll(std::span<Event> out, Input input) override;
  bool Arm() override;

  // --- for endpoints, rails and registrations ---
  net::EndpointHub& hub() { return hub_; }
  RequestPool& requests() { return requests_; }
  // For endpoints that dial, and for accepted ones.
  Scratch& dialled_scratch() { return dialled_scratch_; }
  Scratch& accepted_scratch() { return accepted_scratch_; }
  SetupQueue& setups() { return setups_; }
  DestroyQueue& destroyer() { return destroyer_; }
  const std::vector<std::unique_ptr<Device>>& devices() const { return devices_; }
  const VerbsOptions& options() const { return options_; }
  const std::vector<PortRef>& ports() const { return ports_; }
  std::vector<PortInfo> PortInfos() const;
  // OK, or why rails over `device` cannot be used: memory that is registered here is not registered
  // with that device.
  absl::Status CheckRegions(const Device& device) const;
  // The number of send requests of one queue pair.
  uint32_t queue_depth() const { return queue_depth_; }
  bool ordered() const { return ibv_->keeps_order(); }
  // AgentOptions::control.
  ControlCarrier control() const { return control_; }
  // OK, or why this side has no control pairs.
  absl::Status CheckCarrier() const;
  MessageMemory& messages() { return messages_; }
  // Takes over what Register has added. Rails over a device that does not have it all go down.
  void TakeAdded() {
    if (registrations_.any_added()) TakeAllAdded();
  }
  void Forget(VerbsRegistration* registration) { registrations_.Remove(registration); }
  // Tracks what was written into GPU memory since the last Poll.
  cuda::ArrivalFlusher& arrival_flusher() { return arrival_flusher_; }
  // Whether memory of a GPU is registered.
  bool has_gpu_memory() const { return arrival_flusher_.regions() > 0; }

  // A slot identifies a rail or a control pair in its work requests. `first`: the number of its
  // first request. None: all slots that a work request can name are taken.
  std::optional<uint16_t> TakeSlot(WorkOwner* owner, uint64_t& first);
  void FreeSlot(uint16_t slot, uint64_t next);
  // Says which endpoint and rail receive the immediates of a queue pair.
  void AddReceiver(uint32_t number, const Device& device, VerbsAcceptedEndpoint* endpoint,
                   uint32_t rail);
  void RemoveReceiver(uint32_t number, const Device& device);

 private:
  struct Slot {
    WorkOwner* owner = nullptr;
    uint64_t next = 1;
  };
  struct Receiver {
    VerbsAcceptedEndpoint* endpoint = nullptr;
    uint32_t rail = 0;
  };
  // The key in receivers_.
  static uint64_t ReceiverId(uint32_t number, const Device& device);

  VerbsBackend(const BackendContext& context, VerbsOptions options, std::unique_ptr<Ibv> ibv,
               Sysfs sysfs);
  absl::Status OpenDevices(Topology topology);
  // The address and the devices in info_, which change with the ports.
  void DescribePorts();
  absl::StatusOr<DeviceMemory> RegisterMemory(const LocalRegion& region) const;
  // How far each device is from registered memory.
  Penalties PenaltiesOf(const DeviceMemory& memory, const MemorySpan& span) const;
  void TakeAllAdded();
  // Text for people: why no port can be used.
  std::string WhyNone();
  size_t MaxArrivals() const;
  size_t MaxOpPieces() const;
  // The address of the peer, if it can be reached from here.
  absl::StatusOr<net::PeerAddress> Find(std::string_view address, const HostIdentity& host) const;
  std::unique_ptr<net::ControlEndpoint> Accept(net::Incoming incoming) override;
  std::optional<Time> deadline() const override { return destroyer_.deadline(); }
  void OnDeadline(Time now) override { destroyer_.OnDeadline(now); }
  void OnSendDone(Device& device, const ibv_wc& wc) override;
  void OnReceived(Device& device, const ibv_wc& wc) override;
  void OnAsync(Device& device, const Device::DeviceEvent& event) override;
  void OnBroken(Device& device, const absl::Status& why) override;
  void OnPortEvent(Device& device, const Device::DeviceEvent& event);
  // A snapshot of all endpoints, because a call for one endpoint may end another.
  std::vector<VerbsEndpoint*> Endpoints() const;

  VerbsOptions options_;  // its `devices` and `fabrics` name each port
  const HostIdentity host_;
  const ControlCarrier control_;
  const Sysfs sysfs_;
  BackendInfo info_;
  const std::unique_ptr<Ibv> ibv_;
  net::EndpointHub hub_;
  RequestPool requests_;
  std::vector<std::unique_ptr<Device>> devices_;  // constant from Create to the end
  MessageMemory messages_;
  DestroyQueue destroyer_;
  SetupQueue setups_;
  std::vector<PortRef> ports_;
  Nearness nearness_;
  Scratch dialled_scratch_{Access::kNone};
  Scratch accepted_scratch_{Access::kReadWrite};
  uint32_t queue_depth_ = 0;
  cuda::ArrivalFlusher arrival_flusher_;
  net::OpenRegistrations<VerbsRegistration> registrations_{&arrival_flusher_};
  size_t next_device_ = 0;  // the device that is polled first

  std::vector<Slot> slots_;
  std::vector<uint16_t> free_slots_;
  std::unordered_map<uint64_t, Receiver> receivers_;  // by device and queue pair number
};

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_BACKEND_H_
