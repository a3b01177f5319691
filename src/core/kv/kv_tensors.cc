#include "src/core/kv/kv_tensors.h"

#include <algorithm>
#include <vector>

#include "src/core/base/strings.h"

namespace kvxfer {
namespace {

// Bounds the cost of a peer's metadata to milliseconds. 2,800 tensors that are views of one buffer
// stay below it.
constexpr size_t kMaxCompared = 4'000'000;

// Where a tensor lies. The gaps between its blocks do not belong to it.
struct TensorExtent {
  size_t index = 0;
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t stride = 0;       // from block to block
  uint64_t block_bytes = 0;  // from the first byte of a block to the end of its last used byte
};

// Whether the blocks of two tensors have the same stride and fit into each other's gaps.
bool InEachOthersGaps(const TensorExtent& a, const TensorExtent& b) {
  if (a.stride != b.stride || a.block_bytes > a.stride || b.block_bytes > b.stride) return false;
  const uint64_t between = (b.begin - a.begin) % a.stride;
  return a.block_bytes <= between && b.block_bytes <= a.stride - between;
}

}  // namespace

absl::Status CheckKvTensorCount(std::string_view name, const KvLayout& layout, size_t tensors) {
  if (tensors == layout.tensor_count()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(ToAbsl(name), " KV cache: ", tensors,
                                                 " tensors, and its layout has ",
                                                 layout.tensor_count()));
}

absl::Status CheckKvTensors(std::string_view name, const KvLayout& layout,
                            std::span<const uint64_t> tensors) {
  absl::Status status = CheckKvTensorCount(name, layout, tensors.size());
  if (!status.ok()) return status;
  const auto refuse = [&](const auto&... why) {
    return absl::InvalidArgumentError(absl::StrCat(ToAbsl(name), " KV cache: ", why...));
  };
  std::vector<TensorExtent> extents;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const uint32_t of_layer = static_cast<uint32_t>(i % layout.tensors());
    TensorExtent extent{.index = i, .begin = tensors[i]};
    if (tensors[i] == 0 ||
        __builtin_add_overflow(extent.begin, layout.tensor_bytes(of_layer), &extent.end)) {
      return refuse("tensor ", i, " at 0x", absl::Hex(tensors[i]), " of ",
                    layout.tensor_bytes(of_layer), " bytes is not in the address space");
    }
    extent.stride = layout.parts()[of_layer].block_stride;
    const uint64_t blocks = (layout.blocks() - 1) * extent.stride;
    extent.block_bytes = layout.tensor_bytes(of_layer) - blocks;
    extents.push_back(extent);
  }
  std::ranges::sort(extents, {}, &TensorExtent::begin);
  // Only neighbours whose extents overlap are compared. Views of one buffer all overlap, hence the
  // limit.
  size_t compared = 0;
  for (size_t i = 0; i < extents.size(); ++i) {
    const TensorExtent& a = extents[i];
    for (size_t j = i + 1; j < extents.size() && extents[j].begin < a.end; ++j) {
      const TensorExtent& b = extents[j];
      if (++compared > kMaxCompared) {
        return refuse("too many of its ", tensors.size(),
                      " tensors lie within each other's gaps; describe them as one with axis L");
      }
      if (InEachOthersGaps(a, b)) continue;
      return refuse("tensors ", std::min(a.index, b.index), " and ", std::max(a.index, b.index),
                    " overlap, or lie within each other's blocks");
    }
  }
  return absl::OkStatus();
}

}  // namespace kvxfer
