// KV caches in metadata: every layout comes back as it was, small, and whatever else comes in is
// refused by name.
#include "src/core/protocol/metadata_kv.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <ostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kvxfer/kv_cache.h"
#include "src/core/base/strings.h"
#include "src/core/base/text.h"
#include "src/core/protocol/metadata.h"
#include "src/core/protocol/metadata.pb.h"
#include "src/core/protocol/wire_format.h"
#include "tests/fuzz/metadata_checks.h"
#include "tests/support/kv_oracle.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr size_t kHeaderBytes = 20;
constexpr uint64_t kMemory = 0x7f0000000000;

AgentMetadata Of(KvCacheTable caches) {
  AgentMetadata metadata;
  metadata.name = "prefill-0";
  metadata.incarnation.bytes.fill(7);
  metadata.min_version = kMinProtocolVersion;
  metadata.max_version = kMaxProtocolVersion;
  metadata.host.hostname = "node-17";
  metadata.kv_caches = std::move(caches);
  return metadata;
}

proto::Metadata ProtoOf(const KvCacheTable& caches) {
  proto::Metadata out;
  EXPECT_TRUE(out.ParseFromString(EncodeMetadata(Of(caches)).substr(kHeaderBytes)));
  return out;
}

// Its tensors one behind the other.
KvCacheInfo Placed(const KvLayout& layout) {
  KvCacheInfo cache{.layout = layout, .tensors = {}};
  uint64_t at = kMemory;
  for (size_t i = 0; i < layout.tensor_count(); ++i) {
    cache.tensors.push_back(at);
    at += layout.tensor_bytes(static_cast<uint32_t>(i % layout.tensors()));
  }
  return cache;
}

KvLayout LayoutOf(const KvModel& model, const KvShard& shard,
                  const std::vector<KvTensor>& tensors) {
  absl::StatusOr<KvLayout> layout = KvLayout::FromTensors(model, shard, tensors);
  EXPECT_OK(layout);
  return *std::move(layout);
}

// K and V apart, two tensors for each of `layers` layers.
KvCacheInfo Apart(uint32_t layers, uint64_t blocks) {
  const KvModel model{.layers = layers, .heads = 8, .k_size = 128, .v_size = 128};
  const KvTensor half{
      .axes = "BNHD", .shape = {blocks, 16, 8, 128}, .strides = {16384, 1024, 128, 1}};
  return Placed(LayoutOf(model, {.layers = layers}, {half, half}));
}

void ExpectComesBack(const KvCacheTable& caches) {
  ASSERT_OK_AND_ASSIGN(const AgentMetadata decoded, DecodeMetadata(EncodeMetadata(Of(caches))));
  EXPECT_EQ(decoded.kv_caches, caches);
  ASSERT_OK_AND_ASSIGN(const KvCacheTable alone, DecodeKvCaches(ProtoOf(caches)));
  EXPECT_EQ(alone, caches);
}

// --- there and back ---

struct Shape {
  const char* name;
  KvModel model;
  KvShard shard;
  std::vector<KvTensor> tensors;
};
void PrintTo(const Shape& shape, std::ostream* out) { *out << shape.name; }

class MetadataKvShape : public ::testing::TestWithParam<Shape> {};

TEST_P(MetadataKvShape, ComesBackAsItWas) {
  const Shape& shape = GetParam();
  const KvCacheInfo cache = Placed(LayoutOf(shape.model, shape.shard, shape.tensors));
  ExpectComesBack({{"kv", cache}});

  ASSERT_OK_AND_ASSIGN(const KvCacheTable decoded, DecodeKvCaches(ProtoOf({{"kv", cache}})));
  const KvLayout& layout = decoded.at("kv").layout;
  EXPECT_EQ(layout.model(), shape.model);
  EXPECT_EQ(layout.shard(), shape.shard);
  EXPECT_EQ(layout.blocks(), cache.layout.blocks());
  EXPECT_EQ(layout.block_tokens(), cache.layout.block_tokens());
  EXPECT_EQ(layout.heads(), cache.layout.heads());
  EXPECT_TRUE(std::ranges::equal(layout.parts(), cache.layout.parts()));
  EXPECT_EQ(layout.tensor_count(), cache.tensors.size());
  for (uint32_t i = 0; i < layout.tensors(); ++i) {
    EXPECT_EQ(layout.tensor_bytes(i), cache.layout.tensor_bytes(i));
  }
  EXPECT_EQ(decoded.at("kv").tensors, cache.tensors);
}

constexpr KvModel kLlama{.layers = 80, .heads = 8, .k_size = 128, .v_size = 128};
constexpr KvModel kMla{.layers = 61, .heads = 1, .k_size = 576};

INSTANTIATE_TEST_SUITE_P(
    All, MetadataKvShape,
    ::testing::Values(
        Shape{"Packed",
              kLlama,
              {.tp_rank = 1, .tp_size = 4, .layers = 80},
              {{"BHNC", {1024, 2, 16, 256}, {8192, 4096, 256, 1}}}},
        Shape{"KThenV",
              kLlama,
              {.tp_rank = 3, .tp_size = 4, .layers = 80},
              {{"2BNHD", {2, 1024, 16, 2, 128}, {4194304, 4096, 256, 128, 1}}}},
        Shape{"Apart",
              {.layers = 2, .heads = 4, .k_size = 192, .v_size = 128},
              {.layers = 2},
              {{"BNHD", {4, 16, 4, 192}, {12288, 768, 192, 1}},
               {"BHND", {4, 4, 16, 128}, {8192, 2048, 128, 1}}}},
        Shape{"OneTensorForAllLayers",
              kLlama,
              {.tp_rank = 0, .tp_size = 4, .layers = 80},
              {{"L2BNHD", {80, 2, 10, 16, 2, 128}, {81920, 40960, 4096, 256, 128, 1}}}},
        Shape{"LayersWithinBlocks",
              kLlama,
              {.tp_size = 8, .layers = 80},
              {{"BLNC", {10, 80, 16, 256}, {327680, 4096, 256, 1}}}},
        Shape{"ApartForAllLayers",
              {.layers = 3, .heads = 2, .k_size = 64, .v_size = 32},
              {.layers = 3},
              {{"LBNHD", {3, 4, 16, 2, 64}, {8192, 2048, 128, 64, 1}},
               {"LBNHD", {3, 4, 16, 2, 32}, {4096, 1024, 64, 32, 1}}}},
        Shape{"Latents",
              kMla,
              {.tp_rank = 5, .tp_size = 8, .layers = 61},
              {{"BNC", {7, 64, 576}, {36864, 576, 1}}}},
        Shape{"MoreRanksThanHeads",
              kLlama,
              {.tp_rank = 13, .tp_size = 16, .layers = 80},
              {{"BNC", {7, 64, 256}, {16384, 256, 1}}}},
        Shape{"LastStageOfAPipeline",
              kLlama,
              {.tp_size = 8, .first_layer = 60, .layers = 20},
              {{"BNC", {7, 64, 256}, {16384, 256, 1}}}},
        Shape{"OneLayerOfAPipeline",
              kLlama,
              {.tp_size = 8, .first_layer = 79, .layers = 1},
              {{"LBNC", {1, 7, 64, 256}, {1 << 20, 16384, 256, 1}}}},
        Shape{"PaddedFp8",
              {.layers = 2,
               .heads = 8,
               .k_size = 128,
               .v_size = 128,
               .element = KvElement::kFp8E4M3,
               .fingerprint = 0xfedcba9876543210},
              {.layers = 2},
              {{"BHNC", {9, 8, 16, 256}, {40001, 5003, 257, 1}}}},
        Shape{"Fp8OfTheOtherKind",
              {.layers = 1,
               .heads = 1,
               .k_size = 1,
               .v_size = 1,
               .element = KvElement::kFp8E5M2,
               .fingerprint = UINT64_MAX},
              {.layers = 1},
              {{"BNC", {1, 1, 2}, {0, 0, 1}}}},
        Shape{"Bytes",
              {.layers = 4, .heads = 1, .k_size = 656, .element = KvElement::kBytes},
              {.layers = 4},
              {{"BNC", {3, 64, 656}, {41984, 656, 1}}}},
        Shape{"Fp16",
              {.layers = 4, .heads = 1, .k_size = 64, .v_size = 64, .element = KvElement::kFp16},
              {.layers = 4},
              {{"BNC", {3, 64, 128}, {8192, 128, 1}}}},
        Shape{"Fp32",
              {.layers = 4, .heads = 1, .k_size = 64, .v_size = 64, .element = KvElement::kFp32},
              {.layers = 4},
              {{"BNC", {3, 64, 128}, {8192, 128, 1}}}},
        Shape{"AsManyBlocksAsThereMayBe",
              kMla,
              {.layers = 61},
              {{"BNC", {uint64_t{1} << 32, 1, 576}, {576, 576, 1}}}},
        // A stride that nothing is multiplied with may be any number.
        Shape{"OneBlockOfOneToken",
              kMla,
              {.layers = 61},
              {{"BNC", {1, 1, 576}, {UINT64_MAX, uint64_t{1} << 63, 1}}}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(MetadataKv, NoCachesAndAllThatAnAgentMayHave) {
  ExpectComesBack({});
  KvCacheTable caches;
  for (size_t i = 0; i < kMaxKvCaches; ++i) {
    caches.emplace("cache " + std::to_string(i), Apart(2, 4 + i));
  }
  ExpectComesBack(caches);
}

TEST(MetadataKv, NamesAreUtf8ThatCanBeShown) {
  const KvCacheInfo cache = Apart(2, 4);
  ExpectComesBack({{std::string(kMaxNameBytes, 'n'), cache}, {"größe", cache}, {"kv", cache}});
  for (const std::string& bad :
       {std::string("\0", 1), std::string("not\xffutf-8"), std::string("\n")}) {
    proto::Metadata metadata;
    EncodeKvCaches({{bad, cache}}, metadata);
    const auto decoded = DecodeKvCaches(metadata);
    EXPECT_TRUE(Fails(decoded, absl::StatusCode::kInvalidArgument, {"KV cache", "UTF-8"}));
    EXPECT_TRUE(IsPrintable(std::string(decoded.status().message()))) << decoded.status();
  }
}

// As where the layers of a block lie together, with a tensor for each layer all the same.
TEST(MetadataKv, TensorsWithinEachOthersGaps) {
  const KvModel model{.layers = 4, .heads = 1, .k_size = 8, .v_size = 8};
  KvCacheInfo cache = Placed(LayoutOf(model, {.layers = 4}, {{"BNC", {6, 2, 16}, {128, 16, 1}}}));
  cache.tensors.clear();
  for (uint64_t layer = 4; layer-- > 0;) cache.tensors.push_back(kMemory + layer * 64);
  ExpectComesBack({{"kv", cache}});
}

TEST(MetadataKv, RandomLayoutsComeBackAsTheyWere) {
  std::mt19937_64 random(TestSeed());
  const auto below = [&](uint64_t end) { return static_cast<uint32_t>(random() % end); };
  for (int round = 0; round < Scaled(1'000) && !::testing::Test::HasFailure(); ++round) {
    KvCacheTable caches;
    for (uint32_t i = 1 + below(3); i > 0; --i) {
      const auto form = static_cast<Form>(below(4));
      KvModel model{.layers = 1 + below(6), .heads = 1u << below(4), .k_size = 1 + below(8)};
      model.v_size = form == Form::kFused ? 0 : form == Form::kTwo ? model.k_size : 1 + below(8);
      model.element = static_cast<KvElement>(below(6));
      model.fingerprint = random() >> random() % 64;
      KvShard shard{.tp_size = 1u << below(5), .first_layer = below(model.layers)};
      shard.tp_rank = below(shard.tp_size);
      shard.layers = 1 + below(model.layers - shard.first_layer);
      const auto [first, heads] = HeadRange(model.heads, shard.tp_size, shard.tp_rank);
      std::string order = "BNH";
      if (below(2) == 0) order += 'L';
      if (form == Form::kTwo) order += '2';
      std::ranges::shuffle(order, random);
      if (heads == 1 && below(2) == 0) std::erase(order, 'H');
      const Cache cache = MakeCache(model, shard, first, heads, form, order, 1 + below(5),
                                    1 + below(4), below(2) == 0 ? &random : nullptr, 0);
      caches.emplace(std::to_string(i), Placed(LayoutOf(model, shard, cache.tensors)));
    }
    ExpectComesBack(caches);
  }
}

TEST(MetadataKv, RevisionComesBack) {
  for (const uint64_t revision : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 40, UINT64_MAX}) {
    AgentMetadata metadata = Of({{"kv", Apart(2, 4)}});
    metadata.revision = revision;
    ASSERT_OK_AND_ASSIGN(const AgentMetadata decoded, DecodeMetadata(EncodeMetadata(metadata)));
    EXPECT_EQ(decoded.revision, revision);
    metadata.kv_caches.clear();
    ASSERT_OK_AND_ASSIGN(const AgentMetadata without, DecodeMetadata(EncodeMetadata(metadata)));
    EXPECT_EQ(without.revision, revision);
  }
}

TEST(MetadataKv, OneFromAnAgentWithoutCachesHasNone) {
  AgentMetadata metadata = Of({});
  const std::string without = EncodeMetadata(metadata);
  metadata.revision = 1;
  EXPECT_EQ(EncodeMetadata(metadata).size(), without.size() + 2);
  ASSERT_OK_AND_ASSIGN(const AgentMetadata decoded, DecodeMetadata(without));
  EXPECT_EQ(decoded.revision, 0u);
  EXPECT_TRUE(decoded.kv_caches.empty());
}

TEST(MetadataKv, IsSmallHoweverManyBlocksThereAre) {
  const auto bytes = [](uint64_t blocks) {
    return EncodeMetadata(Of({{"kv", Apart(80, blocks)}})).size();
  };
  EXPECT_LT(bytes(100'000), 3u * 1024);
  EXPECT_EQ(bytes(100'000), bytes(1'000'000));
  EXPECT_LE(bytes(uint64_t{1} << 32), bytes(1) + 4) << "their number is written shorter";
}

// --- what is refused ---

class BadMetadataKv : public ::testing::Test {
 protected:
  using Change = std::function<void(proto::KvCache&)>;

  // By both ways in, with these words.
  static ::testing::AssertionResult Refused(const proto::Metadata& metadata,
                                            std::initializer_list<const char*> words) {
    const absl::StatusOr<KvCacheTable> alone = DecodeKvCaches(metadata);
    if (const auto fails = Fails(alone, kInvalid, words); !fails) return fails;
    const absl::StatusOr<AgentMetadata> whole =
        DecodeMetadata(SealMetadata(metadata.SerializeAsString()));
    if (whole.status() == alone.status()) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << "as metadata: " << whole.status().ToString();
  }
  ::testing::AssertionResult Refused(const Change& change,
                                     std::initializer_list<const char*> words) const {
    proto::Metadata metadata = good_;
    change(*metadata.mutable_kv_caches(1));
    const auto refused = Refused(metadata, words);
    return refused ? Refused(metadata, {"metadata: KV cache kv: "}) : refused;
  }

  // Of two caches the second one: 4 layers of 10 blocks, K and V apart.
  const proto::Metadata good_ = ProtoOf({{"a", Apart(2, 4)}, {"kv", Apart(4, 10)}});
};

TEST_F(BadMetadataKv, AsAMatterOfFactIsGood) {
  EXPECT_OK(DecodeKvCaches(good_));
  EXPECT_OK(DecodeMetadata(SealMetadata(good_.SerializeAsString())));
  EXPECT_EQ(good_.kv_caches(1).tensors_size(), 8);
}

TEST_F(BadMetadataKv, ABadNameIsRefused) {
  const auto named = [&](const std::string& name, std::initializer_list<const char*> words) {
    proto::Metadata metadata = good_;
    metadata.mutable_kv_caches(1)->set_name(name);
    return Refused(metadata, words);
  };
  EXPECT_TRUE(named("", {"metadata: KV cache", "0 bytes", "1 to 255"}));
  EXPECT_TRUE(named(std::string(256, 'n'), {"metadata: KV cache nnn", "256 bytes", "1 to 255"}));
  EXPECT_TRUE(named("a", {"metadata: KV cache a", "twice"}));
  proto::Metadata metadata = good_;
  *metadata.add_kv_caches() = metadata.kv_caches(1);
  EXPECT_TRUE(Refused(metadata, {"metadata: KV cache kv", "twice"}));
}

TEST_F(BadMetadataKv, TooManyAreRefused) {
  proto::Metadata metadata = good_;
  for (int i = 2; i < 64; ++i) {
    *metadata.add_kv_caches() = metadata.kv_caches(0);
    metadata.mutable_kv_caches(i)->set_name(std::to_string(i));
  }
  EXPECT_OK(DecodeKvCaches(metadata));
  metadata.add_kv_caches()->set_name("one more");
  EXPECT_TRUE(Refused(metadata, {"metadata: 65 KV caches", "at most 64"}));
}

TEST_F(BadMetadataKv, AModelThatCannotBeIsRefused) {
  EXPECT_TRUE(Refused([](auto& cache) { cache.set_element(6); }, {"element 6 is unknown"}));
  EXPECT_TRUE(Refused([](auto& cache) { cache.set_element(UINT32_MAX); }, {"element 4294967295"}));
  EXPECT_TRUE(Refused([](auto& cache) { cache.set_element(256); }, {"element 256 is unknown"}));
  EXPECT_TRUE(Refused([](auto& cache) { cache.set_model_layers(0); }, {"layers is 0"}));
  EXPECT_TRUE(Refused([](auto& cache) { cache.set_model_layers(4097); }, {"layers is 4097"}));
  EXPECT_TRUE(Refused([](auto& cache) { cache.set_model_heads(0); }, {"heads is 0"}));
  EXPECT_TRUE(Refused([](auto& cache) { cache.set_model_heads(65537); }, {"heads is 65537"}));
  EXPECT_TRUE(Refused([](auto& cache) { cache.set_k_size(0); }, {"k_size is 0"}));
  EXPECT_TRUE(Refused([](auto& cache) { cache.set_v_size(UINT32_MAX); }, {"v_size is 4294967295"}));
}

TEST_F(BadMetadataKv, AShardThatCannotBeIsRefused) {
  EXPECT_TRUE(Refused([](auto& cache) { cache.set_tp_size(0); }, {"tp_rank 0 of tp_size 0"}));
  EXPECT_TRUE(Refused([](auto& cache) { cache.set_tp_rank(1); }, {"tp_rank 1 of tp_size 1"}));
  EXPECT_TRUE(Refused([](auto& cache) { cache.set_tp_size(3); }, {"8 heads", "tp_size 3"}));
  EXPECT_TRUE(Refused([](auto& cache) { cache.set_layers(0); }, {"0 layers from 0"}));
  EXPECT_TRUE(Refused([](auto& cache) { cache.set_layers(5); }, {"5 layers from 0", "4"}));
  EXPECT_TRUE(Refused([](auto& cache) { cache.set_first_layer(1); }, {"4 layers from 1", "4"}));
  EXPECT_TRUE(Refused([](auto& cache) { cache.set_first_layer(UINT32_MAX); },
                      {"4 layers from 4294967295"}));
}

TEST_F(BadMetadataKv, PartsThatAreNoLayoutAreRefused) {
  EXPECT_TRUE(Refused([](auto& cache) { cache.set_blocks(0); }, {"blocks is 0"}));
  EXPECT_TRUE(Refused([](auto& cache) { cache.set_blocks(UINT64_MAX); }, {"blocks is 1844674"}));
  EXPECT_TRUE(Refused([](auto& cache) { cache.set_block_tokens(0); }, {"tokens per block is 0"}));
  EXPECT_TRUE(Refused([](auto& cache) { cache.clear_parts(); }, {"0 parts", "has 2"}));
  EXPECT_TRUE(Refused([](auto& cache) { cache.mutable_parts()->RemoveLast(); }, {"1 parts"}));
  EXPECT_TRUE(Refused([](auto& cache) { *cache.add_parts() = cache.parts(0); }, {"3 parts"}));
  EXPECT_TRUE(Refused([](auto& cache) { cache.set_v_size(0); }, {"2 parts", "has 1"}));
  EXPECT_TRUE(Refused([](auto& cache) { cache.set_k_size(64); }, {"256 bytes", "the model's"}));
  const auto part = [](int which, void (proto::KvPart::*set)(uint64_t), uint64_t value) {
    return [=](proto::KvCache& cache) { (cache.mutable_parts(which)->*set)(value); };
  };
  EXPECT_TRUE(Refused(part(0, &proto::KvPart::set_bytes, 255), {"255 and 256 bytes"}));
  EXPECT_TRUE(Refused(part(1, &proto::KvPart::set_bytes, 0), {"256 and 0 bytes"}));
  EXPECT_TRUE(Refused(part(0, &proto::KvPart::set_offset, 256), {"first part"}));
  EXPECT_TRUE(Refused(part(1, &proto::KvPart::set_offset, 256), {"K and of V are not alike"}));
  EXPECT_TRUE(Refused(part(1, &proto::KvPart::set_layer_stride, 4096), {"K and of V", "alike"}));
  EXPECT_TRUE(Refused(part(0, &proto::KvPart::set_block_stride, 32766), {"axis B", "overlaps"}));
  EXPECT_TRUE(Refused(part(1, &proto::KvPart::set_token_stride, 2046), {"axis N", "overlaps"}));
  EXPECT_TRUE(Refused(part(0, &proto::KvPart::set_head_stride, 255), {"255 bytes", "element, 2"}));
  EXPECT_TRUE(Refused(part(1, &proto::KvPart::set_head_stride, 0), {"axis H", "overlaps"}));
  EXPECT_TRUE(
      Refused(part(1, &proto::KvPart::set_block_stride, uint64_t{1} << 60), {"axis B", "long"}));
  EXPECT_TRUE(
      Refused([](auto& cache) { cache.mutable_parts(0)->set_tensor(1); }, {"the first tensor"}));
  EXPECT_TRUE(Refused([](auto& cache) { cache.mutable_parts(1)->set_tensor(2); },
                      {"second part is in tensor 2"}));
}

TEST_F(BadMetadataKv, TensorsThatCannotBeAreRefused) {
  const auto at = [](int which, uint64_t address) {
    return [=](proto::KvCache& cache) { cache.set_tensors(which, address); };
  };
  EXPECT_TRUE(Refused([](auto& cache) { cache.clear_tensors(); }, {"0 tensors", "has 8"}));
  EXPECT_TRUE(
      Refused([](auto& cache) { cache.mutable_tensors()->RemoveLast(); }, {"7 tensors", "has 8"}));
  EXPECT_TRUE(Refused([](auto& cache) { cache.add_tensors(1); }, {"9 tensors", "has 8"}));
  // Each is 327,680 bytes long.
  const uint64_t third = good_.kv_caches(1).tensors(2);
  EXPECT_EQ(third, kMemory + 2 * 327'680);
  EXPECT_TRUE(Refused(at(2, third - 2), {"tensors 1 and 2 overlap"}));
  EXPECT_TRUE(Refused(at(2, third + 2), {"tensors 2 and 3 overlap"}));
  EXPECT_TRUE(Refused(at(7, third), {"tensors 2 and 7 overlap"}));
  EXPECT_TRUE(Refused(at(0, 0), {"tensor 0 at 0x0", "address space"}));
  EXPECT_TRUE(Refused(at(7, 0), {"tensor 7 at 0x0", "address space"}));
  EXPECT_TRUE(Refused(at(7, UINT64_MAX), {"tensor 7 at 0xffffffffffffffff of 327680 bytes"}));
  EXPECT_TRUE(Refused(at(7, -uint64_t{327'679}), {"tensor 7", "address space"}));
  proto::Metadata metadata = good_;
  at(7, -uint64_t{327'681})(*metadata.mutable_kv_caches(1));
  EXPECT_OK(DecodeKvCaches(metadata)) << "the last that ends within";
}

// --- whatever comes in ---

// It is what RegisterKvCache takes, and comes back.
::testing::AssertionResult Holds(const KvCacheTable& caches) {
  if (caches.size() > kMaxKvCaches) return ::testing::AssertionFailure() << "too many";
  for (const auto& [name, cache] : caches) {
    const KvLayout& layout = cache.layout;
    if (!CheckName("KV cache", name).ok()) return ::testing::AssertionFailure() << name;
    const absl::StatusOr<KvLayout> again = KvLayout::FromParts(
        layout.model(), layout.shard(), layout.blocks(), layout.block_tokens(), layout.parts());
    if (!again.ok()) return ::testing::AssertionFailure() << again.status().ToString();
    if (*again != layout) return ::testing::AssertionFailure() << "another layout";
    if (layout.model().element > KvElement::kFp32 ||
        cache.tensors.size() != layout.tensor_count()) {
      return ::testing::AssertionFailure() << "element or tensors";
    }
    for (size_t i = 0; i < cache.tensors.size(); ++i) {
      const uint64_t bytes = layout.tensor_bytes(static_cast<uint32_t>(i % layout.tensors()));
      if (bytes == 0 || cache.tensors[i] == 0 || cache.tensors[i] > UINT64_MAX - bytes) {
        return ::testing::AssertionFailure() << "tensor " << i;
      }
    }
  }
  proto::Metadata encoded;
  EncodeKvCaches(caches, encoded);
  const absl::StatusOr<KvCacheTable> again = DecodeKvCaches(encoded);
  if (!again.ok()) return ::testing::AssertionFailure() << again.status().ToString();
  if (*again != caches) return ::testing::AssertionFailure() << "does not come back";
  return ::testing::AssertionSuccess();
}

class AnyMetadataKv : public ::testing::Test {
 protected:
  AnyMetadataKv() {
    const KvModel two{.layers = 3, .heads = 4, .k_size = 8, .v_size = 8};
    const KvModel fused{.layers = 4, .heads = 1, .k_size = 16, .element = KvElement::kFp32};
    const KvCacheTable caches = {
        {"apart", Apart(2, 10)},
        {"two", Placed(LayoutOf(two, {.tp_rank = 1, .tp_size = 2, .layers = 3},
                                {{"L2BNHD", {3, 2, 5, 4, 2, 8}, {640, 320, 64, 16, 8, 1}}}))},
        {"fused", Placed(LayoutOf(fused, {.tp_size = 4, .first_layer = 1, .layers = 2},
                                  {{"BNC", {9, 4, 16}, {64, 16, 1}}}))}};
    EncodeKvCaches(caches, good_);
    EXPECT_OK(DecodeKvCaches(good_));
  }

  // Refused as it should be, or good; counts the latter.
  ::testing::AssertionResult Decodes(const proto::Metadata& metadata) {
    const absl::StatusOr<KvCacheTable> caches = DecodeKvCaches(metadata);
    if (!caches.ok()) return Fails(caches, kInvalid, {"metadata: "});
    ++taken_;
    return Holds(*caches);
  }

  proto::Metadata good_;
  std::mt19937_64 random_{TestSeed()};
  int taken_ = 0;
};

TEST_F(AnyMetadataKv, FieldsOfAnyNumbersAreRefusedOrGood) {
  const auto any = [&](uint64_t was) -> uint64_t {
    switch (random_() % 6) {
      case 0:
        return random_() >> random_() % 64;
      case 1:
        return random_() % 9;
      case 2:
        return uint64_t{1} << random_() % 64;
      case 3:
        return -(random_() % 9) - 1;
      case 4:
        return was * (1 + random_() % 4);
      default:
        return was + random_() % 33 - 16;
    }
  };
  const auto change = [&](proto::KvCache& cache) {
    proto::KvPart& part = *cache.mutable_parts(
        static_cast<int>(random_() % static_cast<uint64_t>(cache.parts_size())));
    const auto narrow = [&](uint32_t was) { return static_cast<uint32_t>(any(was)); };
    const auto which = static_cast<int>(random_() % static_cast<uint64_t>(cache.tensors_size()));
    switch (random_() % 23) {
      case 0:
        return cache.set_model_layers(narrow(cache.model_layers()));
      case 1:
        return cache.set_model_heads(narrow(cache.model_heads()));
      case 2:
        return cache.set_k_size(narrow(cache.k_size()));
      case 3:
        return cache.set_v_size(narrow(cache.v_size()));
      case 4:
        return cache.set_element(narrow(cache.element()));
      case 5:
        return cache.set_fingerprint(any(cache.fingerprint()));
      case 6:
        return cache.set_tp_rank(narrow(cache.tp_rank()));
      case 7:
        return cache.set_tp_size(narrow(cache.tp_size()));
      case 8:
        return cache.set_first_layer(narrow(cache.first_layer()));
      case 9:
        return cache.set_layers(narrow(cache.layers()));
      case 10:
        return cache.set_blocks(any(cache.blocks()));
      case 11:
        return cache.set_block_tokens(narrow(cache.block_tokens()));
      case 12:
        return part.set_tensor(narrow(part.tensor()));
      case 13:
        return part.set_offset(any(part.offset()));
      case 14:
        return part.set_layer_stride(any(part.layer_stride()));
      case 15:
        return part.set_block_stride(any(part.block_stride()));
      case 16:
        return part.set_token_stride(any(part.token_stride()));
      case 17:
        return part.set_head_stride(any(part.head_stride()));
      case 18:
        return part.set_bytes(any(part.bytes()));
      case 19:
        return cache.set_tensors(which, any(cache.tensors(which)));
      case 20:
        return cache.add_tensors(any(cache.tensors(which)));
      case 21:
        if (cache.tensors_size() > 1) cache.mutable_tensors()->RemoveLast();
        return;
      default:
        *cache.add_parts() = part;
    }
  };
  const int rounds = Scaled(30'000);
  for (int round = 0; round < rounds; ++round) {
    proto::Metadata metadata;
    proto::KvCache& cache = *metadata.add_kv_caches();
    cache = good_.kv_caches(static_cast<int>(random_() % 3));
    for (uint64_t changes = random_() % 3 + 1; changes > 0; --changes) change(cache);
    ASSERT_TRUE(Decodes(metadata)) << "round " << round;
  }
  EXPECT_GT(taken_, rounds / 20);
  EXPECT_LT(taken_, rounds - rounds / 20);
}

TEST_F(AnyMetadataKv, AnyBytesAreRefusedOrGood) {
  const std::string good = good_.SerializeAsString();
  const std::string rest = EncodeMetadata(Of({})).substr(kHeaderBytes);
  const int rounds = Scaled(20'000);
  for (int round = 0; round < rounds; ++round) {
    std::string bytes = good;
    for (uint64_t edits = random_() % 3 + 1; edits > 0 && !bytes.empty(); --edits) {
      const size_t at = random_() % bytes.size();
      switch (random_() % 8) {
        case 0:
          bytes.erase(at, random_() % 8);
          break;
        case 1:
          bytes.insert(at, bytes.substr(random_() % bytes.size(), random_() % 32));
          break;
        default:
          bytes[at] = static_cast<char>(bytes[at] ^ 1 << random_() % 8);
      }
    }
    ASSERT_TRUE(MetadataHolds(SealMetadata(rest + bytes))) << "round " << round;
    proto::Metadata metadata;
    if (metadata.ParseFromString(bytes)) {
      ASSERT_TRUE(Decodes(metadata)) << "round " << round;
    }
  }
  EXPECT_GT(taken_, rounds / 20);
}

}  // namespace
}  // namespace kvxfer::testing
