#include "src/core/protocol/id_set.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <set>

#include "tests/support/scale.h"

namespace kvxfer {
namespace {

TEST(IdSet, AgreesWithAPlainSet) {
  std::mt19937_64 random(testing::TestSeed());
  for (int round = 0; round < 200; ++round) {
    IdSet ids;
    std::set<uint32_t> plain;
    for (int step = 0; step < 40; ++step) {
      const auto first = static_cast<uint32_t>(random() % 64);
      const auto last = static_cast<uint32_t>(first + random() % 8);
      bool any = false;
      for (uint32_t id = first; id <= last; ++id) any |= plain.contains(id);
      EXPECT_EQ(ids.Intersects(first, last), any);
      ids.Add(first, last);
      for (uint32_t id = first; id <= last; ++id) plain.insert(id);
      size_t runs = 0;
      for (uint32_t id = 0; id < 80; ++id) {
        ASSERT_EQ(ids.Contains(id), plain.contains(id)) << id;
        if (plain.contains(id) && !plain.contains(id - 1)) ++runs;
      }
      ASSERT_EQ(ids.runs(), runs);
    }
  }
}

TEST(IdSet, TheHighestIdHasNoneAfterIt) {
  constexpr uint32_t kMax = std::numeric_limits<uint32_t>::max();
  IdSet ids;
  ids.Add(kMax);
  ids.Add(0);
  EXPECT_TRUE(ids.Contains(kMax));
  EXPECT_TRUE(ids.Contains(0));
  EXPECT_EQ(ids.runs(), 2u);
  ids.Add(1, kMax);
  EXPECT_EQ(ids.runs(), 1u);
}

}  // namespace
}  // namespace kvxfer
