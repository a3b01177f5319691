// How one worker's KV cache lies in memory, and which part (shard) of the model's cache it holds.
// From two layouts of one model kvxfer computes which bytes move where. The layouts may differ in
// tensor parallelism, tokens per block, order of the axes, and whether K and V are packed or
// separate.
//
// Thread-safety: plain values, and functions without state.
//
// Example: Llama-3.1-8B, rank 1 of 4, in vLLM's layout with one tensor per layer:
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

// What two workers must have in common to exchange KV blocks.
struct KvModel {
  uint32_t layers = 0;  // layers that have a KV cache
  uint32_t heads = 0;   // KV heads; 1 for latent attention (MLA)
  uint32_t k_size = 0;  // elements of K per head and token; of the fused entry if K and V are fused
  uint32_t v_size = 0;  // elements of V per head and token; 0: K and V are fused
  KvElement element = KvElement::kBf16;
  // A hash of everything else that gives the bytes their meaning: weights, revision, scales,
  // position encoding. 0 is a value like any other.
  uint64_t fingerprint = 0;

  bool operator==(const KvModel&) const = default;
};

// InvalidArgument: the first field that differs, with both values. `peer` appears in the message.
absl::Status CheckSameModel(const KvModel& ours, const KvModel& theirs, std::string_view peer);

// Which part of the model's cache one worker has.
struct KvShard {
  uint32_t tp_rank = 0;
  uint32_t tp_size = 1;
  uint32_t first_layer = 0;  // not 0 with pipeline parallelism
  uint32_t layers = 0;

  bool operator==(const KvShard&) const = default;
};

// Heads `first` to `first + count - 1` of the model.
struct KvHeads {
  uint32_t first = 0;
  uint32_t count = 0;

  bool operator==(const KvHeads&) const = default;
};

// The heads of one rank: heads / tp_size per rank; or, with more ranks than heads, one head on each
// group of tp_size / heads consecutive ranks. InvalidArgument: the division leaves a remainder.
absl::StatusOr<KvHeads> HeadsOf(const KvModel& model, uint32_t tp_rank, uint32_t tp_size);

// How an instance divides a model among its ranks, which are numbered stage by stage:
// stage * tp_size + tp_rank.
struct KvDivision {
  uint32_t tp_size = 1;
  // The first layer of each pipeline stage, ascending from 0 on. A stage ends where the next one
  // begins, the last one with the model.
  std::vector<uint32_t> stages{0};

  bool operator==(const KvDivision&) const = default;
};

// The ranks of another instance that the worker with shard `own` takes blocks from, ascending. For
// the first rank of the first stage also those that nobody reads from, because it tells them so
// (docs/kv-caches.md). InvalidArgument: a division that the model does not allow.
absl::StatusOr<std::vector<uint32_t>> RanksToRead(const KvModel& model, const KvShard& own,
                                                  const KvDivision& from);
// The ranks of another instance that this worker writes blocks to; may be none.
absl::StatusOr<std::vector<uint32_t>> RanksToWrite(const KvModel& model, const KvShard& own,
                                                   const KvDivision& to);

// A tensor as frameworks describe it. `axes` has one letter per axis, outermost first:
//   L  layer of the shard; if absent, each layer has a tensor of its own
//   2  K, then V
//   B  block
//   N  token of the block
//   H  head of the shard; may be absent if there is one head
//   D  element of K, or of V; innermost
//   C  element of K and then of V, or of the fused entry; innermost
// Strides are in elements, as torch.Tensor.stride() returns them.
struct KvTensor {
  std::string axes{};
  std::vector<uint64_t> shape{};
  std::vector<uint64_t> strides{};
};

class KvLayout {
 public:
  // Where K, V, or their fused entry lies, in bytes from the start of its tensor.
  struct Part {
    uint32_t tensor = 0;  // within a layer: 0, or 1 for V in a tensor of its own
    uint64_t offset = 0;
    uint64_t layer_stride = 0;  // 0: each layer has tensors of its own
    uint64_t block_stride = 0;
    uint64_t token_stride = 0;
    uint64_t head_stride = 0;
    uint64_t bytes = 0;  // of one head and token, contiguous

    bool operator==(const Part&) const = default;
  };

  // `tensors`: either one with both K and V, or one of K and one of V with equal numbers of blocks
  // and tokens. The tensors of all further layers have the same shape. InvalidArgument names the
  // axis and what it should be: an axis that is missing, doubled or unknown; a length that differs
  // from the model and shard; elements with gaps between them; axes that overlap.
  static absl::StatusOr<KvLayout> FromTensors(const KvModel& model, const KvShard& shard,
                                              std::span<const KvTensor> tensors);

  // Builds a layout from the values of the accessors below, as a peer's metadata contains them.
  // InvalidArgument: not a layout that FromTensors could have built.
  static absl::StatusOr<KvLayout> FromParts(const KvModel& model, const KvShard& shard,
                                            uint64_t blocks, uint32_t block_tokens,
                                            std::span<const Part> parts);

  const KvModel& model() const { return model_; }
  const KvShard& shard() const { return shard_; }
  KvHeads heads() const { return heads_; }
  uint64_t blocks() const { return blocks_; }
  uint32_t block_tokens() const { return block_tokens_; }
  // K and V, or only the fused entry.
  std::span<const Part> parts() const { return std::span(parts_).first(part_count_); }
  bool tensor_per_layer() const { return parts_[0].layer_stride == 0; }
  uint32_t tensors() const { return tensors_; }  // of one layer, or of all if they share them
  // The number of tensors in all.
  size_t tensor_count() const { return tensors_ * size_t{tensor_per_layer() ? shard_.layers : 1}; }
  // Bytes from the start of `tensor` (0 or 1, as in Part::tensor) to the end of its last used byte.
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
