// Computes which bytes of which block move between two layouts of one model: from which ranks a
// rank needs data, and, for two ranks, what is copied between two blocks. This is pure arithmetic.
// The copies between two blocks are the same for every two blocks that overlap in the same way,
// apart from the blocks' addresses. The result is therefore as large for one block as for all.
//
// Specification (kv_block_list.h states the part for all blocks): over all sources of a rank and
// all pieces of a range of tokens, each byte of the rank's data in that range is written exactly
// once, with the byte of the same layer, head, token and element. No other byte is written.
//
// Thread-safety: pure.

#ifndef KVXFER_CORE_KV_RESHARD_H_
#define KVXFER_CORE_KV_RESHARD_H_

#include <cstdint>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/kv_layout.h"

namespace kvxfer {

// The heads that a rank takes from one rank of the other instance.
struct KvSource {
  uint32_t tp_rank = 0;
  KvHeads heads{};

  bool operator==(const KvSource&) const = default;
};

// The ranks of an instance with tensor parallelism `src_tp` that together have every head of rank
// `dst_rank` of an instance with `dst_tp`; each head once, in the order of heads. If several source
// ranks have the same head, target ranks take turns among them. InvalidArgument: as for HeadsOf.
absl::StatusOr<std::vector<KvSource>> SourcesOf(const KvModel& model, uint32_t src_tp,
                                                uint32_t dst_rank, uint32_t dst_tp);

// Consecutive tokens that lie in one block on each side.
struct KvPiece {
  uint32_t src_block = 0;  // index in the request's block list, not a block id
  uint32_t src_token = 0;  // index within that block
  uint32_t dst_block = 0;
  uint32_t dst_token = 0;
  uint32_t tokens = 0;

  bool operator==(const KvPiece&) const = default;
};

// Cuts `tokens` tokens into pieces, in order. The range begins with token `src_first` of the
// source's blocks and `dst_first` of the target's, each counted from the first token of the first
// block.
class KvPieces {
 public:
  KvPieces(uint32_t src_block_tokens, uint64_t src_first, uint32_t dst_block_tokens,
           uint64_t dst_first, uint64_t tokens)
      : src_block_tokens_(src_block_tokens),
        dst_block_tokens_(dst_block_tokens),
        src_(src_first),
        dst_(dst_first),
        left_(tokens) {}

  bool done() const { return left_ == 0; }
  KvPiece Next();  // requires !done()

 private:
  const uint32_t src_block_tokens_;
  const uint32_t dst_block_tokens_;
  uint64_t src_;
  uint64_t dst_;
  uint64_t left_;
};

// Runs of equal length at regular distances, for one block on each side. On either side a run
// begins at the tensor's address (that of the layer's tensor, if each layer has its own), plus
// block id * block_stride, plus the number of layers after the requested one * layer_stride, plus
// the offset.
struct StridedCopy {
  struct Dim {
    uint64_t count = 0;
    uint64_t src_stride = 0;
    uint64_t dst_stride = 0;

    bool operator==(const Dim&) const = default;
  };

  uint32_t src_tensor = 0;  // as in KvLayout::Part
  uint32_t dst_tensor = 0;
  uint64_t src_layer_stride = 0;  // 0: each layer has tensors of its own
  uint64_t dst_layer_stride = 0;
  uint64_t src_block_stride = 0;
  uint64_t dst_block_stride = 0;
  uint64_t src_offset = 0;
  uint64_t dst_offset = 0;
  uint64_t bytes = 0;                  // of one run
  absl::InlinedVector<Dim, 4> dims{};  // the last one is the innermost loop

  uint64_t runs() const;
  // Makes runs as long and dims as few as possible: drops dims of one, extends the run by a dim
  // that continues it on both sides, and merges two dims that continue each other. The same bytes
  // still move to the same places.
  void Normalise();
  // Orders the dims so that source (or target) addresses ascend as far as possible.
  void AscendAtSource();
  void AscendAtTarget();
  bool operator==(const StridedCopy&) const = default;
};

// The copies between a rank and one of its sources.
class Reshard {
 public:
  // `heads`: those of the KvSource. InvalidArgument: different models, or heads that one side does
  // not have.
  static absl::StatusOr<Reshard> Between(const KvLayout& src, const KvLayout& dst, KvHeads heads);

  // True if both sides have all their layers within one tensor. Copies then accepts many layers at
  // once, otherwise one.
  bool spans_layers() const { return spans_layers_; }
  // Appends the copies of `layers` layers, from `first_layer` of the model on, between the two
  // blocks of `piece`, for its tokens. They ascend at the target. Both shards must have those
  // layers.
  void Copies(uint32_t first_layer, uint32_t layers, const KvPiece& piece,
              std::vector<StridedCopy>& out) const;

 private:
  // K, V, or both if they merge into one strided copy.
  struct PartPair {
    KvLayout::Part src{};
    KvLayout::Part dst{};
    uint64_t count = 1;  // parts of equal length, at the following strides
    uint64_t src_stride = 0;
    uint64_t dst_stride = 0;
  };

  Reshard() = default;

  absl::InlinedVector<PartPair, 2> parts_{};
  uint32_t head_count_ = 0;
  uint32_t src_first_head_ = 0;  // within the shard
  uint32_t dst_first_head_ = 0;
  uint32_t src_first_layer_ = 0;  // of the model
  uint32_t dst_first_layer_ = 0;
  bool spans_layers_ = false;
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_KV_RESHARD_H_
