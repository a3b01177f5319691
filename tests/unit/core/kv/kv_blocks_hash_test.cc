// Two agents of any versions must come to the same hash of a list of blocks.
#include "src/core/kv/kv_blocks_hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <set>
#include <span>
#include <vector>

namespace kvxfer::testing {
namespace {

// 7, 10, 13...
std::vector<uint32_t> Ids(size_t count) {
  std::vector<uint32_t> ids;
  for (size_t i = 0; i < count; ++i) ids.push_back(static_cast<uint32_t>(7 + 3 * i));
  return ids;
}

uint64_t Hash(const std::vector<uint32_t>& ids) { return HashLeased(0, ids); }
uint64_t Hash(const std::vector<uint32_t>& ids, uint64_t first_token, uint64_t tokens) {
  return HashBlocks(ids, first_token, tokens);
}

// From the specification (docs/wire-format.md), over bytes that were put together one by one.
TEST(KvBlocksHash, OfIdsIsWhatTheWireFormatSays) {
  EXPECT_EQ(Hash({}), 0x2d06800538d394c2u);
  EXPECT_EQ(Hash({0}), 0x48b2c92616fc193du);
  EXPECT_EQ(Hash({7}), 0x57ae44811628c14cu);
  EXPECT_EQ(Hash({UINT32_MAX}), 0xcd6b1c920d3f662cu);
  EXPECT_EQ(Hash(Ids(2)), 0x0a8adc71521cffdeu);
  // Lengths at which XXH3 goes another way.
  EXPECT_EQ(Hash(Ids(3)), 0xdfde21e5f9e70da5u);
  EXPECT_EQ(Hash(Ids(4)), 0x982827afb137fbe9u);
  EXPECT_EQ(Hash(Ids(5)), 0x0f1f162365de9addu);
  EXPECT_EQ(Hash(Ids(32)), 0xd9b8b0b4b17eb05fu);
  EXPECT_EQ(Hash(Ids(33)), 0xf6335ab9b8600e47u);
  EXPECT_EQ(Hash(Ids(60)), 0x15c9922fad57c700u);
  EXPECT_EQ(Hash(Ids(61)), 0x2be091b420aeb92fu);
  EXPECT_EQ(Hash(Ids(256)), 0xbe9bf6ac03017668u);
  EXPECT_EQ(Hash(Ids(1000)), 0x1d810f26cdc89c13u);
}

TEST(KvBlocksHash, OfIdsAndTokensIsWhatTheWireFormatSays) {
  EXPECT_EQ(Hash({}, 0, 0), 0x121ee5bbc72be4b8u);
  EXPECT_EQ(Hash({7}, 0, 0), 0x8c38f4099453b58fu);
  EXPECT_EQ(Hash({7}, 0, 16), 0xf5ca50f0bbc25e2bu);
  EXPECT_EQ(Hash(Ids(2), 0, 32), 0xc8e005680968016au);
  EXPECT_EQ(Hash(Ids(2), 5, 20), 0xccde2fb1b236854fu);
  EXPECT_EQ(Hash(Ids(2), 20, 5), 0x28e64253e7dbdfa8u);
  EXPECT_EQ(Hash(Ids(5), uint64_t{1} << 32, 1), 0xcc97ee7b96086756u);
  EXPECT_EQ(Hash(Ids(5), 0, UINT64_MAX), 0x5f6f6d8438555f86u);
  EXPECT_EQ(Hash(Ids(1000), 3, 15990), 0xa1c45d5bb73001b2u);
}

TEST(KvBlocksHash, OrderMatters) {
  EXPECT_EQ(Hash({10, 7}), 0xa23b930b319c0b29u);
  std::vector<uint32_t> ids = {1, 2, 3, 4, 5};
  std::set<uint64_t> seen;
  size_t orders = 0;
  do {
    seen.insert(Hash(ids));
    seen.insert(Hash(ids, 3, 70));
    ++orders;
  } while (std::ranges::next_permutation(ids).found);
  EXPECT_EQ(seen.size(), 2 * orders);
}

TEST(KvBlocksHash, EveryIdAndTheirNumberMatter) {
  std::set<uint64_t> seen = {Hash({})};
  for (size_t count = 1; count <= 100; ++count) {
    EXPECT_TRUE(seen.insert(Hash(std::vector<uint32_t>(count, 0))).second) << count << " zeros";
  }
  seen.clear();
  std::vector<uint32_t> ids = Ids(100);
  const uint64_t all = Hash(ids);
  for (uint32_t& id : ids) {
    for (uint32_t bit = 0; bit < 32; ++bit) {
      id ^= 1u << bit;
      EXPECT_TRUE(seen.insert(Hash(ids)).second);
      id ^= 1u << bit;
    }
  }
  EXPECT_FALSE(seen.contains(all));
  EXPECT_EQ(Hash(ids), all);
}

TEST(KvBlocksHash, TokensMatter) {
  const std::array<uint64_t, 6> values = {0, 1, 15, 16, uint64_t{1} << 32, UINT64_MAX};
  for (const std::vector<uint32_t>& ids : {std::vector<uint32_t>{}, Ids(1), Ids(64)}) {
    std::set<uint64_t> seen = {Hash(ids)};
    for (const uint64_t first : values) {
      for (const uint64_t tokens : values) {
        EXPECT_TRUE(seen.insert(Hash(ids, first, tokens)).second)
            << ids.size() << " ids, " << tokens << " tokens from " << first << " on";
      }
    }
  }
}

// What lies behind the ids, and where they lie, is nothing to it.
TEST(KvBlocksHash, TakesTheIdsAlone) {
  const std::vector<uint32_t> ids = Ids(100);
  for (size_t first = 0; first < 4; ++first) {
    std::vector<uint32_t> longer(first, 99);
    longer.insert(longer.end(), ids.begin(), ids.end());
    longer.push_back(98);
    EXPECT_EQ(HashLeased(0, std::span(longer).subspan(first, ids.size())), Hash(ids));
    EXPECT_EQ(HashBlocks(std::span(longer).subspan(first, ids.size()), 1, 2), Hash(ids, 1, 2));
  }
  EXPECT_EQ(HashLeased(0, std::span<const uint32_t>()), HashLeased(0, std::span(ids).first(0)));
}

}  // namespace
}  // namespace kvxfer::testing
