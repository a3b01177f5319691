// Buffers for the ids of transfers, used again, so that a posting thread in steady state allocates
// nothing that grows with its blocks.
//
// Thread-safety: any thread; one lock a call.

#ifndef KVXFER_CORE_PLAN_ID_POOL_H_
#define KVXFER_CORE_PLAN_ID_POOL_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace kvxfer {

struct IdBuffer {
  std::unique_ptr<uint32_t[]> ids{};  // not initialised
  size_t capacity = 0;                // ids

  size_t bytes() const { return capacity * sizeof(uint32_t); }
};

class IdPool {
 public:
  // Of all the buffers that wait here. A larger one is never kept.
  static constexpr size_t kMaxBytes = 8 << 20;

  // Holds at least `ids`, and at most four times that (or 64, for fewer).
  IdBuffer Take(size_t ids);
  // For the next Take. Where there is no room, buffers of other sizes make some: they were not
  // asked for lately.
  void Give(IdBuffer buffer);

 private:
  // Buffers of 2^k ids are in class k.
  static constexpr size_t kClasses = 64;

  void DropOthers(size_t keep);

  std::mutex mu_;
  std::array<std::vector<IdBuffer>, kClasses> free_;
  size_t bytes_ = 0;
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_PLAN_ID_POOL_H_
