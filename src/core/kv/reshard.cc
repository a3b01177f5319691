#include "src/core/kv/reshard.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/core/kv/kv_range.h"

namespace kvxfer {
namespace {

using Part = KvLayout::Part;

bool SameStrides(const Part& a, const Part& b) {
  return a.tensor == b.tensor && a.layer_stride == b.layer_stride &&
         a.block_stride == b.block_stride && a.token_stride == b.token_stride &&
         a.head_stride == b.head_stride;
}

}  // namespace

absl::StatusOr<std::vector<KvSource>> SourcesOf(const KvModel& model, uint32_t src_tp,
                                                uint32_t dst_rank, uint32_t dst_tp) {
  const absl::StatusOr<KvHeads> wanted = HeadsOf(model, dst_rank, dst_tp);
  if (!wanted.ok()) return wanted.status();
  if (absl::Status status = HeadsOf(model, 0, src_tp).status(); !status.ok()) return status;
  // With more source ranks than heads, `replicas` source ranks have the same head; with fewer, each
  // has `each` heads.
  const uint32_t replicas = std::max(1u, src_tp / model.heads);
  const uint32_t each = std::max(1u, model.heads / src_tp);
  std::vector<KvSource> sources;
  for (uint32_t head = wanted->first; head < wanted->first + wanted->count; ++head) {
    // dst_rank % replicas spreads target ranks that need the same head over the ranks that have it.
    const uint32_t rank = head / each * replicas + dst_rank % replicas;
    if (sources.empty() || sources.back().tp_rank != rank) {
      sources.push_back({.tp_rank = rank, .heads = {.first = head}});
    }
    ++sources.back().heads.count;
  }
  return sources;
}

// A piece ends where either side's block ends.
KvPiece KvPieces::Next() {
  KvPiece piece{.src_block = static_cast<uint32_t>(src_ / src_block_tokens_),
                .src_token = static_cast<uint32_t>(src_ % src_block_tokens_),
                .dst_block = static_cast<uint32_t>(dst_ / dst_block_tokens_),
                .dst_token = static_cast<uint32_t>(dst_ % dst_block_tokens_)};
  const uint64_t most =
      std::min(src_block_tokens_ - piece.src_token, dst_block_tokens_ - piece.dst_token);
  piece.tokens = static_cast<uint32_t>(std::min<uint64_t>(most, left_));
  src_ += piece.tokens;
  dst_ += piece.tokens;
  left_ -= piece.tokens;
  return piece;
}

uint64_t StridedCopy::runs() const {
  uint64_t count = 1;
  for (const Dim& dim : dims) count *= dim.count;
  return count;
}

void StridedCopy::Normalise() {
  const auto erase = [this](size_t i) { dims.erase(dims.begin() + static_cast<ptrdiff_t>(i)); };
  // One simplification: true if it removed a dim. Each step keeps the set of (source, target) byte
  // pairs.
  const auto step = [&] {
    for (size_t i = 0; i < dims.size(); ++i) {
      const Dim dim = dims[i];
      if (dim.count == 1) {
        erase(i);
        return true;
      }
      // The dim continues the run on both sides: the run becomes longer.
      if (dim.src_stride == bytes && dim.dst_stride == bytes) {
        bytes *= dim.count;
        erase(i);
        return true;
      }
      // The dim continues another dim on both sides: the two become one.
      for (Dim& inner : dims) {
        if (&inner == &dims[i]) continue;
        if (dim.src_stride != inner.src_stride * inner.count) continue;
        if (dim.dst_stride != inner.dst_stride * inner.count) continue;
        inner.count *= dim.count;
        erase(i);
        return true;
      }
    }
    return false;
  };
  while (step()) {
  }
}

void StridedCopy::AscendAtSource() {
  std::ranges::stable_sort(dims, std::ranges::greater(), &Dim::src_stride);
}

void StridedCopy::AscendAtTarget() {
  std::ranges::stable_sort(dims, std::ranges::greater(), &Dim::dst_stride);
}

absl::StatusOr<Reshard> Reshard::Between(const KvLayout& src, const KvLayout& dst, KvHeads heads) {
  if (absl::Status same = CheckSameModel(dst.model(), src.model(), "the source"); !same.ok()) {
    return same;
  }
  for (const KvHeads& has : {src.heads(), dst.heads()}) {
    if (KvRangeWithin(heads.first, heads.count, has.first, has.count)) continue;
    return absl::InvalidArgumentError(absl::StrCat(heads.count, " heads from ", heads.first,
                                                   " on are not within the ", has.count, " from ",
                                                   has.first, " on"));
  }
  Reshard reshard;
  reshard.head_count_ = heads.count;
  // Heads of the model become heads of each shard.
  reshard.src_first_head_ = heads.first - src.heads().first;
  reshard.dst_first_head_ = heads.first - dst.heads().first;
  reshard.src_first_layer_ = src.shard().first_layer;
  reshard.dst_first_layer_ = dst.shard().first_layer;
  reshard.spans_layers_ = !src.tensor_per_layer() && !dst.tensor_per_layer();
  // The layouts are of one model, so both have the same number of parts, with equal lengths.
  for (size_t i = 0; i < src.parts().size(); ++i) {
    reshard.parts_.push_back({.src = src.parts()[i], .dst = dst.parts()[i]});
  }
  // K and V merge if they lie at a constant distance on both sides: adjacent on both sides they
  // form one run; otherwise, with equal sizes, they become a dim of two runs.
  if (reshard.parts_.size() < 2) return reshard;
  PartPair& k = reshard.parts_[0];
  const PartPair& v = reshard.parts_[1];
  if (!SameStrides(k.src, v.src) || !SameStrides(k.dst, v.dst)) return reshard;
  // The distance from K to V in the tensor that they share.
  const uint64_t src_stride = v.src.offset - k.src.offset;
  const uint64_t dst_stride = v.dst.offset - k.dst.offset;
  if (src_stride == k.src.bytes && dst_stride == k.src.bytes) {
    k.src.bytes += v.src.bytes;
    reshard.parts_.pop_back();
  } else if (k.src.bytes == v.src.bytes) {
    k.count = 2;
    k.src_stride = src_stride;
    k.dst_stride = dst_stride;
    reshard.parts_.pop_back();
  }
  return reshard;
}

void Reshard::Copies(uint32_t first_layer, uint32_t layers, const KvPiece& piece,
                     std::vector<StridedCopy>& out) const {
  for (const PartPair& part : parts_) {
    // On a side with a tensor per layer the layer stride is 0, so `layers` must be 1 there.
    StridedCopy copy{.src_tensor = part.src.tensor,
                     .dst_tensor = part.dst.tensor,
                     .src_layer_stride = part.src.layer_stride,
                     .dst_layer_stride = part.dst.layer_stride,
                     .src_block_stride = part.src.block_stride,
                     .dst_block_stride = part.dst.block_stride,
                     .src_offset = part.src.offset + src_first_head_ * part.src.head_stride +
                                   piece.src_token * part.src.token_stride,
                     .dst_offset = part.dst.offset + dst_first_head_ * part.dst.head_stride +
                                   piece.dst_token * part.dst.token_stride,
                     .bytes = part.src.bytes,
                     .dims = {{layers, part.src.layer_stride, part.dst.layer_stride},
                              {part.count, part.src_stride, part.dst_stride},
                              {head_count_, part.src.head_stride, part.dst.head_stride},
                              {piece.tokens, part.src.token_stride, part.dst.token_stride}}};
    copy.src_offset += (first_layer - src_first_layer_) * part.src.layer_stride;
    copy.dst_offset += (first_layer - dst_first_layer_) * part.dst.layer_stride;
    copy.Normalise();
    copy.AscendAtTarget();
    out.push_back(std::move(copy));
  }
}

}  // namespace kvxfer
