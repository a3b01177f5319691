// Parts of the demo and the benchmarks: content that identifies its place, block tables, guard
// zones, model geometries.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "src/cli/common/kv_cache.h"
#include "src/cli/common/kv_model.h"
#include "src/cli/demo/demo.h"

namespace kvxfer::cli {
namespace {

std::vector<std::byte> Filled(size_t bytes, uint64_t seed) {
  std::vector<std::byte> data(bytes);
  FillPattern(data, seed);
  return data;
}

TEST(Pattern, FindsEverySingleWrongByte) {
  for (size_t bytes : {0u, 1u, 7u, 8u, 127u, 128u, 129u, 300u, 4096u}) {
    std::vector<std::byte> data = Filled(bytes, 42);
    EXPECT_EQ(FindMismatch(data, 42), std::nullopt);
    for (size_t i = 0; i < bytes; ++i) {
      data[i] ^= std::byte{0x10};
      ASSERT_EQ(FindMismatch(data, 42), i) << "of " << bytes;
      data[i] ^= std::byte{0x10};
    }
  }
}

TEST(Pattern, IsTheSameAtAnyAlignmentAndLength) {
  const std::vector<std::byte> whole = Filled(1000, 7);
  std::vector<std::byte> shifted(1001);
  FillPattern(std::span(shifted).subspan(1), 7);
  EXPECT_TRUE(std::equal(whole.begin(), whole.end(), shifted.begin() + 1));
  const std::vector<std::byte> part = Filled(333, 7);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin()));
}

TEST(Pattern, DiffersFromItsNeighboursInEveryWord) {
  std::set<uint64_t> seeds;
  for (uint64_t request = 0; request < 4; ++request) {
    for (uint64_t piece = 0; piece < 4; ++piece) {
      for (uint64_t block = 0; block < 4; ++block) {
        seeds.insert(PatternSeed({1, request, piece, block}));
      }
    }
  }
  EXPECT_EQ(seeds.size(), 64u);
  // Expect a block that lies 8 bytes off to be wrong from its first word on.
  const std::vector<std::byte> data = Filled(4104, 9);
  EXPECT_EQ(FindMismatch(std::span(data).subspan(8), 9), 0u);
}

TEST(Permutation, HoldsEachIdOnceAndFollowsTheSeed) {
  std::vector<uint32_t> ids = Permutation(1000, 3);
  EXPECT_EQ(ids, Permutation(1000, 3));
  EXPECT_NE(ids, Permutation(1000, 4));
  EXPECT_LT(CountRuns(ids, ids), 1001u);
  EXPECT_GT(CountRuns(ids, ids), 980u);
  std::sort(ids.begin(), ids.end());
  for (uint32_t i = 0; i < 1000; ++i) ASSERT_EQ(ids[i], i);
}

TEST(CountRuns, JoinsWhatIsAdjacentOnBothSides) {
  using Ids = std::vector<uint32_t>;
  EXPECT_EQ(CountRuns(Ids{}, Ids{}), 0u);
  EXPECT_EQ(CountRuns(Ids{4, 5, 6}, Ids{1, 2, 3}), 1u);
  EXPECT_EQ(CountRuns(Ids{4, 5, 6}, Ids{1, 2, 9}), 2u);
  EXPECT_EQ(CountRuns(Ids{4, 6, 7}, Ids{1, 2, 3}), 2u);
  EXPECT_EQ(CountRuns(Ids{5, 4}, Ids{2, 1}), 2u);
}

TEST(BlockAllocator, NeverHandsABlockOutTwice) {
  BlockAllocator allocator(100, 5);
  std::vector<std::vector<uint32_t>> held;
  std::set<uint32_t> used;
  for (int step = 0; step < 1000; ++step) {
    if (auto blocks = allocator.Allocate(30)) {
      for (uint32_t block : *blocks) {
        ASSERT_LT(block, 100u);
        ASSERT_TRUE(used.insert(block).second) << block;
      }
      held.push_back(std::move(*blocks));
    } else {
      ASSERT_LT(allocator.available(), 30u);
      for (uint32_t block : held.front()) used.erase(block);
      allocator.Free(held.front());
      held.erase(held.begin());
    }
  }
  EXPECT_EQ(allocator.available(), 100 - used.size());
  EXPECT_FALSE(allocator.Allocate(allocator.available() + 1));
}

KvCacheShape SmallShape(uint64_t gap) {
  return {.pieces = 4, .block_bytes = 1000, .blocks = 8, .gap = gap};
}

TEST(KvCache, FindsEveryKindOfWrongContent) {
  for (uint64_t gap : {0u, 64u}) {
    const auto cache = KvCache::Create(SmallShape(gap));
    ASSERT_TRUE(cache.ok()) << cache.status();
    const std::vector<uint32_t> blocks = {5, 0, 7};
    EXPECT_TRUE(cache->FillRequest(3, blocks, 1).ok());
    EXPECT_TRUE(cache->CheckRequest(3, blocks, 1).ok());
    // Expect another request, seed or order of blocks not to pass for it.
    EXPECT_EQ(cache->CheckRequest(4, blocks, 1).code(), absl::StatusCode::kDataLoss);
    EXPECT_FALSE(cache->CheckRequest(3, blocks, 2).ok());
    EXPECT_FALSE(cache->CheckRequest(3, std::vector<uint32_t>{0, 5, 7}, 1).ok());
    cache->Block(2, 7).back() ^= std::byte{1};
    const absl::Status wrong = cache->CheckRequest(3, blocks, 1);
    EXPECT_NE(std::string(wrong.message()).find("region 2, block 7"), std::string::npos) << wrong;
    EXPECT_TRUE(cache->CheckGuards().ok());
  }
}

TEST(KvCache, SeesWritesBesideItsBlocks) {
  const auto cache = KvCache::Create(SmallShape(64));
  ASSERT_TRUE(cache.ok()) << cache.status();
  for (uint32_t block : {0u, 3u, 7u}) {
    const std::span<std::byte> bytes = cache->Block(1, block);
    for (std::byte* beside : {bytes.data() - 1, bytes.data() + bytes.size()}) {
      *beside ^= std::byte{1};
      EXPECT_EQ(cache->CheckGuards().code(), absl::StatusCode::kDataLoss) << block;
      *beside ^= std::byte{1};
    }
  }
  EXPECT_TRUE(cache->CheckGuards().ok());
}

TEST(KvModel, KnowsTheUsualBlockSizes) {
  struct Case {
    const char* name;
    uint32_t pieces;
    uint64_t block_bytes;  // 16 tokens, TP 1
    uint64_t tp8;
  };
  for (const Case& c :
       {Case{"llama-3.1-8b", 64, 32 << 10, 4 << 10}, Case{"llama-3.1-70b", 160, 32 << 10, 4 << 10},
        Case{"qwen3-235b-a22b", 188, 16 << 10, 4 << 10},
        Case{"gpt-oss-120b", 72, 16 << 10, 2 << 10}, Case{"deepseek-v3", 61, 18 << 10, 18 << 10}}) {
    const auto model = LoadKvModel(c.name);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ(model->pieces(), c.pieces) << c.name;
    EXPECT_EQ(16 * model->TokenBytes(1), c.block_bytes) << c.name;
    EXPECT_EQ(16 * model->TokenBytes(8), c.tp8) << c.name;
  }
  EXPECT_EQ(LoadKvModel("no-such-model").status().code(), absl::StatusCode::kNotFound);
}

TEST(KvModel, ReadsConfigs) {
  const auto gqa = ParseKvModel("gqa", R"({"num_hidden_layers": 2, "num_attention_heads": 32,
      "num_key_value_heads": 8, "hidden_size": 4096, "torch_dtype": "bfloat16"})");
  ASSERT_TRUE(gqa.ok()) << gqa.status();
  EXPECT_EQ(gqa->TokenBytes(1), 8u * 128 * 2);
  const auto mha = ParseKvModel("mha", R"({"num_hidden_layers": 2, "num_attention_heads": 6,
      "head_dim": 64, "dtype": "float32", "num_key_value_heads": null})");
  ASSERT_TRUE(mha.ok()) << mha.status();
  EXPECT_EQ(mha->TokenBytes(1), 6u * 64 * 4);
  const auto mla = ParseKvModel("mla", R"({"num_hidden_layers": 3, "kv_lora_rank": 512,
      "qk_rope_head_dim": 64})");
  ASSERT_TRUE(mla.ok()) << mla.status();
  EXPECT_TRUE(mla->fused);
  EXPECT_EQ(mla->TokenBytes(4), 576u * 2);
  const auto nested = ParseKvModel("nested", R"({"text_config": {"num_hidden_layers": 5,
      "num_attention_heads": 4, "head_dim": 8}})");
  ASSERT_TRUE(nested.ok()) << nested.status();
  EXPECT_EQ(nested->layers, 5u);
}

TEST(KvModel, NamesWhatIsWrongInAConfig) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"", "JSON"},
      {"[1]", "JSON"},
      {"{}", "num_hidden_layers"},
      {R"({"num_hidden_layers": 0, "num_attention_heads": 1, "head_dim": 1})", "num_hidden_layers"},
      {R"({"num_hidden_layers": -1})", "num_hidden_layers"},
      {R"({"num_hidden_layers": "32"})", "num_hidden_layers"},
      {R"({"num_hidden_layers": 99999999})", "num_hidden_layers"},
      {R"({"num_hidden_layers": 2})", "num_attention_heads"},
      {R"({"num_hidden_layers": 2, "num_attention_heads": 3, "hidden_size": 10})", "hidden_size"},
      {R"({"num_hidden_layers": 2, "kv_lora_rank": 512})", "qk_rope_head_dim"},
      {R"({"num_hidden_layers": 2, "torch_dtype": "complex"})", "torch_dtype"}};
  for (const auto& [text, field] : cases) {
    const auto model = ParseKvModel("bad.json", text);
    ASSERT_EQ(model.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_NE(std::string(model.status().message()).find(field), std::string::npos)
        << model.status();
  }
}

TEST(DemoConfig, BoundsTheCache) {
  DemoConfig config{.model = LoadKvModel("llama-3.1-8b").value()};
  config.gap = 0;
  const auto shape = DemoCacheShape(config);
  ASSERT_TRUE(shape.ok()) << shape.status();
  EXPECT_EQ(config.request_bytes(), uint64_t{256} << 20);
  EXPECT_EQ(shape->bytes(), config.cache_bytes);
  config.requests = 1;
  EXPECT_EQ(DemoCacheShape(config)->blocks, 128u);
  config.cache_bytes = uint64_t{255} << 20;
  EXPECT_EQ(DemoCacheShape(config).status().code(), absl::StatusCode::kInvalidArgument);
  for (uint64_t DemoConfig::*field :
       {&DemoConfig::requests, &DemoConfig::tokens, &DemoConfig::block_tokens, &DemoConfig::tp}) {
    DemoConfig bad{.model = config.model};
    bad.*field = 0;
    EXPECT_FALSE(DemoCacheShape(bad).ok());
    bad.*field = UINT64_MAX;
    EXPECT_FALSE(DemoCacheShape(bad).ok());
  }
}

TEST(DemoConfig, TravelsWhole) {
  DemoConfig config{.model = LoadKvModel("deepseek-v3").value()};
  config.backend = "faulty:tcp";
  config.tokens = 77;
  config.seed = UINT64_MAX;
  const auto back = DemoConfigFromJson(ToJson(config));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(ToJson(*back), ToJson(config));
  EXPECT_EQ(back->request_bytes(), config.request_bytes());
  EXPECT_FALSE(DemoConfigFromJson(Json::object()).ok());
}

TEST(DemoMessage, TravelsWholeAndRefusesGarbage) {
  const DemoMessage message{.kind = DemoMessage::Kind::kReleased,
                            .request = 70000,
                            .blocks = {1, 0xFFFFFFFF, 3},
                            .error = "wrong"};
  const std::string payload = message.Encode();
  const auto back = DemoMessage::Decode(payload);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->kind, message.kind);
  EXPECT_EQ(back->request, message.request);
  EXPECT_EQ(back->blocks, message.blocks);
  EXPECT_EQ(back->error, message.error);
  for (size_t cut = 0; cut < payload.size() - message.error.size(); ++cut) {
    EXPECT_FALSE(DemoMessage::Decode(payload.substr(0, cut)).ok()) << cut;
  }
  EXPECT_FALSE(DemoMessage::Decode(std::string(64, '\x7f')).ok());
}

}  // namespace
}  // namespace kvxfer::cli
