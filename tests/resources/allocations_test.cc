// What the thread that posts a transfer allocates. Every operator new of this program is counted.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "kvxfer/log.h"
#include "tests/resources/counted_allocations.h"
#include "tests/support/agents.h"
#include "tests/support/scale.h"
#include "tests/support/send_path.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

constexpr int kTransfers = 100;

TEST(CountedAllocations, AreSeen) {
  const Allocations before = AllocationsHere();
  const auto ids = std::make_unique<std::vector<uint32_t>>(1000);
  EXPECT_EQ(AllocationsHere().count - before.count, 2u);
  EXPECT_GE(AllocationsHere().bytes - before.bytes, 4000u);
  EXPECT_EQ(ids->size(), 1000u);
}

uint64_t Median(std::vector<uint64_t>& of) {
  const auto middle = of.begin() + static_cast<ptrdiff_t>(of.size() / 2);
  std::ranges::nth_element(of, middle);
  return *middle;
}

struct Cost {
  Allocations median;  // of one transfer
  Allocations all;
};

// Of Agent::Write alone, in kTransfers transfers that follow some like them.
absl::StatusOr<Cost> OfWrite(const SendPathShape& shape) {
  auto path = SendPath::Create(shape);
  if (!path.ok()) return path.status();
  Cost cost;
  std::vector<uint64_t> counts;
  std::vector<uint64_t> bytes;
  for (int i = -kTransfers; i < kTransfers; ++i) {
    const Allocations before = AllocationsHere();
    auto transfer = (*path)->Submit(Unhurried());
    const Allocations after = AllocationsHere();
    if (!transfer.ok()) return transfer.status();
    if (i >= 0) {
      counts.push_back(after.count - before.count);
      bytes.push_back(after.bytes - before.bytes);
      cost.all.count += counts.back();
      cost.all.bytes += bytes.back();
    }
    if (auto end = transfer->Wait(kAmple); !end.ok()) return end;
  }
  cost.median = {.count = Median(counts), .bytes = Median(bytes)};
  return cost;
}

// Queues begin a new piece now and then, and a transfer that meets the engine at work goes through
// one more of them; neither has to do with blocks.
void ExpectNoMore(const Cost& many, const Cost& few) {
  EXPECT_EQ(many.median.count, few.median.count);
  EXPECT_EQ(many.median.bytes, few.median.bytes);
  EXPECT_LE(many.all.count, few.all.count + kTransfers / 2);
  EXPECT_LE(many.all.bytes, few.all.bytes + kTransfers * 64u);
}

// Be they for thousands of blocks: buffers are used again.
TEST(Write, AllocatesNothingThatGrowsWithItsBlocks) {
  SetLogLevel(LogLevel::kError);
  ASSERT_OK_AND_ASSIGN(const Cost few, OfWrite({.ids = 64}));
  for (const uint32_t ids : {1024u, 32768u}) {
    SCOPED_TRACE(ids);
    ASSERT_OK_AND_ASSIGN(const Cost many, OfWrite({.ids = ids}));
    ExpectNoMore(many, few);
  }
  RecordProperty("bytes_per_transfer", static_cast<int>(few.median.bytes));
  RecordProperty("allocations_per_transfer", static_cast<int>(few.median.count));
}

// A paged region costs what its description has, once a transfer, however many blocks it has.
TEST(Write, AllocatesForPagedRegionsNotForTheirBlocks) {
  SetLogLevel(LogLevel::kError);
  ASSERT_OK_AND_ASSIGN(const Cost few, OfWrite({.ids = 8, .regions = 64}));
  ASSERT_OK_AND_ASSIGN(const Cost many, OfWrite({.ids = 1024, .regions = 64}));
  ExpectNoMore(many, few);
  EXPECT_LE(few.all.bytes, kTransfers * 64u * 512);
}

}  // namespace
}  // namespace kvxfer::testing
