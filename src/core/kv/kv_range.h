// A KV range: heads × layers, numbered as in the model. It says what a transfer moves, what a part
// of a request has brought, and what a cache has.
//
// Thread-safety: pure.

#ifndef KVXFER_CORE_KV_KV_RANGE_H_
#define KVXFER_CORE_KV_KV_RANGE_H_

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"
#include "kvxfer/kv_layout.h"

namespace kvxfer {

struct KvRange {
  KvHeads heads{};
  uint32_t first_layer = 0;
  uint32_t layers = 0;

  bool empty() const { return heads.count == 0 || layers == 0; }
  bool operator==(const KvRange&) const = default;
};

// All that a cache with this layout has.
inline KvRange RangeOf(const KvLayout& layout) {
  return {.heads = layout.heads(),
          .first_layer = layout.shard().first_layer,
          .layers = layout.shard().layers};
}

// The heads and layers that are in both; empty() if there are none. Like the functions below it is
// correct for all values, including those whose sums overflow.
KvRange Intersection(const KvRange& a, const KvRange& b);

// Whether the heads or layers from `first` on are at least one and lie within the whole ones.
inline bool KvRangeWithin(uint32_t first, uint32_t count, uint32_t whole_first,
                          uint32_t whole_count) {
  return count > 0 && first >= whole_first && count <= whole_count &&
         first - whole_first <= whole_count - count;
}

// An axis along which a range is empty or not within another one.
struct KvMisfit {
  absl::string_view axis{};  // "heads" or "layers"
  uint32_t first = 0;
  uint32_t count = 0;
  // What the other range has.
  uint32_t has_first = 0;
  uint32_t has_count = 0;

  bool operator==(const KvMisfit&) const = default;
};

// The first such axis; none: `range` is not empty and lies within `whole`.
std::optional<KvMisfit> MisfitOf(const KvRange& range, const KvRange& whole);

}  // namespace kvxfer

#endif  // KVXFER_CORE_KV_KV_RANGE_H_
