// Which bytes of which block go where between two layouts of one model: from which ranks a rank
// needs something, and for two ranks what of a block goes where. Arithmetic alone, and its result
// is as large for one block as for all: what is copied between two blocks is the same for every two
// blocks, but for where these begin.
//
// Specification, which kv_block_list.h gives for all of it together: over all sources of a rank and
// all pieces of a range of tokens, each byte of the rank's part of that range is written once, with
// the byte of the same layer, head, token and element; nothing else is.
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

// What a rank takes from one rank of the other instance.
struct KvSource {
  uint32_t tp_rank = 0;
  KvHeads heads{};

  bool operator==(const KvSource&) const = default;
};

// The ranks of an instance with tensor parallelism `src_tp` that together have every head of rank
// `dst_rank` of one with `dst_tp`, each head once, in the order of heads. Where several have the
// same head, ranks that need it take different ones in turn. InvalidArgument as HeadsOf.
absl::StatusOr<std::vector<KvSource>> SourcesOf(const KvModel& model, uint32_t src_tp,
                                                uint32_t dst_rank, uint32_t dst_tp);

// Tokens that lie in one block on either side.
struct KvPiece {
  uint32_t src_block = 0;  // which of the request's blocks, not its id
  uint32_t src_token = 0;  // of that block
  uint32_t dst_block = 0;
  uint32_t dst_token = 0;
  uint32_t tokens = 0;

  bool operator==(const KvPiece&) const = default;
};

// Cuts `tokens` tokens into such pieces, in order. They begin with token `src_first` of the
// source's blocks and `dst_first` of the target's, counted through from the first block on.
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
  KvPiece Next();  // not when done

 private:
  const uint32_t src_block_tokens_;
  const uint32_t dst_block_tokens_;
  uint64_t src_;
  uint64_t dst_;
  uint64_t left_;
};

// Runs of equal length at even distances. Offsets are from where a block begins on either side: in
// the tensor, that of the layer where each has its own, at the block's id times its block_stride,
// and for each layer after the one that was asked for, a layer_stride further on.
struct StridedCopy {
  struct Dim {
    uint64_t count = 0;
    uint64_t src_stride = 0;
    uint64_t dst_stride = 0;

    bool operator==(const Dim&) const = default;
  };

  uint32_t src_tensor = 0;  // of KvLayout::Part
  uint32_t dst_tensor = 0;
  uint64_t src_layer_stride = 0;  // 0: each layer has tensors of its own
  uint64_t dst_layer_stride = 0;
  uint64_t src_block_stride = 0;
  uint64_t dst_block_stride = 0;
  uint64_t src_offset = 0;
  uint64_t dst_offset = 0;
  uint64_t bytes = 0;                  // of a run
  absl::InlinedVector<Dim, 4> dims{};  // the last one is walked innermost

  uint64_t runs() const;
  // Makes runs as long, and dims as few, as may be: dims of one are dropped, a dim that continues a
  // run on both sides becomes part of it, two that continue each other become one. The same bytes
  // go to the same places.
  void Normalise();
  // Walks them in ascending order of what is read, or of what is written, as far as may be.
  void AscendAtSource();
  void AscendAtTarget();
  bool operator==(const StridedCopy&) const = default;
};

// Between a rank and one of its sources.
class Reshard {
 public:
  // `heads`: of the KvSource. InvalidArgument: not of one model, or not heads that both have.
  static absl::StatusOr<Reshard> Between(const KvLayout& src, const KvLayout& dst, KvHeads heads);

  // Both sides have their layers within one tensor: Copies may be asked for many layers at once,
  // else for one.
  bool spans_layers() const { return spans_layers_; }
  // Appends what of `layers` layers, from `first_layer` of the model on, goes from one block to the
  // other for the tokens of `piece`, ascending at the target; both shards have those layers.
  void Copies(uint32_t first_layer, uint32_t layers, const KvPiece& piece,
              std::vector<StridedCopy>& out) const;

 private:
  // K, V, or both where they lie and stay side by side.
  struct PartPair {
    KvLayout::Part src{};
    KvLayout::Part dst{};
    uint64_t count = 1;  // parts of equal length, at these distances
    uint64_t src_stride = 0;
    uint64_t dst_stride = 0;
  };

  Reshard() = default;

  absl::InlinedVector<PartPair, 2> parts_{};
  uint32_t head_count_ = 0;
  uint32_t src_first_head_ = 0;  // of the shard's
  uint32_t dst_first_head_ = 0;
  uint32_t src_first_layer_ = 0;  // of the model
  uint32_t dst_first_layer_ = 0;
  bool spans_layers_ = false;
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_KV_RESHARD_H_
