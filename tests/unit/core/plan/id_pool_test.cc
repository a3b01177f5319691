#include "src/core/plan/id_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace kvxfer {
namespace {

TEST(IdPool, ABufferComesBackForTransfersOfAboutItsSize) {
  IdPool pool;
  IdBuffer buffer = pool.Take(1000);
  ASSERT_GE(buffer.capacity, 1000u);
  const uint32_t* const address = buffer.ids.get();
  pool.Give(std::move(buffer));
  // Too small and far too large for it.
  EXPECT_NE(pool.Take(4000).ids.get(), address);
  EXPECT_NE(pool.Take(100).ids.get(), address);
  for (const size_t ids : {600u, 1024u, 513u, 300u}) {
    IdBuffer again = pool.Take(ids);
    EXPECT_EQ(again.ids.get(), address) << ids;
    pool.Give(std::move(again));
  }
}

TEST(IdPool, BuffersInUseAreNobodyElses) {
  IdPool pool;
  const IdBuffer a = pool.Take(1000);
  const IdBuffer b = pool.Take(1000);
  EXPECT_NE(a.ids.get(), b.ids.get());
}

TEST(IdPool, HoldsWhatWasAskedForAndNotMuchMore) {
  IdPool pool;
  for (size_t ids = 0; ids < 5000; ids = ids * 5 / 4 + 1) {
    IdBuffer buffer = pool.Take(ids);
    EXPECT_GE(buffer.capacity, ids);
    EXPECT_LE(buffer.capacity, std::max<size_t>(64, 4 * ids)) << ids;
    pool.Give(std::move(buffer));
  }
}

// Twice as much is given as may be kept: half of it is there afterwards.
TEST(IdPool, KeepsSoMuchAndNoMore) {
  constexpr size_t kIds = 64 * 1024;
  constexpr size_t kKept = IdPool::kMaxBytes / (kIds * sizeof(uint32_t));
  IdPool pool;
  std::vector<IdBuffer> out;
  for (size_t i = 0; i < 2 * kKept; ++i) out.push_back(pool.Take(kIds));
  std::vector<const uint32_t*> first;
  for (IdBuffer& buffer : out) {
    if (first.size() < kKept) first.push_back(buffer.ids.get());
    pool.Give(std::move(buffer));
  }
  std::vector<IdBuffer> again;
  size_t kept = 0;
  for (size_t i = 0; i < kKept; ++i) {
    again.push_back(pool.Take(kIds));
    kept += static_cast<size_t>(std::ranges::count(first, again.back().ids.get()));
  }
  EXPECT_EQ(kept, kKept);
}

TEST(IdPool, WhatIsTooLargeToKeepIsStillLent) {
  IdPool pool;
  IdBuffer huge = pool.Take(IdPool::kMaxBytes / sizeof(uint32_t) + 1);
  EXPECT_GT(huge.bytes(), IdPool::kMaxBytes);
  pool.Give(std::move(huge));
  pool.Give({});  // a list that never had ids
  EXPECT_GE(pool.Take(10).capacity, 10u);
}

// Buffers of a size that nobody asks for any more make room.
TEST(IdPool, AnotherSizeTakesThePlace) {
  constexpr size_t kSmall = 1024;
  IdPool pool;
  std::vector<IdBuffer> out;
  for (size_t i = 0; i < IdPool::kMaxBytes / (kSmall * sizeof(uint32_t)); ++i) {
    out.push_back(pool.Take(kSmall));
  }
  for (IdBuffer& buffer : out) pool.Give(std::move(buffer));
  IdBuffer large = pool.Take(256 * kSmall);
  const uint32_t* const address = large.ids.get();
  pool.Give(std::move(large));
  EXPECT_EQ(pool.Take(256 * kSmall).ids.get(), address);
}

}  // namespace
}  // namespace kvxfer
