// From pieces to the units of the copy kernel, and the ring that their lists lie in.
#include "src/cuda/copy_units.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <random>
#include <utility>
#include <vector>

#include "src/cuda/unit_ring.h"
#include "tests/support/scale.h"

namespace kvxfer::cuda {
namespace {

using kvxfer::testing::Scaled;
using kvxfer::testing::TestSeed;

constexpr uint64_t kUnit = 4096;

std::vector<CopyUnit> UnitsOf(const std::vector<Piece>& pieces, uint64_t unit_bytes = kUnit) {
  uint64_t bytes = 0;
  for (const Piece& piece : pieces) bytes += piece.bytes;
  const size_t most = MostUnits(pieces.size(), bytes, unit_bytes);
  const CopyUnit guard{.to = 1, .from = 2, .bytes = 3, .rows = 4, .to_stride = 5, .from_stride = 6};
  std::vector<CopyUnit> units(most + 1, guard);
  const size_t count = MakeUnits(pieces, unit_bytes, units.data());
  EXPECT_LE(count, most);
  EXPECT_EQ(std::memcmp(&units[most], &guard, sizeof(guard)), 0);
  units.resize(count);
  return units;
}

::testing::AssertionResult Is(const CopyUnit& unit, const CopyUnit& wanted) {
  if (unit.to == wanted.to && unit.from == wanted.from && unit.bytes == wanted.bytes &&
      unit.rows == wanted.rows &&
      (unit.rows == 1 ||
       (unit.to_stride == wanted.to_stride && unit.from_stride == wanted.from_stride))) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure()
         << unit.rows << " rows of " << unit.bytes << " from " << unit.from << " every "
         << unit.from_stride << " to " << unit.to << " every " << unit.to_stride;
}

TEST(CudaCopyUnitsTest, NothingGivesNothing) {
  EXPECT_TRUE(UnitsOf({}).empty());
  EXPECT_TRUE(UnitsOf({{.to = 10, .from = 20, .bytes = 0}}).empty());
}

TEST(CudaCopyUnitsTest, WhatAdjoinsOnBothSidesIsOnePiece) {
  const auto units = UnitsOf({{.to = 1000, .from = 5000, .bytes = 100},
                              {.to = 1100, .from = 5100, .bytes = 50},
                              {.to = 1150, .from = 5150, .bytes = 0},
                              {.to = 1150, .from = 5150, .bytes = 850},
                              {.to = 2000, .from = 9000, .bytes = 30}});  // on one side only
  ASSERT_EQ(units.size(), 2U);
  EXPECT_TRUE(Is(units[0], {.to = 1000, .from = 5000, .bytes = 1000}));
  EXPECT_TRUE(Is(units[1], {.to = 2000, .from = 9000, .bytes = 30}));
}

// Half of the heads of each token: what another tensor parallelism takes of a block.
TEST(CudaCopyUnitsTest, ShortPiecesAtConstantDistancesAreRowsOfOneUnit) {
  std::vector<Piece> pieces;
  for (uint64_t token = 0; token < 16; ++token) {
    pieces.push_back({.to = 1 << 20 | token * 256, .from = 2 << 20 | token * 512, .bytes = 128});
    pieces.push_back(
        {.to = (1 << 20 | token * 256) + 128, .from = (2 << 20 | token * 512) + 128, .bytes = 128});
  }
  // The target adjoins, the source does not; halves of a token do.
  const auto units = UnitsOf(pieces);
  ASSERT_EQ(units.size(), 1U);
  EXPECT_TRUE(Is(units[0], {.to = 1 << 20,
                            .from = 2 << 20,
                            .bytes = 256,
                            .rows = 16,
                            .to_stride = 256,
                            .from_stride = 512}));
}

TEST(CudaCopyUnitsTest, RowsMayGoBackwardsAndFillAUnitAtMost) {
  std::vector<Piece> pieces;
  for (uint64_t i = 0; i < 40; ++i) {
    pieces.push_back({.to = 100000 + i * 300, .from = 900000 - i * 1000, .bytes = 200});
  }
  const auto units = UnitsOf(pieces);  // 20 rows of 200 bytes are 4,000
  ASSERT_EQ(units.size(), 2U);
  EXPECT_TRUE(Is(units[0], {.to = 100000,
                            .from = 900000,
                            .bytes = 200,
                            .rows = 20,
                            .to_stride = 300,
                            .from_stride = -1000}));
  EXPECT_TRUE(Is(units[1], {.to = 106000,
                            .from = 880000,
                            .bytes = 200,
                            .rows = 20,
                            .to_stride = 300,
                            .from_stride = -1000}));
}

TEST(CudaCopyUnitsTest, RowsNeedOneLengthAndDistancesOf32Bits) {
  const uint64_t far = uint64_t{1} << 31;
  EXPECT_EQ(UnitsOf({{.to = 0x1000, .from = 0x9000, .bytes = 64},
                     {.to = 0x2000, .from = 0xa000, .bytes = 65}})
                .size(),
            2U);
  EXPECT_EQ(UnitsOf({{.to = 0x1000, .from = 0x9000, .bytes = 64},
                     {.to = 0x1000 + far, .from = 0xa000, .bytes = 64}})
                .size(),
            2U);
  EXPECT_EQ(UnitsOf({{.to = 0x1000, .from = 0x9000, .bytes = 64},
                     {.to = 0x1000 + far - 1, .from = 0xa000, .bytes = 64}})
                .size(),
            1U);
  // The third is no further row on one side.
  EXPECT_EQ(UnitsOf({{.to = 0x1000, .from = 0x9000, .bytes = 64},
                     {.to = 0x2000, .from = 0xa000, .bytes = 64},
                     {.to = 0x3000, .from = 0xb001, .bytes = 64}})
                .size(),
            2U);
}

TEST(CudaCopyUnitsTest, LongPiecesAreCut) {
  const auto units = UnitsOf({{.to = 7, .from = 1 << 20, .bytes = 2 * kUnit + 10}});
  ASSERT_EQ(units.size(), 3U);
  EXPECT_TRUE(Is(units[0], {.to = 7, .from = 1 << 20, .bytes = kUnit}));
  EXPECT_TRUE(Is(units[1], {.to = 7 + kUnit, .from = (1 << 20) + kUnit, .bytes = kUnit}));
  EXPECT_TRUE(Is(units[2], {.to = 7 + 2 * kUnit, .from = (1 << 20) + 2 * kUnit, .bytes = 10}));
}

// Random pieces, some of them at constant distances, give what memcpy of each gives.
TEST(CudaCopyUnitsTest, UnitsCopyWhatThePiecesSay) {
  std::mt19937_64 random(TestSeed());
  const auto below = [&](uint64_t end) { return random() % end; };
  for (int round = 0; round < Scaled(300); ++round) {
    std::vector<unsigned char> source(200000);
    for (unsigned char& byte : source) byte = static_cast<unsigned char>(random());
    std::vector<unsigned char> target(200000);
    std::vector<unsigned char> wanted(200000);
    std::vector<Piece> pieces;
    uint64_t to = below(64);
    uint64_t from = below(64);
    for (;;) {
      const uint64_t bytes = below(4) == 0 ? below(9000) : below(600);
      const uint64_t gap_to = below(3) * 16 + below(2) * below(20);
      const uint64_t gap_from = below(3) * 32;
      const uint64_t rows = 1 + below(3) * below(40);
      if (to + rows * (bytes + gap_to) > 200000 || from + rows * (bytes + gap_from) > 200000) break;
      for (uint64_t row = 0; row < rows; ++row) {
        pieces.push_back({.to = to, .from = from, .bytes = bytes});
        to += bytes + gap_to;
        from += bytes + gap_from;
      }
    }
    if (below(2) == 0) std::shuffle(pieces.begin(), pieces.end(), random);
    for (Piece& piece : pieces) {
      if (piece.bytes > 0) std::memcpy(&wanted[piece.to], &source[piece.from], piece.bytes);
      piece.to += reinterpret_cast<uint64_t>(target.data());
      piece.from += reinterpret_cast<uint64_t>(source.data());
    }
    const auto units = UnitsOf(pieces, kUnit * (1 + below(4)));
    CopyParams params;
    params.parts[0] = {.list = reinterpret_cast<uint64_t>(units.data()),
                       .units = static_cast<uint32_t>(units.size())};
    params.count = static_cast<uint32_t>(units.size());
    RunCopy(params, DirectMemory());
    ASSERT_TRUE(target == wanted) << "round " << round;
    // And so do they joined.
    std::fill(target.begin(), target.end(), 0);
    std::vector<Piece> joined;
    JoinPieces(pieces, joined);
    EXPECT_LE(joined.size(), pieces.size());
    for (const Piece& piece : joined) {
      ASSERT_GT(piece.bytes, 0U);
      std::memcpy(reinterpret_cast<void*>(piece.to), reinterpret_cast<void*>(piece.from),
                  piece.bytes);
    }
    ASSERT_TRUE(target == wanted) << "round " << round;
  }
}

// Each unit that the GPU computes of paged blocks: those of the pieces, no longer than a unit may
// be.
TEST(CudaCopyUnitsTest, PagedBlocksAreTheUnitsOfTheirPieces) {
  std::mt19937_64 random(TestSeed());
  const auto below = [&](uint64_t end) { return random() % end; };
  for (int round = 0; round < Scaled(3000); ++round) {
    BlockPieces pieces{.bytes = below(2) == 0 ? 1 + below(300) : 1 + below(20000)};
    pieces.dim_count = 1 + static_cast<uint32_t>(below(BlockPieces::kMaxDims));
    for (BlockPieces::Dim& dim : pieces.dims) {
      dim = {.count = 1 + below(5),
             .local_stride = below(8) == 0 ? uint64_t{5} << 32 : below(1 << 20),
             .remote_stride = below(1 << 20)};
    }
    std::vector<uint32_t> ids(2 * (1 + below(5)));
    for (uint32_t& id : ids) id = static_cast<uint32_t>(random());
    const bool whole = below(3) == 0;
    const PagedCopy copy{.to = {below(1 << 30), below(1 << 24), ids.data()},
                         .from = {below(1 << 30), below(1 << 24), ids.data() + ids.size() / 2},
                         .count = static_cast<uint32_t>(ids.size() / 2),
                         .bytes = pieces.bytes,
                         .pieces = whole ? nullptr : &pieces,
                         .to_local = below(2) == 0};
    const uint64_t unit_bytes = kUnit * (1 + below(4));
    CopyParams params;
    params.parts[0] = {.list = 1, .units = 7};  // another part before it
    params.parts[1] = MakePart(copy, unit_bytes);
    params.parts[1].to_ids = reinterpret_cast<uint64_t>(copy.to.ids);
    params.parts[1].from_ids = reinterpret_cast<uint64_t>(copy.from.ids);
    params.parts[1].grid = 5;
    if (!whole) params.grids[5] = MakeGrid(pieces, copy.to_local);
    std::vector<Piece> wanted;
    AddPieces(copy, wanted);
    ASSERT_EQ(wanted.size(), copy.count * (whole ? 1 : pieces.count()));
    size_t at = 0;
    uint64_t done = 0;
    for (uint32_t i = 0; i < params.parts[1].units; ++i) {
      const CopyUnit unit = UnitAt(params, 7 + i, DirectMemory());
      ASSERT_LE(unit.bytes * uint64_t{unit.rows}, unit_bytes);
      for (uint32_t row = 0; row < unit.rows; ++row) {
        ASSERT_LT(at, wanted.size());
        ASSERT_EQ(RowAt(unit.to, unit.to_stride, row), wanted[at].to + done) << i;
        ASSERT_EQ(RowAt(unit.from, unit.from_stride, row), wanted[at].from + done) << i;
        ASSERT_LE(unit.bytes, wanted[at].bytes - done);
        done += unit.bytes;
        if (done == wanted[at].bytes) {
          ++at;
          done = 0;
        }
      }
    }
    ASSERT_EQ(at, wanted.size());
  }
}

// Where the blocks' addresses are, in numbers: two blocks of two heads of three tokens.
TEST(CudaCopyUnitsTest, AGridOfPiecesInNumbers) {
  const BlockPieces pieces{.bytes = 64,
                           .dims = {{{.count = 2, .local_stride = 1000, .remote_stride = 192},
                                     {.count = 3, .local_stride = 128, .remote_stride = 64}}},
                           .dim_count = 2};
  const uint32_t ids[] = {5, 2, 7, 1};
  const PagedCopy copy{.to = {100000, 4096, ids},
                       .from = {900000, 8192, ids + 2},
                       .count = 2,
                       .bytes = 64,
                       .pieces = &pieces};
  CopyParams params;
  params.parts[0] = MakePart(copy, kUnit);
  params.parts[0].to_ids = reinterpret_cast<uint64_t>(ids);
  params.parts[0].from_ids = reinterpret_cast<uint64_t>(ids + 2);
  params.grids[0] = MakeGrid(pieces, false);
  ASSERT_EQ(params.parts[0].units, 4U);
  EXPECT_TRUE(Is(UnitAt(params, 3, DirectMemory()), {.to = 100000 + 2 * 4096 + 192,
                                                     .from = 900000 + 8192 + 1000,
                                                     .bytes = 64,
                                                     .rows = 3,
                                                     .to_stride = 64,
                                                     .from_stride = 128}));
  std::vector<Piece> out;
  AddPieces(copy, out);
  ASSERT_EQ(out.size(), 12U);
  EXPECT_EQ(out[4].to, 100000U + 5 * 4096 + 192 + 64);
  EXPECT_EQ(out[4].from, 900000U + 7 * 8192 + 1000 + 128);
}

// The sizes that are to be fast on an H100: 132 multiprocessors, 6 busy warps each.
TEST(CudaCopyUnitsTest, ABatchKeepsAllOfAGpuBusyAndFewOfItForTheHost) {
  const uint64_t mib = 1 << 20;
  const CopyShape blocks = ShapeOf(64 * mib, Reach::kOwn, 132);
  const size_t units = 64 * mib / blocks.unit_bytes;
  EXPECT_GE(units, 792U);
  EXPECT_GE(blocks.Blocks(units, blocks.PerGroup(units)), 99U);
  EXPECT_EQ(blocks.PerGroup(4096), 4U);
  EXPECT_EQ(blocks.Blocks(4096, 4), 128U);
  EXPECT_EQ(ShapeOf(mib, Reach::kOwn, 132).unit_bytes, 4096U);
  EXPECT_EQ(ShapeOf(mib, Reach::kOwn, 132).PerGroup(256), 1U);
  EXPECT_EQ(ShapeOf(mib, Reach::kOwn, 132).Blocks(256, 1), 32U);
  EXPECT_EQ(ShapeOf(mib, Reach::kOwn, 132).Blocks(1, 1), 1U);
  const CopyShape host = ShapeOf(64 * mib, Reach::kHost, 132);
  EXPECT_EQ(host.Blocks(100000, host.PerGroup(100000)), 16U);
  EXPECT_EQ(host.Blocks(8, host.PerGroup(8)), 1U);
  const CopyShape peer = ShapeOf(64 * mib, Reach::kPeer, 132);
  EXPECT_EQ(peer.Blocks(100000, peer.PerGroup(100000)), 48U);
  // Few multiprocessors, because the others compute.
  const CopyShape few = ShapeOf(64 * mib, Reach::kOwn, 132, 8);
  EXPECT_EQ(few.Blocks(100000, few.PerGroup(100000)), 8U);
  EXPECT_EQ(ShapeOf(64 * mib, Reach::kHost, 132, 132).Blocks(100000, 4), 16U);
  // A driver that tells no number.
  EXPECT_GE(ShapeOf(mib, Reach::kOwn, 0).Blocks(100, 1), 1U);
}

TEST(CudaCopyUnitsTest, NoListIsLongerThanItMayBe) {
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 27, (uint64_t{1} << 27) + 1,
                               uint64_t{80} << 30, uint64_t{1} << 40}) {
    const CopyShape shape = ShapeOf(bytes, Reach::kOwn, 132);
    EXPECT_EQ(shape.unit_bytes % 4096, 0U);
    EXPECT_LE(MostUnits(Copier::kMaxPieces, bytes, shape.unit_bytes), kMostUnits) << bytes;
  }
}

// Stretches of random lengths never overlap those that are still taken, and none is refused for
// which there is room however the ring lies.
TEST(CudaUnitRingTest, StretchesAreApartAndAnEmptyRingTakesAll) {
  std::mt19937_64 random(TestSeed());
  UnitRing ring(1024);
  std::deque<std::pair<size_t, size_t>> taken;  // begin, end
  size_t refused = 0;
  for (int step = 0; step < Scaled(100000); ++step) {
    if (random() % 3 == 0 && !taken.empty()) {
      ring.Release();
      taken.pop_front();
      continue;
    }
    const size_t most = random() % 300;
    const auto at = ring.Find(most);
    if (!at.has_value()) {
      ++refused;
      ASSERT_FALSE(taken.empty()) << most;
      continue;
    }
    ASSERT_EQ(*at % UnitRing::kAlign, 0U);
    ASSERT_LE(*at + most, ring.size());
    const size_t used = most == 0 ? 0 : random() % (most + 1);
    for (const auto& [begin, end] : taken) {
      ASSERT_TRUE(*at + most <= begin || *at >= end) << *at << " for " << most;
    }
    ring.Take(used);
    taken.emplace_back(*at, *at + used);
  }
  EXPECT_GT(refused, 0U);
  while (!taken.empty()) {
    ring.Release();
    taken.pop_front();
  }
  EXPECT_EQ(ring.Find(ring.size()), 0U);
  EXPECT_EQ(ring.Find(ring.size() + 1), std::nullopt);
}

}  // namespace
}  // namespace kvxfer::cuda
