#include "tests/support/cuda_driver/memory_map.h"

#include <algorithm>

namespace kvxfer::testing::cuda_driver {

Range* MemoryMap::Find(uint64_t at) {
  auto next = ranges_.upper_bound(at);
  if (next == ranges_.begin()) return nullptr;
  Range& range = std::prev(next)->second;
  return at < range.end() ? &range : nullptr;
}

bool MemoryMap::Overlaps(uint64_t at, size_t bytes) const {
  const auto next = ranges_.lower_bound(at);
  if (next != ranges_.end() && next->first < at + bytes) return true;
  return next != ranges_.begin() && std::prev(next)->second.end() > at;
}

Range* MemoryMap::Add(Range range) {
  if (Overlaps(range.at, range.bytes)) return nullptr;
  const uint64_t at = range.at;
  return &ranges_.emplace(at, std::move(range)).first->second;
}

void MemoryMap::Erase(uint64_t at) { ranges_.erase(at); }

std::vector<Range*> MemoryMap::Cover(uint64_t at, size_t bytes) {
  std::vector<Range*> cover;
  const uint64_t end = at + bytes;
  if (end < at || bytes == 0) return cover;
  for (uint64_t next = at; next < end; next = cover.back()->end()) {
    Range* const range = Find(next);
    const bool follows = cover.empty() || (range != nullptr && range->kind == RangeKind::kVirtual &&
                                           cover.back()->view == range->view);
    if (range == nullptr || !follows) return {};
    cover.push_back(range);
  }
  return cover;
}

}  // namespace kvxfer::testing::cuda_driver
