// The copy kernel's own source (kernels.cuh), run by a CPU, against memcpy row by row: every width
// of word, any alignment, rows of any distance.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "src/cuda/kernels.cuh"
#include "tests/support/scale.h"

namespace kvxfer::cuda {
namespace {

using kvxfer::testing::Scaled;
using kvxfer::testing::TestSeed;

using Bytes = std::vector<unsigned char>;

Bytes Random(size_t count, std::mt19937_64& random) {
  Bytes bytes(count);
  for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
  return bytes;
}

uint64_t At(const Bytes& bytes, size_t offset) {
  return reinterpret_cast<uint64_t>(bytes.data()) + offset;
}

void Oracle(const CopyUnit& unit) {
  for (uint32_t row = 0; row < unit.rows; ++row) {
    std::memcpy(reinterpret_cast<void*>(RowAt(unit.to, unit.to_stride, row)),
                reinterpret_cast<const void*>(RowAt(unit.from, unit.from_stride, row)), unit.bytes);
  }
}

// A launch of one list.
CopyParams ListOf(uint64_t at, uint32_t count) {
  CopyParams params;
  params.parts[0] = {.list = at, .units = count};
  params.count = count;
  return params;
}

// Runs `unit`, whose `to` is an offset into `target`, and compares all of the target with memcpy's.
void ExpectCopies(CopyUnit unit, const Bytes& before) {
  // Written by their addresses.
  Bytes wanted(before.begin(), before.end());
  Bytes target(before.begin(), before.end());
  const uint64_t offset = unit.to;
  unit.to = At(wanted, offset);
  Oracle(unit);
  unit.to = At(target, offset);
  alignas(16) const CopyUnit list[] = {unit};
  RunCopy(ListOf(reinterpret_cast<uint64_t>(list), 1), DirectMemory());
  ASSERT_TRUE(wanted == target) << unit.rows << " rows of " << unit.bytes << " bytes, from "
                                << unit.from % 16 << " every " << unit.from_stride << " to "
                                << unit.to % 16 << " every " << unit.to_stride;
}

// Each pair of alignments, with lengths around each border: a word, a step of a warp, two.
TEST(CudaKernelBodyTest, CopiesOneRowOfAnyLengthAtAnyAlignment) {
  std::mt19937_64 random(TestSeed());
  const Bytes source = Random(20000, random);
  const Bytes before = Random(20000, random);
  const uint32_t lengths[] = {1,    2,    3,   4,   7,    8,    15,   16,   17,   31,
                              33,   127,  511, 512, 513,  1000, 2048, 4095, 4096, 4097,
                              4111, 4112, 600, 601, 8191, 8192, 8200, 9001, 12288};
  for (uint32_t to = 0; to < 16; ++to) {
    for (uint32_t from = 0; from < 16; ++from) {
      for (const uint32_t bytes : lengths) {
        ExpectCopies({.to = 64 + to,
                      .from = At(source, 64 + from),
                      .bytes = bytes,
                      .rows = 1,
                      .to_stride = -3,  // of no meaning here
                      .from_stride = 5},
                     before);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(CudaKernelBodyTest, CopiesRowsOfAnyLengthAndDistance) {
  std::mt19937_64 random(TestSeed());
  const Bytes source = Random(1 << 16, random);
  const Bytes before = Random(1 << 16, random);
  const auto below = [&](uint64_t end) { return static_cast<uint32_t>(random() % end); };
  for (int round = 0; round < Scaled(4000); ++round) {
    const uint32_t width = 1U << below(5);
    CopyUnit unit{.to = 0,
                  .from = 0,
                  .bytes = (1 + below(3000 / width)) * width,
                  .rows = 1 + below(40),
                  .to_stride = 0,
                  .from_stride = 0};
    const auto place = [&](uint32_t rows, int32_t& stride) {
      // Forwards or backwards, with a gap or none, within the memory.
      const uint32_t space = (1 << 16) / rows;
      const uint32_t gap = space > unit.bytes ? below((space - unit.bytes) / width + 1) * width : 0;
      stride = static_cast<int32_t>(unit.bytes + gap);
      const uint64_t length = uint64_t{rows - 1} * (unit.bytes + gap) + unit.bytes;
      uint64_t first = below((1 << 16) - length + 1) / width * width;
      if (below(2) == 1) {
        first += uint64_t{rows - 1} * (unit.bytes + gap);
        stride = -stride;
      }
      return first;
    };
    unit.rows = std::min(unit.rows, (1U << 16) / unit.bytes);
    unit.to = place(unit.rows, unit.to_stride);
    unit.from = At(source, place(unit.rows, unit.from_stride));
    ExpectCopies(unit, before);
    if (HasFatalFailure()) return;
  }
}

// Each lane stores its own bytes, and no two the same: on a GPU they run in any order.
TEST(CudaKernelBodyTest, LanesShareAUnitWithoutOverlap) {
  std::mt19937_64 random(TestSeed());
  const Bytes source = Random(1 << 15, random);
  const CopyUnit shapes[] = {
      {.to = 3, .from = 19, .bytes = 9001},
      {.to = 16, .from = 32, .bytes = 16384},
      {.to = 16, .from = 32, .bytes = 272, .rows = 33, .to_stride = 288, .from_stride = 512},
      {.to = 5, .from = 2, .bytes = 77, .rows = 33, .to_stride = 79, .from_stride = 211},
  };
  for (const CopyUnit& shape : shapes) {
    CopyUnit unit = shape;
    unit.from = At(source, shape.from);
    std::vector<int> stores(1 << 15);
    for (uint32_t lane = 0; lane < kWarp; ++lane) {
      // A byte that differs from the target's says that it was stored.
      Bytes target(1 << 15);
      Bytes inverse(1 << 15, 0xff);
      unit.from = At(inverse, shape.from);
      unit.to = At(target, shape.to);
      RunUnit(unit, lane, DirectMemory());
      for (size_t i = 0; i < target.size(); ++i) stores[i] += target[i] != 0 ? 1 : 0;
    }
    std::vector<int> wanted(1 << 15);
    for (uint32_t row = 0; row < shape.rows; ++row) {
      for (uint32_t i = 0; i < shape.bytes; ++i) {
        wanted[RowAt(shape.to, shape.to_stride, row) + i] = 1;
      }
    }
    EXPECT_TRUE(stores == wanted) << shape.rows << " rows of " << shape.bytes;
  }
}

// Memory that is somewhere else than its addresses say, and some of it nowhere.
struct MovedMemory {
  static constexpr bool kMayRefuse = true;
  unsigned char* Map(uint64_t address, uint64_t bytes) const {
    if (address < kBase || address + bytes > kBase + size) return nullptr;
    return data + (address - kBase);
  }
  static constexpr uint64_t kBase = uint64_t{1} << 50;
  unsigned char* data;
  uint64_t size;
};

TEST(CudaKernelBodyTest, AddressesAreTranslatedAndWhatIsRefusedIsLeftAlone) {
  std::mt19937_64 random(TestSeed());
  alignas(64) static unsigned char memory[1 << 14];
  const Bytes before = Random(sizeof(memory), random);
  std::memcpy(memory, before.data(), sizeof(memory));
  const MovedMemory moved{.data = memory, .size = sizeof(memory)};
  const auto at = [](uint64_t offset) { return MovedMemory::kBase + offset; };
  const CopyUnit units[] = {
      {.to = at(4096), .from = at(8192), .bytes = 3000},
      // The second row is beyond the end.
      {.to = at(0),
       .from = at(16000),
       .bytes = 256,
       .rows = 2,
       .to_stride = 512,
       .from_stride = 256},
      {.to = at(1 << 20), .from = at(0), .bytes = 64},
  };
  std::memcpy(memory + 12288, units, sizeof(units));  // the list too
  Bytes wanted(memory, memory + sizeof(memory));
  std::memcpy(wanted.data() + 4096, wanted.data() + 8192, 3000);
  std::memcpy(wanted.data(), wanted.data() + 16000, 256);
  RunCopy(ListOf(at(12288), 3), moved);
  // Of a refused source nothing is known: whatever was stored went to its own row.
  std::memcpy(wanted.data() + 512, memory + 512, 256);
  EXPECT_TRUE(wanted == Bytes(memory, memory + sizeof(memory)));
  RunCopy(ListOf(16, 3), moved);
  EXPECT_TRUE(wanted == Bytes(memory, memory + sizeof(memory)));
}

}  // namespace
}  // namespace kvxfer::cuda
