// KvLayout: what a tensor's axes, lengths and strides come to, and what is refused with which
// words.
#include "kvxfer/kv_layout.h"

#include <gtest/gtest.h>

#include <array>
#include <initializer_list>
#include <random>
#include <string>
#include <vector>

#include "tests/support/scale.h"
#include "tests/support/status_macros.h"
#include "tests/unit/core/kv/leases.h"

namespace kvxfer::testing {
namespace {

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

// --- from a peer ---

class FromParts : public ::testing::Test {
 protected:
  FromParts() {
    // K and V beside each other in one tensor for all layers.
    part_[0] = {.layer_stride = 163840,
                .block_stride = 8192,
                .token_stride = 512,
                .head_stride = 256,
                .bytes = 256};
    part_[1] = part_[0];
    part_[1].offset = 81920;
  }
  absl::StatusOr<KvLayout> Make() const {
    return KvLayout::FromParts(kModel, kShard, blocks_, block_tokens_, part_);
  }
  ::testing::AssertionResult Refused(std::initializer_list<const char*> texts) const {
    return Fails(Make(), kInvalid, texts);
  }

  uint64_t blocks_ = 10;
  uint32_t block_tokens_ = 16;
  std::array<KvLayout::Part, 2> part_{};
};

TEST_F(FromParts, IsWhatTensorsGive) {
  ASSERT_OK_AND_ASSIGN(const KvLayout layout, Make());
  ASSERT_OK_AND_ASSIGN(const KvLayout tensor, Of({.axes = "L2BNHD",
                                                  .shape = {32, 2, 10, 16, 2, 128},
                                                  .strides = {81920, 40960, 4096, 256, 128, 1}}));
  EXPECT_EQ(layout, tensor);
}

TEST_F(FromParts, EachFieldThatCannotBeIsRefused) {
  const auto good = part_;
  const auto with = [&](auto change) {
    part_ = good;
    blocks_ = 10;
    block_tokens_ = 16;
    change();
  };
  with([&] { blocks_ = 0; });
  EXPECT_TRUE(Refused({"blocks is 0"}));
  with([&] { block_tokens_ = 0; });
  EXPECT_TRUE(Refused({"tokens per block is 0"}));
  with([&] { part_[0].bytes = 255; });
  EXPECT_TRUE(Refused({"255", "not the model's"}));
  with([&] { part_[1].bytes = 512; });
  EXPECT_TRUE(Refused({"512", "not the model's"}));
  with([&] { part_[0].offset = 16; });
  EXPECT_TRUE(Refused({"first part"}));
  with([&] { part_[1].tensor = 2; });
  EXPECT_TRUE(Refused({"second part", "tensor 2"}));
  with([&] { part_[0].token_stride = part_[1].token_stride = 513; });
  EXPECT_TRUE(Refused({"513 bytes", "element, 2"}));
  with([&] { part_[1].offset = 81921; });
  EXPECT_TRUE(Refused({"81921 bytes"}));
  with([&] { part_[0].tensor = 1; });
  EXPECT_TRUE(Refused({"first part"}));
  with([&] { part_[1].tensor = 1; });
  EXPECT_TRUE(Refused({"tensors of K and of V are not alike"}));
  with([&] {
    part_[1].tensor = 1;
    part_[1].offset = part_[1].layer_stride = 0;
  });
  EXPECT_TRUE(Refused({"tensors of K and of V are not alike"}));
  with([&] { part_[1].head_stride = 512; });
  EXPECT_TRUE(Refused({"unlike strides"}));
  with([&] { part_[0].head_stride = part_[1].head_stride = 128; });
  EXPECT_TRUE(Refused({"axis H", "128 bytes", "overlaps the elements"}));
  with([&] { part_[1].offset = 128; });
  EXPECT_TRUE(Refused({"axis 2", "overlaps"}));
  with([&] { part_[1].offset = 0; });
  EXPECT_TRUE(Refused({"axis 2", "overlaps"}));
  with([&] { part_[0].layer_stride = part_[1].layer_stride = uint64_t{1} << 60; });
  EXPECT_TRUE(Refused({"axis L", "too long"}));
  with([&] { blocks_ = uint64_t{1} << 32; });
  EXPECT_TRUE(Refused({"overlaps"}));
  with([] {});
  EXPECT_OK(Make());
  EXPECT_TRUE(Fails(KvLayout::FromParts(kModel, kShard, 10, 16, {part_.data(), 1}), kInvalid,
                    {"1 parts", "has 2"}));
  EXPECT_TRUE(
      Fails(KvLayout::FromParts(kModel, {.tp_rank = 1, .tp_size = 4, .layers = 1}, 10, 16, part_),
            kInvalid, {"a stride for one layer"}));
  KvModel fused = kModel;
  fused.v_size = 0;
  EXPECT_TRUE(Fails(KvLayout::FromParts(fused, kShard, 10, 16, part_), kInvalid, {"2 parts"}));
}

// Whatever a stranger sends: refused, or no byte of it beyond the tensor that it says it has.
TEST_F(FromParts, OfAnyNumbersStayWithinTheTensor) {
  std::mt19937_64 random(TestSeed());
  const auto any = [&]() -> uint64_t {
    const uint64_t value = random() >> random() % 64;
    return random() % 2 == 0 ? value : value & ~uint64_t{255};
  };
  const auto good = part_;
  int taken = 0;
  for (int i = 0; i < 200'000; ++i) {
    part_ = good;
    blocks_ = random() % 3 == 0 ? any() : 10;
    block_tokens_ = random() % 3 == 0 ? static_cast<uint32_t>(any()) : 16;
    for (uint64_t KvLayout::Part::*const field :
         {&KvLayout::Part::layer_stride, &KvLayout::Part::block_stride,
          &KvLayout::Part::token_stride, &KvLayout::Part::head_stride}) {
      if (random() % 4 == 0) part_[0].*field = part_[1].*field = any();
    }
    if (random() % 4 == 0) part_[1].offset = any();
    if (random() % 4 == 0) {
      part_[1].tensor = 1;
      part_[1].offset = 0;
      if (random() % 2 == 0) part_[1].token_stride = any();
    }
    const absl::StatusOr<KvLayout> layout = Make();
    if (!layout.ok()) continue;
    ++taken;
    using Wide = unsigned __int128;
    for (const KvLayout::Part& part : layout->parts()) {
      const Wide end = Wide{part.offset} + Wide{part.layer_stride} * (kShard.layers - 1) +
                       Wide{part.block_stride} * (blocks_ - 1) +
                       Wide{part.token_stride} * (block_tokens_ - 1) +
                       Wide{part.head_stride} * (layout->heads().count - 1) + part.bytes;
      ASSERT_LE(end, Wide{layout->tensor_bytes(part.tensor)});
    }
    ASSERT_LE(layout->tensor_bytes(0), uint64_t{1} << 56);
  }
  EXPECT_GT(taken, 500);
}

}  // namespace
}  // namespace kvxfer::testing
