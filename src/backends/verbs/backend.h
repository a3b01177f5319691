// The verbs backend: devices, a listener for control connections, and the links to peers.
//
// Lifetime: endpoints and registrations may outlive it; they are then of no use.
// Thread-safety: none but that of kvxfer::Backend.

#ifndef KVXFER_BACKENDS_VERBS_BACKEND_H_
#define KVXFER_BACKENDS_VERBS_BACKEND_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/backend.h"
#include "src/backends/verbs/destroy_queue.h"
#include "src/backends/verbs/device.h"
#include "src/backends/verbs/ibv.h"
#include "src/backends/verbs/nearness.h"
#include "src/backends/verbs/regions.h"
#include "src/backends/verbs/request_pool.h"
#include "src/backends/verbs/scratch.h"
#include "src/backends/verbs/setup_queue.h"
#include "src/core/base/sysfs.h"
#include "src/core/topology/topology.h"
#include "src/cuda/landed.h"
#include "src/transport/link_hub.h"
#include "src/transport/sockets/address.h"

namespace kvxfer::verbs {

class AcceptedLink;
class Link;
class Rail;

// Of one op, and of one message of the device.
inline constexpr uint64_t kMaxOpBytes = 1024 * 1024;

class VerbsBackend final : public Backend, private net::LinkHub::Owner, private Device::Listener {
 public:
  // One of the ports that peers are told of, in that order.
  struct PortRef {
    Device* device = nullptr;
    size_t index = 0;  // in Device::ports()
    const LocalPort& port() const { return device->ports()[index]; }
    // It cannot be used, as far as is known.
    absl::Status why() const;
  };

  // `topology` is that of this host, `sysfs` its files; what the former does not know of the
  // devices they are asked. CUDA is not initialised before GPU memory is registered.
  static absl::StatusOr<std::unique_ptr<VerbsBackend>> Create(const BackendContext& context,
                                                              std::unique_ptr<Ibv> ibv,
                                                              Topology topology = {},
                                                              Sysfs sysfs = Sysfs());
  ~VerbsBackend() override;

  // --- Backend ---
  std::string_view name() const override { return "verbs"; }
  const Capabilities& capabilities() const override { return capabilities_; }
  std::string Address() const override;
  absl::Status Reachable(std::string_view address, const HostIdentity& host) const override;
  std::string ListenAddress() const override { return hub_.ListenAddress(); }
  std::vector<std::string> Devices() const override;
  absl::StatusOr<std::unique_ptr<Endpoint>> Connect(std::string_view address,
                                                    const HostIdentity& host) override;
  absl::StatusOr<std::unique_ptr<Prepared>> Prepare(const MemorySpan& span, Access access) override;
  absl::StatusOr<std::unique_ptr<Registration>> Register(const LocalRegion& region) override;
  size_t Poll(std::span<Event> out, bool readable) override;
  bool Arm() override;
  int wait_fd() const override { return hub_.fd(); }

  // --- for links, rails and registrations ---
  net::LinkHub& hub() { return hub_; }
  RequestPool& requests() { return requests_; }
  // Of links that dial, and of those that were accepted.
  Scratch& dialled_scratch() { return dialled_scratch_; }
  Scratch& accepted_scratch() { return accepted_scratch_; }
  SetupQueue& setups() { return setups_; }
  DestroyQueue& destroyer() { return destroyer_; }
  const std::vector<std::unique_ptr<Device>>& devices() const { return devices_; }
  const VerbsOptions& options() const { return options_; }
  const std::vector<PortRef>& ports() const { return ports_; }
  std::vector<PortInfo> PortInfos() const;
  // Why rails over `device` cannot be used: memory that is registered here is not known to it.
  absl::Status CheckRegions(const Device& device) const;
  // Send requests of one queue pair.
  uint32_t queue_depth() const { return queue_depth_; }
  bool ordered() const { return ibv_->keeps_order(); }
  void Forget(VerbsRegistration* registration);
  // What has come into GPU memory since the last Poll.
  cuda::Landed& landed() { return landed_; }
  // Whether some memory that is registered here is of a GPU.
  bool has_gpu_memory() const { return landed_.regions() > 0; }
  void TimersChanged() { hub_.TimersChanged(); }

  // Work requests name their rail by a slot; `first` is the number of its first request.
  // None: so many have been taken as a work request can name.
  std::optional<uint16_t> TakeSlot(Rail* rail, uint64_t& first);
  void FreeSlot(uint16_t slot, uint64_t next);
  // Whose immediates come in by that queue pair.
  void AddReceiver(uint32_t number, const Device& device, AcceptedLink* link, uint32_t rail);
  void RemoveReceiver(uint32_t number, const Device& device);

 private:
  struct Slot {
    Rail* rail = nullptr;
    uint64_t next = 1;
  };
  struct Receiver {
    AcceptedLink* link = nullptr;
    uint32_t rail = 0;
  };
  // The key of `receivers_`.
  static uint64_t ReceiverId(uint32_t number, const Device& device);

  VerbsBackend(const BackendContext& context, VerbsOptions options, std::unique_ptr<Ibv> ibv,
               Sysfs sysfs);
  absl::Status OpenDevices(Topology topology);
  // Of what was prepared: how far each device is from it.
  Penalties PenaltiesOf(const DeviceMemory& memory, const MemorySpan& span) const;
  // Why no port can be used.
  std::string WhyNone();
  size_t MaxArrivals() const;
  size_t MaxOpRuns() const;
  // Where the peer is, if it can be reached from here.
  absl::StatusOr<net::PeerAddress> Find(std::string_view address, const HostIdentity& host) const;
  std::unique_ptr<net::ControlLink> Accept(net::Fd control, std::string from) override;
  std::optional<Time> deadline() const override { return destroyer_.deadline(); }
  void OnDeadline(Time now) override { destroyer_.OnDeadline(now); }
  void OnSendDone(Device& device, const ibv_wc& wc) override;
  void OnReceived(Device& device, const ibv_wc& wc) override;
  void OnAsync(Device& device, const Device::DeviceEvent& event) override;
  void OnBroken(Device& device, const absl::Status& why) override;
  void OnPortEvent(Device& device, const Device::DeviceEvent& event);
  // All that there are now: what is called for one may end another.
  std::vector<Link*> Links() const;

  VerbsOptions options_;  // that name ports one by one
  const HostIdentity host_;
  const Sysfs sysfs_;
  Capabilities capabilities_;
  const std::unique_ptr<Ibv> ibv_;
  net::LinkHub hub_;
  RequestPool requests_;
  std::vector<std::unique_ptr<Device>> devices_;  // the same from Create to the end
  DestroyQueue destroyer_;
  SetupQueue setups_;
  std::vector<PortRef> ports_;
  Nearness nearness_;
  Scratch dialled_scratch_{Access::kNone};
  Scratch accepted_scratch_{Access::kReadWrite};
  uint32_t queue_depth_ = 0;
  std::unordered_set<VerbsRegistration*> registrations_;
  cuda::Landed landed_;
  size_t next_device_ = 0;  // to be polled first

  std::vector<Slot> slots_;
  std::vector<uint16_t> free_slots_;
  std::unordered_map<uint64_t, Receiver> receivers_;  // by device and queue pair number
};

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_BACKEND_H_
