// The content check of `kvxfer demo` finds every wrong byte.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "src/cli/common/kv_cache.h"
#include "src/cli/demo/shard.h"

namespace kvxfer::cli {
namespace {

constexpr uint64_t kTokens = 10;  // of blocks of 4: the last one is half full
constexpr uint64_t kBlockTokens = 4;

DemoConfig SmallConfig() {
  DemoConfig config;
  config.model = {.name = "small", .layers = 2, .kv_heads = 4, .head_size = 6};
  config.requests = 1;
  config.tokens = kTokens;
  config.block_tokens = kBlockTokens;
  return config;
}

struct Rank {
  DemoShard shard;
  KvCache cache;

  DemoContent content() const { return {cache, shard}; }
};

Rank MakeRank(uint64_t tp, size_t rank, const std::string& layout) {
  const auto shards = ShardsOf(SmallConfig(), {.name = "decode", .tp = tp, .layout = layout});
  EXPECT_TRUE(shards.ok()) << shards.status();
  Rank made{.shard = (*shards)[rank], .cache = {}};
  auto shape = CacheShapeOf(made.shard);
  EXPECT_TRUE(shape.ok()) << shape.status();
  shape->memory = MemorySource::kAttached;
  auto cache = KvCache::Create(*shape);
  EXPECT_TRUE(cache.ok()) << cache.status();
  made.cache = *std::move(cache);
  std::vector<uint32_t> all(made.cache.shape().blocks);
  std::iota(all.begin(), all.end(), 0u);
  EXPECT_TRUE(made.content().Clear(all).ok());
  return made;
}

class DemoContents : public ::testing::TestWithParam<const char*> {};

TEST_P(DemoContents, SeeEverySingleWrongByte) {
  const Rank rank = MakeRank(2, 1, GetParam());
  const DemoContent content = rank.content();
  const std::vector<uint32_t> ids = {5, 0, 3};
  const std::vector<uint32_t> others = {1, 2, 4, 6, 7};
  EXPECT_TRUE(content.CheckClear(ids).ok());
  EXPECT_TRUE(content.Fill(0, ids).ok());
  EXPECT_TRUE(content.Check(0, ids).ok());
  EXPECT_FALSE(content.Check(1, ids).ok());
  EXPECT_FALSE(content.CheckClear(ids).ok());
  for (uint32_t piece = 0; piece < rank.cache.shape().pieces; ++piece) {
    for (uint32_t id = 0; id < 8; ++id) {
      const bool of_request = std::ranges::find(ids, id) != ids.end();
      for (std::byte& byte : rank.cache.Block(piece, id)) {
        byte ^= std::byte{4};
        EXPECT_EQ(content.Check(0, ids).ok(), !of_request);
        EXPECT_EQ(content.CheckClear(others).ok(), of_request);
        byte ^= std::byte{4};
      }
    }
  }
  EXPECT_TRUE(content.Clear(ids).ok());
  EXPECT_TRUE(content.CheckClear(ids).ok());
  EXPECT_TRUE(rank.cache.CheckGuards().ok());
}

TEST_P(DemoContents, SeeBlocksThatChangedPlaces) {
  const Rank rank = MakeRank(1, 0, GetParam());
  const std::vector<uint32_t> ids = {5, 0, 3};
  EXPECT_TRUE(rank.content().Fill(0, ids).ok());
  EXPECT_FALSE(rank.content().Check(0, std::vector<uint32_t>{0, 5, 3}).ok());
}

INSTANTIATE_TEST_SUITE_P(Layouts, DemoContents, ::testing::Values("NHD", "HND"),
                         [](const auto& info) { return std::string(info.param); });

// All heads token by token, compared with the upper half of them head by head.
TEST(DemoContents, OfOneHeadAreTheSameOnEveryRank) {
  const Rank whole = MakeRank(1, 0, "NHD");
  const Rank half = MakeRank(2, 1, "HND");
  const std::vector<uint32_t> ids = {2, 0, 1};
  EXPECT_TRUE(whole.content().Fill(7, ids).ok());
  EXPECT_TRUE(half.content().Fill(7, ids).ok());
  const size_t width = half.shard.head_bytes();
  for (uint32_t piece = 0; piece < 4; ++piece) {
    for (size_t token = 0; token < kTokens; ++token) {
      const uint32_t id = ids[token / kBlockTokens];
      const size_t slot = token % kBlockTokens;
      for (size_t head = 0; head < 2; ++head) {
        const auto a = whole.cache.Block(piece, id).subspan((slot * 4 + 2 + head) * width, width);
        const auto b = half.cache.Block(piece, id).subspan((head * 4 + slot) * width, width);
        EXPECT_TRUE(std::ranges::equal(a, b)) << piece << " " << token << " " << head;
      }
    }
  }
}

}  // namespace
}  // namespace kvxfer::cli
