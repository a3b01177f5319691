#include "src/core/protocol/id_set.h"

#include <algorithm>
#include <iterator>

namespace kvxfer {

void IdSet::Add(uint32_t first, uint32_t last) {
  auto next = runs_.upper_bound(first);
  if (next != runs_.begin()) {
    const auto before = std::prev(next);
    // Computed in 64 bits, because the highest id has no successor in 32.
    if (uint64_t{before->second} + 1 >= first) {
      first = before->first;
      last = std::max(last, before->second);
      next = runs_.erase(before);
    }
  }
  // Runs that touch are merged, so `runs_` stays as small as possible.
  while (next != runs_.end() && next->first <= uint64_t{last} + 1) {
    last = std::max(last, next->second);
    next = runs_.erase(next);
  }
  runs_.emplace_hint(next, first, last);
}

bool IdSet::Intersects(uint32_t first, uint32_t last) const {
  const auto after = runs_.upper_bound(last);
  return after != runs_.begin() && std::prev(after)->second >= first;
}

}  // namespace kvxfer
