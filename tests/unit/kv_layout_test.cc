// KvLayout: what a tensor's axes, lengths and strides come to, and what is refused with which
// words.
#include "kvxfer/kv_layout.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr KvModel kModel{.layers = 32, .heads = 8, .k_size = 128, .v_size = 128};
constexpr KvShard kShard{.tp_rank = 1, .tp_size = 4, .layers = 32};

absl::StatusOr<KvLayout> Of(const KvTensor& tensor, const KvModel& model = kModel,
                            const KvShard& shard = kShard) {
  return KvLayout::FromTensors(model, shard, {&tensor, 1});
}

TEST(KvLayout, PackedAsVllmHasIt) {
  ASSERT_OK_AND_ASSIGN(
      const KvLayout layout,
      Of({.axes = "BHNC", .shape = {1024, 2, 16, 256}, .strides = {8192, 4096, 256, 1}}));
  EXPECT_EQ(layout.heads(), (KvHeads{.first = 2, .count = 2}));
  EXPECT_EQ(layout.blocks(), 1024u);
  EXPECT_EQ(layout.block_tokens(), 16u);
  EXPECT_TRUE(layout.tensor_per_layer());
  EXPECT_EQ(layout.tensors(), 1u);
  EXPECT_EQ(layout.tensor_bytes(0), 1024u * 8192 * 2);
  ASSERT_EQ(layout.parts().size(), 2u);
  const KvLayout::Part k{
      .block_stride = 16384, .token_stride = 512, .head_stride = 8192, .bytes = 256};
  KvLayout::Part v = k;
  v.offset = 256;
  EXPECT_EQ(layout.parts()[0], k);
  EXPECT_EQ(layout.parts()[1], v);
}

TEST(KvLayout, KAndVBesideEachOtherInOneTensorForAllLayers) {
  ASSERT_OK_AND_ASSIGN(const KvLayout layout, Of({.axes = "L2BNHD",
                                                  .shape = {32, 2, 10, 16, 2, 128},
                                                  .strides = {81920, 40960, 4096, 256, 128, 1}}));
  EXPECT_FALSE(layout.tensor_per_layer());
  EXPECT_EQ(layout.parts()[0].layer_stride, 163840u);
  EXPECT_EQ(layout.parts()[1].offset, 81920u);
  EXPECT_EQ(layout.parts()[1].head_stride, 256u);
}

TEST(KvLayout, ATensorForEachOfKAndV) {
  const KvModel model{.layers = 2, .heads = 1, .k_size = 192, .v_size = 128};
  const std::vector<KvTensor> tensors = {
      {.axes = "BND", .shape = {4, 16, 192}, .strides = {3072, 192, 1}},
      {.axes = "BND", .shape = {4, 16, 128}, .strides = {2048, 128, 1}}};
  ASSERT_OK_AND_ASSIGN(const KvLayout layout, KvLayout::FromTensors(model, {.layers = 2}, tensors));
  EXPECT_EQ(layout.tensors(), 2u);
  EXPECT_EQ(layout.parts()[1].tensor, 1u);
  EXPECT_EQ(layout.parts()[1].bytes, 256u);
  EXPECT_EQ(layout.tensor_bytes(1), 4u * 2048 * 2);
}

TEST(KvLayout, Latents) {
  const KvModel model{.layers = 61, .heads = 1, .k_size = 576};
  ASSERT_OK_AND_ASSIGN(const KvLayout layout,
                       Of({.axes = "BNC", .shape = {7, 64, 576}, .strides = {36864, 576, 1}}, model,
                          {.tp_rank = 5, .tp_size = 8, .layers = 61}));
  EXPECT_EQ(layout.heads(), (KvHeads{.first = 0, .count = 1}));
  ASSERT_EQ(layout.parts().size(), 1u);
  EXPECT_EQ(layout.parts()[0].bytes, 1152u);
}

TEST(KvLayout, HeadsOfRanks) {
  const auto heads = [](uint32_t all, uint32_t rank, uint32_t tp) {
    return HeadsOf({.layers = 1, .heads = all, .k_size = 1}, rank, tp);
  };
  EXPECT_EQ(*heads(8, 3, 4), (KvHeads{6, 2}));
  EXPECT_EQ(*heads(4, 5, 8), (KvHeads{2, 1}));
  EXPECT_EQ(*heads(1, 7, 8), (KvHeads{0, 1}));
  EXPECT_TRUE(Fails(heads(8, 0, 3).status(), kInvalid, {"8 heads", "tp_size 3"}));
  EXPECT_TRUE(Fails(heads(6, 0, 4).status(), kInvalid, {"6 heads", "tp_size 4"}));
  EXPECT_TRUE(Fails(heads(8, 4, 4).status(), kInvalid, {"tp_rank 4", "tp_size 4"}));
  EXPECT_TRUE(Fails(heads(8, 0, 0).status(), kInvalid, {"tp_size 0"}));
}

TEST(KvLayout, ModelsThatDifferAreToldByTheField) {
  const auto differs = [](KvModel other, std::vector<const char*> words) {
    words.push_back("decode-3");
    const absl::Status why = CheckSameModel(kModel, other, "decode-3");
    EXPECT_EQ(why.code(), kInvalid);
    for (const char* word : words) {
      EXPECT_NE(why.ToString().find(word), std::string::npos) << why << " lacks " << word;
    }
  };
  EXPECT_OK(CheckSameModel(kModel, kModel, "decode-3"));
  KvModel other = kModel;
  other.layers = 31;
  differs(other, {"layers", "32 here", "31 there"});
  other = kModel;
  other.heads = 4;
  differs(other, {"heads", "4 there"});
  other = kModel;
  other.v_size = 0;
  differs(other, {"v_size", "128 here", "0 there"});
  other = kModel;
  other.element = KvElement::kFp8E5M2;
  differs(other, {"element", "bf16 here", "fp8_e5m2 there"});
}

struct Bad {
  const char* name;
  KvTensor tensor;
  std::vector<const char*> words;
};

class BadTensor : public ::testing::TestWithParam<Bad> {};

TEST_P(BadTensor, IsRefusedByName) {
  const absl::Status why = Of(GetParam().tensor).status();
  EXPECT_EQ(why.code(), kInvalid) << why;
  for (const char* word : GetParam().words) {
    EXPECT_NE(why.ToString().find(word), std::string::npos) << why << " lacks " << word;
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, BadTensor,
    ::testing::Values(
        Bad{"nothing", {}, {"0 axes"}},
        Bad{"lengths", {"BHNC", {4, 2, 16}, {8192, 4096, 256, 1}}, {"4 axes, 3 lengths"}},
        Bad{"letter", {"BHNX", {4, 2, 16, 256}, {8192, 4096, 256, 1}}, {"'X'", "none of"}},
        Bad{"twice", {"BBNC", {4, 2, 16, 256}, {8192, 4096, 256, 1}}, {"axis B", "twice"}},
        Bad{"empty", {"BHNC", {0, 2, 16, 256}, {8192, 4096, 256, 1}}, {"axis B is empty"}},
        Bad{"heads", {"BHNC", {4, 8, 16, 256}, {32768, 4096, 256, 1}}, {"axis H", "8", "2"}},
        Bad{"size", {"BHNC", {4, 2, 16, 128}, {4096, 2048, 128, 1}}, {"axis C", "128", "256"}},
        Bad{"no_tokens", {"BHC", {4, 2, 256}, {512, 256, 1}}, {"axis N is missing"}},
        Bad{"no_heads", {"BNC", {4, 16, 256}, {4096, 256, 1}}, {"axis H is missing"}},
        Bad{"only_one", {"BHND", {4, 2, 16, 128}, {4096, 2048, 128, 1}}, {"K and V"}},
        Bad{"both", {"2BHNC", {2, 4, 2, 16, 256}, {65536, 8192, 4096, 256, 1}}, {"axis 2"}},
        Bad{"gaps", {"BHNC", {4, 2, 16, 256}, {16384, 8192, 512, 2}}, {"axis C", "stride of 2"}},
        Bad{"overlap", {"BHNC", {4, 2, 16, 256}, {8192, 4000, 256, 1}}, {"axis H", "overlaps"}},
        Bad{"expanded", {"BHNC", {4, 2, 16, 256}, {0, 4096, 256, 1}}, {"axis B", "overlaps"}},
        Bad{"layers",
            {"LBHNC", {30, 4, 2, 16, 256}, {32768, 8192, 4096, 256, 1}},
            {"axis L", "30", "32"}},
        Bad{"too_long",
            {"BHNC", {uint64_t{1} << 32, 2, 16, 256}, {uint64_t{1} << 54, 4096, 256, 1}},
            {"axis B", "too long"}},
        Bad{"too_many",
            {"BHNC", {uint64_t{1} << 40, 2, 16, 256}, {8192, 4096, 256, 1}},
            {"blocks is 1099511627776"}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(KvLayout, OtherBadInput) {
  const KvTensor good{.axes = "BHNC", .shape = {4, 2, 16, 256}, .strides = {8192, 4096, 256, 1}};
  EXPECT_OK(Of(good));
  EXPECT_TRUE(Fails(KvLayout::FromTensors(kModel, kShard, {}).status(), kInvalid, {"0 tensors"}));
  const std::vector<KvTensor> three(3, good);
  EXPECT_TRUE(
      Fails(KvLayout::FromTensors(kModel, kShard, three).status(), kInvalid, {"3 tensors"}));
  EXPECT_TRUE(Fails(
      Of(good, kModel, {.tp_rank = 1, .tp_size = 4, .first_layer = 20, .layers = 13}).status(),
      kInvalid, {"13 layers from 20", "32"}));
  EXPECT_TRUE(
      Fails(Of(good, kModel, {.tp_rank = 1, .tp_size = 4}).status(), kInvalid, {"0 layers"}));
  KvModel model = kModel;
  model.heads = 0;
  EXPECT_TRUE(Fails(Of(good, model).status(), kInvalid, {"heads is 0"}));
  const KvTensor k{.axes = "BHND", .shape = {4, 2, 16, 128}, .strides = {4096, 2048, 128, 1}};
  KvTensor v = k;
  EXPECT_OK(KvLayout::FromTensors(kModel, kShard, std::vector{k, v}));
  v.shape[0] = 5;
  EXPECT_TRUE(Fails(KvLayout::FromTensors(kModel, kShard, std::vector{k, v}).status(), kInvalid,
                    {"K and of V differ"}));
}

}  // namespace
}  // namespace kvxfer::testing
