// Where the tensors of one cache may lie.
#include "src/core/kv/kv_tensors.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <vector>

#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

class KvTensors : public ::testing::Test {
 protected:
  // Four layers; blocks of 32 bytes, `stride` apart.
  static KvLayout Layout(uint64_t stride, uint64_t blocks = 10) {
    const KvModel model{
        .layers = 4, .heads = 2, .k_size = 4, .v_size = 4, .element = KvElement::kBytes};
    const KvLayout::Part k{
        .block_stride = stride, .token_stride = 8, .head_stride = 16, .bytes = 4};
    KvLayout::Part v = k;
    v.offset = 4;
    return *KvLayout::FromParts(model, {.layers = 4}, blocks, 2, std::vector{k, v});
  }
  static ::testing::AssertionResult Refused(const KvLayout& layout,
                                            const std::vector<uint64_t>& tensors,
                                            std::initializer_list<const char*> texts) {
    return Fails(CheckKvTensors("decode", layout, tensors), absl::StatusCode::kInvalidArgument,
                 texts);
  }
};

TEST_F(KvTensors, MayFollowEachOther) {
  EXPECT_OK(CheckKvTensors("a", Layout(32), std::vector<uint64_t>{1320, 1000, 1640, 9000}));
  EXPECT_TRUE(
      Refused(Layout(32), {1319, 1000, 1640, 9000}, {"decode KV cache", "0 and 1 overlap"}));
  EXPECT_TRUE(Refused(Layout(32), {1000, 5000, 1000, 9000}, {"0 and 2 overlap"}));
}

TEST_F(KvTensors, MayLieInEachOthersGaps) {
  EXPECT_OK(CheckKvTensors("a", Layout(128), std::vector<uint64_t>{1000, 1032, 1064, 1096}));
  EXPECT_OK(CheckKvTensors("a", Layout(128), std::vector<uint64_t>{1000, 1160, 1064, 1224}));
  EXPECT_TRUE(Refused(Layout(128), {1000, 1031, 1064, 1096}, {"0 and 1 overlap"}));
  EXPECT_TRUE(Refused(Layout(127), {1000, 1032, 1064, 1096}, {"0 and 3 overlap"}));
  EXPECT_TRUE(Refused(Layout(128), {1000, 1032, 1064, 1000 + 128}, {"0 and 3 overlap"}));
}

TEST_F(KvTensors, ApartFromEachOtherMayHaveTheSamePlacesInTheGapsOfAThird) {
  // 10 blocks reach over 1184 bytes.
  EXPECT_OK(CheckKvTensors("a", Layout(128), std::vector<uint64_t>{1000, 1672, 2280, 9000}));
}

TEST_F(KvTensors, OfUnlikeDistancesMayOnlyFollowEachOther) {
  const KvModel model{
      .layers = 2, .heads = 1, .k_size = 8, .v_size = 4, .element = KvElement::kBytes};
  const KvLayout::Part k{.block_stride = 64, .token_stride = 8, .bytes = 8};
  const KvLayout::Part v{.tensor = 1, .block_stride = 32, .token_stride = 4, .bytes = 4};
  ASSERT_OK_AND_ASSIGN(const KvLayout layout,
                       KvLayout::FromParts(model, {.layers = 2}, 4, 2, std::vector{k, v}));
  // K reaches over 208 bytes, V over 104.
  EXPECT_OK(CheckKvTensors("a", layout, std::vector<uint64_t>{1000, 1208, 2000, 2208}));
  EXPECT_TRUE(Refused(layout, {1000, 1207, 2000, 2208}, {"0 and 1 overlap"}));
  EXPECT_TRUE(Refused(layout, {1000, 5000, 2000, 2016}, {"2 and 3 overlap"}));
}

TEST_F(KvTensors, OfOneBlockMayNotTouch) {
  EXPECT_OK(CheckKvTensors("a", Layout(0, 1), std::vector<uint64_t>{1000, 1032, 1064, 1096}));
  EXPECT_TRUE(Refused(Layout(0, 1), {1000, 1031, 1064, 1096}, {"0 and 1 overlap"}));
}

TEST_F(KvTensors, AreAsManyAsTheLayoutHasAndSomewhere) {
  EXPECT_TRUE(Refused(Layout(32), {1000, 2000, 3000}, {"3 tensors", "has 4"}));
  EXPECT_TRUE(Refused(Layout(32), {0, 2000, 3000, 4000}, {"tensor 0 at 0x0"}));
  EXPECT_TRUE(Refused(Layout(32), {1000, 2000, UINT64_MAX - 300, 4000},
                      {"tensor 2", "320 bytes", "address space"}));
}

}  // namespace
}  // namespace kvxfer::testing
