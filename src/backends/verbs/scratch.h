// A few registered bytes for each link: the accepting side's are where probes are written, and the
// connecting side's are where they come from and where what is read to flush a rail lands. Only the
// former are for peers to touch, so that each side has its own.
//
// Thread-safety: none; used by the backend's owner.

#ifndef KVXFER_BACKENDS_VERBS_SCRATCH_H_
#define KVXFER_BACKENDS_VERBS_SCRATCH_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "src/backends/verbs/device.h"
#include "src/backends/verbs/regions.h"
#include "src/core/base/clock.h"

namespace kvxfer::verbs {

class Scratch {
 public:
  // `access`: what peers may do there.
  explicit Scratch(Access access) : access_(access) {}

  // Of one link: 16 rails' words to write, then as many to read into.
  static constexpr size_t kSlotBytes = 256;
  static constexpr size_t kReadOffset = 128;

  struct Slot {
    std::byte* at = nullptr;
    const VerbsRegistration* registration = nullptr;
    uint64_t address() const { return reinterpret_cast<uint64_t>(at); }
  };

  // Zeroed. Registers another page with every device where all are taken, or where none is known to
  // every device that works.
  absl::StatusOr<Slot> Take(std::span<const std::unique_ptr<Device>> devices);
  void Give(const Slot& slot) { free_.push_back(slot); }
  // Before the devices go.
  void Close() { pages_.clear(); }

 private:
  static constexpr size_t kPageBytes = 16 * 1024;
  static constexpr Duration kRetry = std::chrono::seconds(1);
  struct Free {
    void operator()(std::byte* page) const;
  };
  struct Page {
    std::unique_ptr<std::byte, Free> memory;
    std::unique_ptr<VerbsRegistration> registration;
  };

  absl::Status AddPage(std::span<const std::unique_ptr<Device>> devices);

  const Access access_;
  Time retry_at_{};
  std::vector<Page> pages_;
  std::vector<Slot> free_;
};

// The device writes there: read once, after what says that it has.
inline uint64_t LoadScratch(const std::byte* at) {
  return __atomic_load_n(reinterpret_cast<const uint64_t*>(at), __ATOMIC_ACQUIRE);
}
inline void StoreScratch(std::byte* at, uint64_t value) {
  __atomic_store_n(reinterpret_cast<uint64_t*>(at), value, __ATOMIC_RELEASE);
}

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_SCRATCH_H_
