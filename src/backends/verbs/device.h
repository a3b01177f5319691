// One open device: its protection domain, completion queues, shared receive queue and ports.
//
// Room in the send completion queue is given out: each work request takes one place when it is
// posted, for in the worst case (a flush) each makes an entry; so the queue never overruns. The
// receive completion queue holds as many as there are receives.
//
// Thread-safety: none; used by the backend's owner, except Register and RegisterDmabuf.

#ifndef KVXFER_BACKENDS_VERBS_DEVICE_H_
#define KVXFER_BACKENDS_VERBS_DEVICE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
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
  // What a device reported by itself; nothing it points to may be gone meanwhile.
  struct DeviceEvent {
    ibv_event_type type{};
    uint8_t port = 0;         // of an event of a port
    uint32_t queue_pair = 0;  // number, of an event of a queue pair
  };

  // Who hears of what a device does.
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void OnSendDone(Device& device, const ibv_wc& wc) = 0;
    virtual void OnReceived(Device& device, const ibv_wc& wc) = 0;
    virtual void OnAsync(Device& device, const DeviceEvent& event) = 0;
    // A call on its queues failed: nothing more comes from it.
    virtual void OnBroken(Device& device, const absl::Status& why) = 0;
  };

  // Opens `name` with those of its ports that the options want. An error names the device.
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
  // Reads ports()[index] anew; an error says why it cannot be used, or that its link is down.
  absl::Status Refresh(size_t index);
  // For good. From any thread, as why_broken() is once it is so.
  bool broken() const { return broken_.load(std::memory_order_acquire); }
  // OK where it is not.
  const absl::Status& why_broken() const { return why_broken_; }

  // --- room in the send completion queue ---
  uint32_t room() const { return room_; }
  void TakeRoom(uint32_t requests) { room_ -= requests; }
  void GiveRoom(uint32_t requests) { room_ += requests; }
  // Of a queue pair that is destroyed: entries of it may still lie in the queue.
  void GiveRoomWhenPolled(uint32_t requests) { room_when_polled_ += requests; }

  // From any thread. Null and errno on failure.
  ibv_mr* Register(void* address, size_t bytes, int access) {
    return ibv_->RegMr(pd_, address, bytes, access);
  }
  // The same of `bytes` of a dmabuf from `offset` on, which are those at `address`.
  ibv_mr* RegisterDmabuf(int fd, uint64_t offset, uint64_t address, size_t bytes, int access) {
    return ibv_->RegDmabufMr(pd_, offset, bytes, address, fd, access);
  }

  // Hands up to `most` completions of each queue to the listener; returns their number.
  size_t Poll(size_t most);
  // All that the receive completion queue holds.
  void DrainReceived();
  // Immediates that find a receive whenever they come: those of the others are on their way back
  // into the queue.
  uint32_t max_arrivals() const { return receives_ - RepostFrom() + 1; }
  // Queue pair `number`, which is in error, has taken its last receive: what it took lies in the
  // completion queue, or has been there. Waits for the device to say so, for a moment; one that
  // does not say it is not waited for again. A receive that is taken by a queue pair and neither
  // completes nor comes back would be missing for good.
  void AwaitLastReceive(uint32_t number);
  // Asks for an event with the next completion.
  void Arm();
  void OnChannel();
  void OnAsync();
  bool HasEvents() const { return !events_.empty(); }
  // It is of no use any more, for what it said of itself.
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
  // Those that were taken, again. Where that fails the device is broken.
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
  absl::Status why_broken_;  // set once, before `broken_`
  ibv_context* context_ = nullptr;
  ibv_device_attr attr_{};
  ibv_pd* pd_ = nullptr;
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* send_cq_ = nullptr;
  ibv_cq* receive_cq_ = nullptr;
  ibv_srq* srq_ = nullptr;
  std::vector<LocalPort> ports_;
  uint32_t room_ = 0;
  uint32_t room_when_polled_ = 0;
  uint32_t receives_ = 0;  // that are to be posted
  uint32_t taken_ = 0;     // of those, not posted again yet
  bool send_armed_ = false;
  bool receive_armed_ = false;
  bool channel_ready_ = false;
  bool async_ready_ = false;
  std::deque<DeviceEvent> events_;  // read, not told yet
  int untold_ = 0;                  // last receives in a row that were awaited in vain
  Watch channel_watch_{&channel_ready_};
  Watch async_watch_{&async_ready_};
};

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_DEVICE_H_
