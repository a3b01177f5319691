#include "src/backends/verbs/part_table.h"

#include <algorithm>
#include <bit>

namespace kvxfer::verbs {

PartTable::PartTable(uint64_t base, std::span<const uint64_t> bytes) : base_(base) {
  uint64_t end = base;
  for (const uint64_t of_part : bytes) ends_.push_back(end += of_part);
  // A stretch is no longer than the average part, so there is about one boundary in each.
  const uint64_t total = end - base;
  shift_ = static_cast<unsigned>(std::bit_width(total / ends_.size())) - 1;
  const uint64_t stretches = ((total - 1) >> shift_) + 1;
  size_t part = 0;
  for (uint64_t i = 0; i < stretches; ++i) {
    while (ends_[part] <= base + (i << shift_)) ++part;
    first_.push_back(static_cast<uint32_t>(part));
  }
  first_.push_back(static_cast<uint32_t>(ends_.size() - 1));
}

size_t PartTable::Find(uint64_t address) const {
  const uint64_t stretch = std::min<uint64_t>((address - base_) >> shift_, first_.size() - 2);
  const auto from = ends_.begin() + first_[stretch];
  const auto to = ends_.begin() + first_[stretch + 1];
  return static_cast<size_t>(std::upper_bound(from, to, address) - ends_.begin());
}

void PartKeys::Add(size_t device, std::span<const uint32_t> keys) {
  from_[device] = static_cast<uint32_t>(keys_.size());
  keys_.insert(keys_.end(), keys.begin(), keys.end());
}

}  // namespace kvxfer::verbs
