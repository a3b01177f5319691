// How a KV cache lies in the memory of one worker, and which part of the model's it is. Two layouts
// of one model say together which bytes have to go where, whatever differs between the two: tensor
// parallelism, tokens per block, order of the axes, K and V packed or apart.
//
// Thread-safety: plain values; functions without state.
//
// Example: Llama-3.1-8B, rank 1 of 4, as vLLM has it, one tensor a layer:
//   KvModel model{.layers = 32, .heads = 8, .k_size = 128, .v_size = 128};
//   KvTensor tensor{.axes = "BHNC", .shape = {1024, 2, 16, 256}, .strides = {8192, 4096, 256, 1}};
//   auto layout = KvLayout::FromTensors(model, {.tp_rank = 1, .tp_size = 4, .layers = 32},
//                                       {&tensor, 1});

#ifndef KVXFER_KV_LAYOUT_H_
#define KVXFER_KV_LAYOUT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kvxfer {

enum class KvElement : uint8_t { kBytes = 0, kFp8E4M3, kFp8E5M2, kFp16, kBf16, kFp32 };
uint32_t BytesOf(KvElement element);
std::string_view NameOf(KvElement element);

// What both sides have to have in common.
struct KvModel {
  uint32_t layers = 0;  // with a cache
  uint32_t heads = 0;   // of K and V; 1 where they are latent (MLA)
  uint32_t k_size = 0;  // elements of K for one head and token, or of what K and V are fused to
  uint32_t v_size = 0;  // the same of V; 0: fused
  KvElement element = KvElement::kBf16;
  // A hash of all else that must be the same for the bytes to mean the same: weights, revision,
  // scales, position encoding. 0 is a value like any other.
  uint64_t fingerprint = 0;

  bool operator==(const KvModel&) const = default;
};

// InvalidArgument: a field that is not the same, with both values; `peer` is for a person.
absl::Status CheckSameModel(const KvModel& ours, const KvModel& theirs, std::string_view peer);

// Which part of the model's cache one worker has.
struct KvShard {
  uint32_t tp_rank = 0;
  uint32_t tp_size = 1;
  uint32_t first_layer = 0;  // with pipeline parallelism
  uint32_t layers = 0;

  bool operator==(const KvShard&) const = default;
};

// Heads `first` to `first + count - 1` of the model.
struct KvHeads {
  uint32_t first = 0;
  uint32_t count = 0;

  bool operator==(const KvHeads&) const = default;
};

// The heads of one rank: heads / tp_size of them each, or, with more ranks than heads, one head on
// tp_size / heads ranks that follow each other. InvalidArgument: that does not come out even.
absl::StatusOr<KvHeads> HeadsOf(const KvModel& model, uint32_t tp_rank, uint32_t tp_size);

// A tensor as frameworks describe it. `axes` has a letter for each axis, outermost first:
//   L  layer of the shard; without it there is a tensor for each layer
//   2  K, then V
//   B  block
//   N  token of the block
//   H  head of the shard; may be absent with one head
//   D  element of K, or of V; the innermost one
//   C  the same of both, K first, or of what they are fused to
// Strides are in elements, as torch.Tensor.stride() has them.
struct KvTensor {
  std::string axes{};
  std::vector<uint64_t> shape{};
  std::vector<uint64_t> strides{};
};

class KvLayout {
 public:
  // Where K, V, or what they are fused to, lies; in bytes, from the start of its tensor.
  struct Part {
    uint32_t tensor = 0;  // of a layer: 0, or 1 for V in a tensor of its own
    uint64_t offset = 0;
    uint64_t layer_stride = 0;  // 0: each layer has tensors of its own
    uint64_t block_stride = 0;
    uint64_t token_stride = 0;
    uint64_t head_stride = 0;
    uint64_t bytes = 0;  // of one head and token, without a gap

    bool operator==(const Part&) const = default;
  };

  // `tensors`: one with both K and V, or one of K and one of V, with the same number of blocks and
  // tokens; those of each further layer are alike. InvalidArgument names the axis and what it
  // should be: an axis that is missing, there twice or not known, a length that is not that of the
  // model and shard, elements with gaps, axes that overlap.
  static absl::StatusOr<KvLayout> FromTensors(const KvModel& model, const KvShard& shard,
                                              std::span<const KvTensor> tensors);

  // From what the accessors below say, as a peer's metadata has it. InvalidArgument: not a layout
  // that FromTensors could have made.
  static absl::StatusOr<KvLayout> FromParts(const KvModel& model, const KvShard& shard,
                                            uint64_t blocks, uint32_t block_tokens,
                                            std::span<const Part> parts);

  const KvModel& model() const { return model_; }
  const KvShard& shard() const { return shard_; }
  KvHeads heads() const { return heads_; }
  uint64_t blocks() const { return blocks_; }
  uint32_t block_tokens() const { return block_tokens_; }
  // K and V, or one.
  std::span<const Part> parts() const { return std::span(parts_).first(part_count_); }
  bool tensor_per_layer() const { return parts_[0].layer_stride == 0; }
  uint32_t tensors() const { return tensors_; }  // of a layer, or of all where they share one
  // How many there are in all.
  size_t tensor_count() const { return tensors_ * size_t{tensor_per_layer() ? shard_.layers : 1}; }
  // From the first byte of that tensor to behind the last one that is used.
  uint64_t tensor_bytes(uint32_t tensor) const { return tensor_bytes_[tensor]; }

  bool operator==(const KvLayout&) const = default;

 private:
  KvLayout() = default;
  static absl::StatusOr<KvLayout> Begin(const KvModel& model, const KvShard& shard);
  absl::Status Take(const KvTensor& tensor, bool holds_k, bool holds_v);
  absl::Status CheckParts();

  KvModel model_{};
  KvShard shard_{};
  KvHeads heads_{};
  uint64_t blocks_ = 0;
  uint32_t block_tokens_ = 0;
  uint32_t tensors_ = 0;
  uint32_t part_count_ = 0;
  std::array<Part, 2> parts_{};
  std::array<uint64_t, 2> tensor_bytes_{};
};

}  // namespace kvxfer

#endif  // KVXFER_KV_LAYOUT_H_
