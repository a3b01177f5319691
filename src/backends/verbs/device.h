// One open device: its protection domain, completion queues, shared receive queue and ports.
//
// Space in the send completion queue is accounted for. Each work request takes one entry when it is
// posted, because in the worst case (a flush) each produces one; so the queue never overruns. The
// receives of control pairs complete there too, and take entries likewise. The receive completion
// queue holds as many entries as the shared receive queue has receives.
//
// Thread-safety: none; called by the agent's driver only, except Register, RegisterDmabuf and
// broken().

#ifndef KVXFER_BACKENDS_VERBS_DEVICE_H_
#define KVXFER_BACKENDS_VERBS_DEVICE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "src/backends/verbs/ibv.h"
#include "src/backends/verbs/options.h"
#include "src/backends/verbs/port.h"
#include "src/transport/sockets/reactor.h"

namespace kvxfer::verbs {

inline constexpr size_t kMaxDevices = 64;

class Device {
 public:
  // An asynchronous event of the device, copied out, so that it does not point to objects that may
  // be destroyed.
  struct DeviceEvent {
    ibv_event_type type{};
    uint8_t port = 0;         // for port events
    uint32_t queue_pair = 0;  // the number, for queue pair events
  };

  // Receives what a device reports.
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void OnSendDone(Device& device, const ibv_wc& wc) = 0;
    virtual void OnReceived(Device& device, const ibv_wc& wc) = 0;
    virtual void OnAsync(Device& device, const DeviceEvent& event) = 0;
    // A call on the device's queues failed: the device reports nothing more.
    virtual void OnBroken(Device& device, const absl::Status& why) = 0;
  };

  // Opens `name` with those of its ports that the options ask for. Errors name the device.
  static absl::StatusOr<std::unique_ptr<Device>> Open(Ibv* ibv, Listener* listener,
                                                      net::Reactor* reactor,
                                                      const std::string& name, uint8_t ordinal,
                                                      const VerbsOptions& options);
  ~Device();

  const std::string& name() const { return name_; }
  uint8_t ordinal() const { return ordinal_; }
  Ibv& ibv() { return *ibv_; }
  const ibv_device_attr& attr() const { return attr_; }
  ibv_pd* pd() { return pd_; }
  ibv_cq* send_cq() { return send_cq_; }
  ibv_cq* receive_cq() { return receive_cq_; }
  ibv_srq* srq() { return srq_; }
  const std::vector<LocalPort>& ports() const { return ports_; }
  // Reads ports()[index] again. An error says why the port cannot be used, or that its link is
  // down.
  absl::Status Refresh(size_t index);
  // Permanently broken. May be called by any thread; so may why_broken() once this is true.
  bool broken() const { return broken_.load(std::memory_order_acquire); }
  // Whether ports() or broken() may have changed since the last call.
  bool TakeChanged() { return std::exchange(changed_, false); }
  // OK unless broken().
  const absl::Status& why_broken() const { return why_broken_; }

  // --- free entries in the send completion queue ---
  uint32_t space() const { return space_; }
  void TakeSpace(uint32_t requests) { space_ -= requests; }
  void GiveSpace(uint32_t requests) { space_ += requests; }
  // For a queue pair that is destroyed: the completion queue may still hold entries of it.
  void GiveSpaceWhenPolled(uint32_t requests) { space_when_polled_ += requests; }

  // May be called by any thread. Null and errno on failure.
  ibv_mr* Register(void* address, size_t bytes, int access) {
    return ibv_->RegMr(pd_, address, bytes, access);
  }
  // The same for `bytes` bytes of a dmabuf from `offset` on, which are the memory at `address`.
  ibv_mr* RegisterDmabuf(int fd, uint64_t offset, uint64_t address, size_t bytes, int access) {
    return ibv_->RegDmabufMr(pd_, offset, bytes, address, fd, access);
  }

  // Passes up to `most` completions of each queue to the listener. Returns their number.
  size_t Poll(size_t most);
  // Passes everything in the receive completion queue to the listener.
  void DrainReceived();
  // How many immediates may be in flight so that each finds a receive: the other receives may be
  // taken and not reposted yet.
  uint32_t max_arrivals() const { return receives_ - RepostFrom() + 1; }
  // Waits until queue pair `number`, which is in error, has taken its last receive, so that its
  // completion is in the completion queue, or was. The device reports that by an event. The wait is
  // short, and is given up for devices that never report it. If a queue pair were destroyed while
  // it holds a receive, that receive would neither complete nor return, and would be missing for
  // good.
  void AwaitLastReceive(uint32_t number);
  // Requests an event for the next completion.
  void Arm();
  void OnChannel();
  void OnAsync();
  bool HasEvents() const { return !events_.empty(); }
  // Marks the device as broken because of an event that it reported.
  void Break(std::string_view why);

 private:
  // Watches one of the two descriptors.
  class Watch final : public net::Watcher {
   public:
    explicit Watch(bool* ready) : ready_(ready) {}
    void OnReady(uint32_t) override { *ready_ = true; }

   private:
    bool* const ready_;
  };

  Device(Ibv* ibv, Listener* listener, net::Reactor* reactor, std::string name, uint8_t ordinal,
         const VerbsOptions& options);
  absl::Status Prepare();
  absl::Status MakeQueues();
  absl::Status PostReceives(uint32_t count);
  // Posts the receives that were taken again. If that fails, the device is broken.
  void Repost();
  uint32_t RepostFrom() const;
  void OnFewReceives();
  void ReadEvents();
  size_t PollReceived(size_t most);
  void Break(const char* call, int error_number);

  Ibv* const ibv_;
  Listener* const listener_;
  net::Reactor* const reactor_;
  const std::string name_;
  const uint8_t ordinal_;
  const VerbsOptions options_;
  std::atomic<bool> broken_{false};
  absl::Status why_broken_;  // set once, before broken_
  ibv_context* context_ = nullptr;
  ibv_device_attr attr_{};
  ibv_pd* pd_ = nullptr;
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* send_cq_ = nullptr;
  ibv_cq* receive_cq_ = nullptr;
  ibv_srq* srq_ = nullptr;
  std::vector<LocalPort> ports_;
  bool changed_ = false;
  uint32_t space_ = 0;
  uint32_t space_when_polled_ = 0;
  uint32_t receives_ = 0;  // number of receives to keep posted
  uint32_t taken_ = 0;     // of those, taken and not reposted
  bool send_armed_ = false;
  bool receive_armed_ = false;
  bool channel_ready_ = false;
  bool async_ready_ = false;
  std::deque<DeviceEvent> events_;  // read from the device and not handled
  int missed_ = 0;                  // how often in a row the last receive was awaited in vain
  Watch channel_watch_{&channel_ready_};
  Watch async_watch_{&async_ready_};
};

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_DEVICE_H_
