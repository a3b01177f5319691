#include "src/core/plan/id_pool.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace kvxfer {
namespace {

size_t ClassOf(size_t capacity) { return static_cast<size_t>(std::bit_width(capacity) - 1); }

}  // namespace

IdBuffer IdPool::Take(size_t ids) {
  // Rounded up to a power of two, so that transfers of similar size can share buffers.
  constexpr size_t kSmallest = 64;
  const size_t wanted = std::bit_ceil(std::max(ids, kSmallest));
  const size_t first = ClassOf(wanted);
  {
    std::lock_guard lock(mu_);
    // A buffer may be up to twice the rounded size; larger ones stay for larger transfers.
    for (size_t k = first; k < std::min(first + 2, kClasses); ++k) {
      if (free_[k].empty()) continue;
      IdBuffer buffer = std::move(free_[k].back());
      free_[k].pop_back();
      bytes_ -= buffer.bytes();
      return buffer;
    }
  }
  return {.ids = std::make_unique_for_overwrite<uint32_t[]>(wanted), .capacity = wanted};
}

void IdPool::Give(IdBuffer buffer) {
  const size_t bytes = buffer.bytes();
  if (bytes == 0 || bytes > kMaxBytes) return;
  const size_t k = ClassOf(buffer.capacity);
  std::lock_guard lock(mu_);
  if (bytes_ + bytes > kMaxBytes) DropOthers(k);
  if (bytes_ + bytes > kMaxBytes) return;
  bytes_ += bytes;
  free_[k].push_back(std::move(buffer));
}

void IdPool::DropOthers(size_t keep) {
  for (size_t k = 0; k < kClasses; ++k) {
    if (k == keep) continue;
    for (const IdBuffer& buffer : free_[k]) bytes_ -= buffer.bytes();
    free_[k].clear();
  }
}

}  // namespace kvxfer
