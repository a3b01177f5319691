// From whom a rank takes what, where blocks are cut, and how long the runs are. That the right
// bytes go to the right places is held by kv_block_list_test.cc.
#include "src/core/kv/reshard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/support/kv_oracle.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

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
                    {"2 heads from 1", "2 from 2"}));
  EXPECT_TRUE(Fails(Reshard::Between(a, b, {2, 0}).status(), absl::StatusCode::kInvalidArgument,
                    {"0 heads from 2"}));
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
