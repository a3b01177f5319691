// Ranges of heads or layers: the first one, numbered as in the model, and the count.
//
// Thread-safety: pure.

#ifndef KVXFER_CORE_KV_KV_RANGE_H_
#define KVXFER_CORE_KV_KV_RANGE_H_

#include <cstdint>

namespace kvxfer {

// Whether the range is not empty and lies within the whole one. Correct for all values, including
// those whose sums overflow.
inline bool KvRangeWithin(uint32_t first, uint32_t count, uint32_t whole_first,
                          uint32_t whole_count) {
  return count > 0 && first >= whole_first && count <= whole_count &&
         first - whole_first <= whole_count - count;
}

}  // namespace kvxfer

#endif  // KVXFER_CORE_KV_KV_RANGE_H_
