// A few registered bytes per endpoint. Probes are written to the accepting side's bytes; the
// connecting side sends them from its own bytes, and reads the word of a flush into them. Only the
// accepting side's bytes may be accessed by peers, so each side has its own Scratch.
//
// Thread-safety: none; called by the agent's driver only.

#ifndef KVXFER_BACKENDS_VERBS_SCRATCH_H_
#define KVXFER_BACKENDS_VERBS_SCRATCH_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "src/backends/verbs/device.h"
#include "src/backends/verbs/page_memory.h"
#include "src/backends/verbs/regions.h"
#include "src/core/base/clock.h"

namespace kvxfer::verbs {

class Scratch {
 public:
  // `access`: what peers may do.
  explicit Scratch(Access access) : access_(access) {}

  // For one endpoint: one word per rail (16) to write, then as many to read into.
  static constexpr size_t kSlotBytes = 256;
  static constexpr size_t kReadOffset = 128;

  struct Slot {
    std::byte* at = nullptr;
    const VerbsRegistration* registration = nullptr;
    uint64_t address() const { return reinterpret_cast<uint64_t>(at); }
  };

  // A zeroed slot. Registers another page with every device if all slots are taken, or if no free
  // slot is registered with every working device.
  absl::StatusOr<Slot> Take(std::span<const std::unique_ptr<Device>> devices);
  void Give(const Slot& slot) { free_.push_back(slot); }
  // Call it before the devices are closed.
  void Close() { pages_.clear(); }

 private:
  static constexpr size_t kPageBytes = 16 * 1024;
  static constexpr Duration kRetry = std::chrono::seconds(1);
  struct Page {
    PageMemory memory;
    std::unique_ptr<VerbsRegistration> registration;
  };

  absl::Status AddPage(std::span<const std::unique_ptr<Device>> devices);

  const Access access_;
  Time retry_at_{};
  std::vector<Page> pages_;
  std::vector<Slot> free_;
};

// The device writes this word. Read it after the completion that says so.
inline uint64_t LoadScratch(const std::byte* at) {
  return __atomic_load_n(reinterpret_cast<const uint64_t*>(at), __ATOMIC_ACQUIRE);
}
inline void StoreScratch(std::byte* at, uint64_t value) {
  __atomic_store_n(reinterpret_cast<uint64_t*>(at), value, __ATOMIC_RELEASE);
}

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_SCRATCH_H_
