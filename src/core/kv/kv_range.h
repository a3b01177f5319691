// Heads and layers come as ranges: the first of the model's, and how many.
//
// Thread-safety: pure.

#ifndef KVXFER_CORE_KV_KV_RANGE_H_
#define KVXFER_CORE_KV_KV_RANGE_H_

#include <cstdint>

namespace kvxfer {

// Whether a range has something, and all of it lies within the whole one. Any values may come.
inline bool KvRangeWithin(uint32_t first, uint32_t count, uint32_t whole_first,
                          uint32_t whole_count) {
  return count > 0 && first >= whole_first && count <= whole_count &&
         first - whole_first <= whole_count - count;
}

}  // namespace kvxfer

#endif  // KVXFER_CORE_KV_KV_RANGE_H_
