// Reshard against whole tensors (kv_oracle.h): from the caches of one instance into those of
// another, every byte of the right place and no other one.
#include "src/core/reshard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tests/support/scale.h"
#include "tests/support/status_macros.h"
#include "tests/unit/kv_oracle.h"

namespace kvxfer::testing {
namespace {

constexpr uint8_t kUntouched = 0xa5;

// How one instance holds its cache.
struct Instance {
  uint32_t tp = 1;
  uint32_t pp = 1;  // stages of equal length
  Form form = Form::kPacked;
  std::string order = "BHN";
  uint32_t block_tokens = 16;
};

// One request: where its tokens begin on either side, and how many there are.
struct Case {
  KvModel model;
  Instance src;
  Instance dst;
  uint64_t src_first = 0;
  uint64_t dst_first = 0;
  uint32_t tokens = 0;
};

// Of `tp` ranks, independent of HeadsOf.
std::pair<uint32_t, uint32_t> HeadRange(uint32_t heads, uint32_t tp, uint32_t rank) {
  std::vector<uint32_t> mine;
  for (uint32_t head = 0; head < heads; ++head) {
    for (uint32_t r = 0; r < tp; ++r) {
      const bool has = tp <= heads ? head / (heads / tp) == r : r / (tp / heads) == head;
      if (has && r == rank) mine.push_back(head);
    }
  }
  return {mine.front(), static_cast<uint32_t>(mine.size())};
}

std::vector<uint32_t> Shuffled(uint32_t count, std::mt19937_64& random) {
  std::vector<uint32_t> ids(count);
  std::iota(ids.begin(), ids.end(), 0);
  std::ranges::shuffle(ids, random);
  return ids;
}

class Mover {
 public:
  Mover(const Case& c, bool padded, uint64_t seed)
      : case_(c), random_(seed), padding_(padded ? &random_ : nullptr) {
    src_ids_ = Shuffled(Blocks(c.src, c.src_first), random_);
    dst_ids_ = Shuffled(Blocks(c.dst, c.dst_first), random_);
  }

  // Every rank of the target takes its part; false after the first that is not as it should be.
  bool Run() {
    for (uint32_t rank = 0; rank < case_.src.tp; ++rank) {
      for (uint32_t stage = 0; stage < case_.src.pp; ++stage) MakeSource(rank, stage);
    }
    for (uint32_t rank = 0; rank < case_.dst.tp; ++rank) {
      for (uint32_t stage = 0; stage < case_.dst.pp; ++stage) {
        if (!MoveTo(rank, stage)) return false;
      }
    }
    return true;
  }

 private:
  uint32_t Blocks(const Instance& side, uint64_t first) const {
    return static_cast<uint32_t>((first + case_.tokens + side.block_tokens - 1) /
                                 side.block_tokens) +
           1;
  }

  KvShard ShardOf(const Instance& side, uint32_t rank, uint32_t stage) const {
    const uint32_t each = case_.model.layers / side.pp;
    return {.tp_rank = rank, .tp_size = side.tp, .first_layer = stage * each, .layers = each};
  }

  Cache Make(const Instance& side, const KvShard& shard, size_t blocks, uint8_t fill) {
    const auto [first, count] = HeadRange(case_.model.heads, side.tp, shard.tp_rank);
    return MakeCache(case_.model, shard, first, count, side.form, side.order,
                     static_cast<uint32_t>(blocks), side.block_tokens, padding_, fill);
  }

  // Calls visit(layer, kv, token of the request, head, element) for all that `cache` has of it.
  template <typename Visit>
  void ForAll(const Cache& cache, Visit visit) const {
    for (uint32_t layer = 0; layer < cache.shard.layers; ++layer) {
      for (int kv = 0; kv < (case_.model.v_size > 0 ? 2 : 1); ++kv) {
        for (uint32_t token = 0; token < case_.tokens; ++token) {
          for (uint32_t head = 0; head < cache.heads; ++head) {
            const uint32_t size = kv == 1 ? case_.model.v_size : case_.model.k_size;
            for (uint32_t e = 0; e < size; ++e) {
              visit(cache.shard.first_layer + layer, kv, token, cache.first_head + head, e);
            }
          }
        }
      }
    }
  }

  void Fill(Cache& cache, const Instance& side, uint64_t first, const std::vector<uint32_t>& ids) {
    ForAll(cache, [&](uint32_t layer, int kv, uint32_t token, uint32_t head, uint32_t e) {
      const uint64_t at = first + token;
      uint8_t* const bytes = cache.At(layer, kv, ids[at / side.block_tokens],
                                      static_cast<uint32_t>(at % side.block_tokens), head, e);
      for (uint32_t b = 0; b < BytesOf(case_.model.element); ++b) {
        bytes[b] = ValueOf(layer, kv, token, head, e, b);
        ++filled_;
      }
    });
  }

  void MakeSource(uint32_t rank, uint32_t stage) {
    sources_.push_back(Make(case_.src, ShardOf(case_.src, rank, stage), src_ids_.size(), 0));
    Fill(sources_.back(), case_.src, case_.src_first, src_ids_);
  }

  bool MoveTo(uint32_t rank, uint32_t stage) {
    Cache dst = Make(case_.dst, ShardOf(case_.dst, rank, stage), dst_ids_.size(), kUntouched);
    Cache want = dst;
    filled_ = 0;
    Fill(want, case_.dst, case_.dst_first, dst_ids_);
    moved_ = 0;
    const auto sources = SourcesOf(case_.model, case_.src.tp, rank, case_.dst.tp);
    EXPECT_OK(sources);
    if (!sources.ok()) return false;
    for (const KvSource& source : *sources) {
      for (Cache& src : sources_) {
        if (src.shard.tp_rank == source.tp_rank && !MoveFrom(src, dst, source.heads)) return false;
      }
    }
    // As many bytes as there are to be, and all of them right: none was written twice.
    EXPECT_EQ(moved_, filled_);
    EXPECT_TRUE(dst.memory == want.memory);
    return moved_ == filled_ && dst.memory == want.memory;
  }

  bool MoveFrom(Cache& src, Cache& dst, KvHeads heads) {
    const auto from = KvLayout::FromTensors(src.model, src.shard, src.tensors);
    const auto to = KvLayout::FromTensors(dst.model, dst.shard, dst.tensors);
    EXPECT_OK(from);
    EXPECT_OK(to);
    if (!from.ok() || !to.ok()) return false;
    const auto reshard = Reshard::Between(*from, *to, heads);
    EXPECT_OK(reshard);
    if (!reshard.ok()) return false;
    const uint32_t first = std::max(src.shard.first_layer, dst.shard.first_layer);
    const uint32_t end = std::min(src.shard.first_layer + src.shard.layers,
                                  dst.shard.first_layer + dst.shard.layers);
    for (uint32_t layer = first; layer < end;) {
      const uint32_t layers = reshard->spans_layers() ? end - layer : 1;
      KvPieces pieces(case_.src.block_tokens, case_.src_first, case_.dst.block_tokens,
                      case_.dst_first, case_.tokens);
      while (!pieces.done()) Copy(*reshard, src, dst, layer, layers, pieces.Next());
      layer += layers;
    }
    return !::testing::Test::HasFailure();
  }

  void Copy(const Reshard& reshard, Cache& src, Cache& dst, uint32_t layer, uint32_t layers,
            const KvPiece& piece) {
    std::vector<StridedCopy> copies;
    reshard.Copies(layer, layers, piece, copies);
    for (const StridedCopy& copy : copies) {
      const auto memory = [layer](Cache& cache, uint32_t tensor) -> std::vector<uint8_t>& {
        const uint32_t own = cache.layers_within() ? 0 : layer - cache.shard.first_layer;
        return cache.memory[own][tensor];
      };
      const std::vector<uint8_t>& in = memory(src, copy.src_tensor);
      std::vector<uint8_t>& out = memory(dst, copy.dst_tensor);
      const uint64_t src_at = src_ids_[piece.src_block] * copy.src_block_stride;
      const uint64_t dst_at = dst_ids_[piece.dst_block] * copy.dst_block_stride;
      uint64_t runs = 0;
      ForEachRun(copy, src_at, dst_at, [&](uint64_t a, uint64_t b, uint64_t bytes) {
        ++runs;
        ASSERT_LE(a + bytes, in.size());
        ASSERT_LE(b + bytes, out.size());
        std::copy_n(&in[a], bytes, &out[b]);
        moved_ += bytes;
      });
      EXPECT_EQ(runs, copy.runs());
    }
  }

  const Case case_;
  std::mt19937_64 random_;
  std::mt19937_64* const padding_;
  std::vector<uint32_t> src_ids_;
  std::vector<uint32_t> dst_ids_;
  std::vector<Cache> sources_;
  uint64_t filled_ = 0;  // bytes
  uint64_t moved_ = 0;
};

std::string Text(const Case& c) {
  const auto side = [](const Instance& i) {
    return "tp " + std::to_string(i.tp) + " pp " + std::to_string(i.pp) + " form " +
           std::to_string(static_cast<int>(i.form)) + " \"" + i.order + "\" blocks of " +
           std::to_string(i.block_tokens);
  };
  return std::to_string(c.model.layers) + " layers, " + std::to_string(c.model.heads) + " heads, " +
         std::to_string(c.model.k_size) + "+" + std::to_string(c.model.v_size) + "; " +
         side(c.src) + " -> " + side(c.dst) + "; tokens " + std::to_string(c.tokens) + " from " +
         std::to_string(c.src_first) + " to " + std::to_string(c.dst_first);
}

Form RandomForm(const KvModel& model, std::mt19937_64& random) {
  if (model.v_size == 0) return Form::kFused;
  std::vector<Form> forms = {Form::kPacked, Form::kApart};
  if (model.v_size == model.k_size) forms.push_back(Form::kTwo);
  return forms[random() % forms.size()];
}

Instance RandomInstance(const KvModel& model, std::mt19937_64& random) {
  Instance side;
  side.tp = 1u << random() % 4;
  side.pp = model.layers % 2 == 0 ? 1 + static_cast<uint32_t>(random() % 2) : 1;
  side.form = RandomForm(model, random);
  side.order = "BN";
  if (model.heads > 1 || random() % 2 == 0) side.order += 'H';
  if (side.form == Form::kTwo) side.order += '2';
  if (random() % 2 == 0) side.order += 'L';
  std::ranges::shuffle(side.order, random);
  side.block_tokens = 1 + static_cast<uint32_t>(random() % 8);
  return side;
}

Case RandomCase(std::mt19937_64& random) {
  const auto pick = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  Case c;
  c.model.layers = 1 + pick(4);
  c.model.heads = 1u << pick(4);
  c.model.k_size = 1 + pick(4);
  c.model.v_size = pick(4) == 0 ? 0 : pick(2) == 0 ? c.model.k_size : 1 + pick(4);
  constexpr KvElement kElements[] = {KvElement::kFp8E4M3, KvElement::kBf16, KvElement::kFp32};
  c.model.element = kElements[pick(3)];
  c.src = RandomInstance(c.model, random);
  c.dst = RandomInstance(c.model, random);
  c.tokens = 1 + pick(20);
  c.src_first = pick(12);
  c.dst_first = pick(12);
  return c;
}

TEST(Reshard, RandomPairsOfLayouts) {
  std::mt19937_64 random(TestSeed());
  const int count = Scaled(20'000);
  for (int i = 0; i < count; ++i) {
    const Case c = RandomCase(random);
    ASSERT_TRUE(Mover(c, i % 2 == 0, random()).Run()) << Text(c);
  }
}

TEST(Reshard, EveryTensorParallelismBlockSizeAndOrder) {
  constexpr std::array kPowers = {1u, 2u, 4u, 8u};
  constexpr std::array kBlocks = {16u, 32u, 64u};
  uint64_t seed = TestSeed();
  for (const uint32_t heads : kPowers) {
    for (const Form form : {Form::kPacked, Form::kApart, Form::kFused}) {
      if (form == Form::kFused && heads > 1) continue;
      for (size_t tp = 0; tp < 16; ++tp) {
        for (size_t block = 0; block < 9; ++block) {
          // Under a sanitizer every seventh.
          if (kSlow && ++seed % 7 != 0) continue;
          for (int order = 0; order < 4; ++order) {
            const auto side = [&](uint32_t tensors, uint32_t tokens, bool hnd) {
              return Instance{.tp = tensors,
                              .form = form,
                              .order = hnd ? "BHN" : "BNH",
                              .block_tokens = tokens};
            };
            Case c{.model = {.layers = 1,
                             .heads = heads,
                             .k_size = 2,
                             .v_size = form == Form::kFused ? 0u : 1u,
                             .element = KvElement::kBytes},
                   .src = side(kPowers[tp / 4], kBlocks[block / 3], order / 2 == 1),
                   .dst = side(kPowers[tp % 4], kBlocks[block % 3], order % 2 == 1),
                   .tokens = 80};
            ASSERT_TRUE(Mover(c, false, ++seed).Run()) << Text(c);
          }
        }
      }
    }
  }
}

// --- runs are as long as may be ---

KvLayout Layout(const KvModel& model, uint32_t tp, uint32_t rank, Form form,
                const std::string& order, uint32_t block_tokens) {
  const auto heads = HeadRange(model.heads, tp, rank);
  Cache cache = MakeCache(model, {.tp_rank = rank, .tp_size = tp, .layers = model.layers},
                          heads.first, heads.second, form, order, 2, block_tokens, nullptr, 0);
  auto layout = KvLayout::FromTensors(cache.model, cache.shard, cache.tensors);
  EXPECT_OK(layout);
  return *layout;
}

struct Shape {
  uint64_t copies;
  uint64_t runs;  // of all copies
  uint64_t bytes;
};

Shape ShapeOf(const KvLayout& src, const KvLayout& dst, KvHeads heads, uint32_t tokens,
              uint32_t layers = 1) {
  const auto reshard = Reshard::Between(src, dst, heads);
  EXPECT_OK(reshard);
  std::vector<StridedCopy> copies;
  reshard->Copies(0, layers, {.tokens = tokens}, copies);
  Shape shape{.copies = copies.size(), .runs = 0, .bytes = copies.front().bytes};
  for (const StridedCopy& copy : copies) shape.runs += copy.runs();
  return shape;
}

constexpr KvModel kLlama8b{.layers = 32, .heads = 8, .k_size = 128, .v_size = 128};

TEST(ReshardRuns, EqualLayoutsAreOneRunABlock) {
  const KvLayout same = Layout(kLlama8b, 4, 0, Form::kPacked, "BHN", 16);
  const Shape shape = ShapeOf(same, same, {0, 2}, 16);
  EXPECT_EQ(shape.runs, 1u);
  EXPECT_EQ(shape.bytes, 2u * 16 * 256 * 2);
}

TEST(ReshardRuns, LayersWithinABlockAreOneRunToo) {
  const KvLayout same = Layout(kLlama8b, 4, 0, Form::kPacked, "BLHN", 16);
  const Shape shape = ShapeOf(same, same, {0, 2}, 16, 32);
  EXPECT_EQ(shape.runs, 1u);
  EXPECT_EQ(shape.bytes, 32u * 2 * 16 * 256 * 2);
}

TEST(ReshardRuns, HeadsOutsideOfTokensStayWholeWhenTheyMove) {
  // 4 -> 2: both heads of the source lie side by side in the target's four.
  const KvLayout src = Layout(kLlama8b, 4, 1, Form::kPacked, "BHN", 16);
  const KvLayout dst = Layout(kLlama8b, 2, 0, Form::kPacked, "BHN", 16);
  const Shape shape = ShapeOf(src, dst, {2, 2}, 16);
  EXPECT_EQ(shape.runs, 1u);
  EXPECT_EQ(shape.bytes, 2u * 16 * 256 * 2);
}

TEST(ReshardRuns, HeadsInsideOfTokensAreARunAToken) {
  const KvLayout src = Layout(kLlama8b, 4, 1, Form::kTwo, "2BNH", 16);
  const KvLayout dst = Layout(kLlama8b, 2, 0, Form::kTwo, "2BNH", 16);
  const Shape shape = ShapeOf(src, dst, {2, 2}, 16);
  EXPECT_EQ(shape.copies, 1u);  // K and V by one description
  EXPECT_EQ(shape.runs, 2u * 16);
  EXPECT_EQ(shape.bytes, 2u * 128 * 2);
}

TEST(ReshardRuns, OtherOrdersAreARunAHeadAndToken) {
  const KvLayout src = Layout(kLlama8b, 1, 0, Form::kPacked, "BHN", 16);
  const KvLayout dst = Layout(kLlama8b, 1, 0, Form::kPacked, "BNH", 16);
  const Shape shape = ShapeOf(src, dst, {0, 8}, 16);
  EXPECT_EQ(shape.runs, 8u * 16);
  EXPECT_EQ(shape.bytes, 256u * 2);
}

TEST(ReshardRuns, LatentsAreOneRunABlockFromAnyRank) {
  const KvModel deepseek{.layers = 61, .heads = 1, .k_size = 576};
  const KvLayout src = Layout(deepseek, 8, 5, Form::kFused, "BN", 16);
  const KvLayout dst = Layout(deepseek, 4, 3, Form::kFused, "BN", 16);
  const Shape shape = ShapeOf(src, dst, {0, 1}, 16);
  EXPECT_EQ(shape.runs, 1u);
  EXPECT_EQ(shape.bytes, 16u * 576 * 2);
}

// --- sources and pieces ---

TEST(ReshardSources, EachHeadComesFromOneRankAndReplicasShareTheWork) {
  const KvModel model{.layers = 1, .heads = 4, .k_size = 1, .v_size = 1};
  for (const uint32_t src_tp : {1u, 2u, 4u, 8u, 16u}) {
    for (const uint32_t dst_tp : {1u, 2u, 4u, 8u, 16u}) {
      std::vector<int> asked(src_tp, 0);
      for (uint32_t rank = 0; rank < dst_tp; ++rank) {
        ASSERT_OK_AND_ASSIGN(const auto sources, SourcesOf(model, src_tp, rank, dst_tp));
        const auto [first, count] = HeadRange(4, dst_tp, rank);
        uint32_t next = first;
        for (const KvSource& source : sources) {
          EXPECT_EQ(source.heads.first, next);
          const auto [has, many] = HeadRange(4, src_tp, source.tp_rank);
          EXPECT_GE(source.heads.first, has);
          EXPECT_LE(source.heads.first + source.heads.count, has + many);
          next += source.heads.count;
          ++asked[source.tp_rank];
        }
        EXPECT_EQ(next, first + count);
      }
      // As many to each of those that are asked; all are where the target has as many replicas.
      const auto [least, most] = std::ranges::minmax(asked);
      if (dst_tp >= src_tp) {
        EXPECT_EQ(least, most) << src_tp << " -> " << dst_tp;
      }
    }
  }
}

TEST(ReshardPieces, CutWhereEitherSideChangesItsBlock) {
  KvPieces pieces(16, 5, 32, 30, 40);
  std::vector<KvPiece> all;
  while (!pieces.done()) all.push_back(pieces.Next());
  EXPECT_THAT(all, ::testing::ElementsAre(KvPiece{0, 5, 0, 30, 2}, KvPiece{0, 7, 1, 0, 9},
                                          KvPiece{1, 0, 1, 9, 16}, KvPiece{2, 0, 1, 25, 7},
                                          KvPiece{2, 7, 2, 0, 6}));
}

TEST(Reshard, WhatDoesNotFitIsRefused) {
  const KvLayout a = Layout(kLlama8b, 4, 1, Form::kPacked, "BHN", 16);
  const KvLayout b = Layout(kLlama8b, 2, 0, Form::kPacked, "BHN", 16);
  EXPECT_TRUE(Fails(Reshard::Between(a, b, {1, 2}).status(), absl::StatusCode::kInvalidArgument,
                    {"heads 1 to 3", "2 to 4"}));
  EXPECT_TRUE(Fails(Reshard::Between(a, b, {2, 0}).status(), absl::StatusCode::kInvalidArgument,
                    {"heads 2 to 2"}));
  KvModel other = kLlama8b;
  other.element = KvElement::kFp16;
  const KvLayout c = Layout(other, 2, 0, Form::kPacked, "BHN", 16);
  EXPECT_TRUE(Fails(Reshard::Between(a, c, {2, 2}).status(), absl::StatusCode::kInvalidArgument,
                    {"element", "fp16", "bf16"}));
  EXPECT_TRUE(Fails(SourcesOf(kLlama8b, 3, 0, 2).status(), absl::StatusCode::kInvalidArgument,
                    {"8 heads", "tp_size 3"}));
  EXPECT_TRUE(Fails(SourcesOf(kLlama8b, 4, 2, 2).status(), absl::StatusCode::kInvalidArgument,
                    {"tp_rank 2 of tp_size 2"}));
}

}  // namespace
}  // namespace kvxfer::testing
