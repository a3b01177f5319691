#include "src/core/kv/kv_range.h"

#include <algorithm>
#include <utility>

namespace kvxfer {
namespace {

// Of two ranges along one axis: the first one in both, and how many.
std::pair<uint32_t, uint32_t> Overlap(uint32_t a, uint32_t a_count, uint32_t b, uint32_t b_count) {
  const uint32_t first = std::max(a, b);
  const uint64_t end = std::min(uint64_t{a} + a_count, uint64_t{b} + b_count);
  return {first, first < end ? static_cast<uint32_t>(end - first) : 0};
}

}  // namespace

KvRange Intersection(const KvRange& a, const KvRange& b) {
  const auto [first_head, heads] =
      Overlap(a.heads.first, a.heads.count, b.heads.first, b.heads.count);
  const auto [first_layer, layers] = Overlap(a.first_layer, a.layers, b.first_layer, b.layers);
  return {
      .heads = {.first = first_head, .count = heads}, .first_layer = first_layer, .layers = layers};
}

std::optional<KvMisfit> MisfitOf(const KvRange& range, const KvRange& whole) {
  const KvMisfit axes[] = {
      {"heads", range.heads.first, range.heads.count, whole.heads.first, whole.heads.count},
      {"layers", range.first_layer, range.layers, whole.first_layer, whole.layers}};
  for (const KvMisfit& axis : axes) {
    if (!KvRangeWithin(axis.first, axis.count, axis.has_first, axis.has_count)) return axis;
  }
  return std::nullopt;
}

}  // namespace kvxfer
