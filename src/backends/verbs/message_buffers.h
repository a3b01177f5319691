// Registered memory for the messages of control pairs over one device: buffers of one SEND each.
// The first page is made with the backend, others when needed, and all stay until the end.
//
// Thread-safety: none; called by the agent's driver only.

#ifndef KVXFER_BACKENDS_VERBS_MESSAGE_BUFFERS_H_
#define KVXFER_BACKENDS_VERBS_MESSAGE_BUFFERS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "src/backends/verbs/device.h"
#include "src/backends/verbs/message_parts.h"
#include "src/backends/verbs/page_memory.h"

namespace kvxfer::verbs {

struct MessageBuffer {
  std::byte* at = nullptr;
  uint32_t lkey = 0;

  std::span<std::byte> bytes() const { return {at, kMessageBufferBytes}; }
  uint64_t address() const { return reinterpret_cast<uint64_t>(at); }
};

class MessageBuffers {
 public:
  static constexpr size_t kBuffersOfPage = 64;

  explicit MessageBuffers(Device* device) : device_(device) {}
  // Call it while the device is open, and after every queue pair that uses a buffer is destroyed.
  ~MessageBuffers();
  MessageBuffers(const MessageBuffers&) = delete;
  MessageBuffers& operator=(const MessageBuffers&) = delete;

  // Makes the first page, which takes a device long if it is slow to register memory.
  absl::Status Prepare() { return pages_.empty() ? AddPage() : absl::OkStatus(); }
  absl::StatusOr<MessageBuffer> Take();
  // No queue pair uses `buffer` any more.
  void Give(const MessageBuffer& buffer) { free_.push_back(buffer); }

 private:
  struct Page {
    PageMemory memory;
    ibv_mr* mr = nullptr;
  };

  absl::Status AddPage();

  Device* const device_;
  std::vector<Page> pages_;
  std::vector<MessageBuffer> free_;
};

// What the control pairs of one backend share.
class MessageMemory {
 public:
  // Devices are added in the order of their numbers. `prepare`: makes the first page; if the device
  // does not take it now, it is asked again.
  void Add(Device* device, bool prepare) {
    devices_.push_back(std::make_unique<MessageBuffers>(device));
    if (prepare) devices_.back()->Prepare().IgnoreError();
  }
  MessageBuffers& of(const Device& device) { return *devices_[device.ordinal()]; }
  // Keeps a message that is reported until Forget, which each Poll calls first.
  std::span<const std::byte> Keep(std::string message) {
    return std::as_bytes(std::span(reported_.emplace_back(std::move(message))));
  }
  void Forget() { reported_.clear(); }
  // Call it before the devices are closed.
  void Close() { devices_.clear(); }

 private:
  std::vector<std::unique_ptr<MessageBuffers>> devices_;
  std::deque<std::string> reported_;
};

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_MESSAGE_BUFFERS_H_
