// Recycles the id buffers of transfers, so that posting in steady state allocates nothing that
// grows with the number of blocks.
//
// Thread-safety: any thread; one lock per call.

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
  std::unique_ptr<uint32_t[]> ids{};  // uninitialised
  size_t capacity = 0;                // ids

  size_t bytes() const { return capacity * sizeof(uint32_t); }
};

class IdPool {
 public:
  // Limit for all free buffers together. A larger buffer is never kept.
  static constexpr size_t kMaxBytes = 8 << 20;

  // A buffer for at least `ids` ids; its capacity is at most four times that, or 64 for fewer.
  IdBuffer Take(size_t ids);
  // Returns a buffer to the pool. If the pool is full, free buffers of other sizes are dropped
  // first: they were not asked for recently.
  void Give(IdBuffer buffer);

 private:
  // Class k holds buffers of 2^k ids.
  static constexpr size_t kClasses = 64;

  void DropOthers(size_t keep);

  std::mutex mu_;
  std::array<std::vector<IdBuffer>, kClasses> free_;
  size_t bytes_ = 0;
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_PLAN_ID_POOL_H_
