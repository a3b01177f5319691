// What the thread that posts a transfer allocates. Every operator new of this program is counted.

#include <gtest/gtest.h>

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

// By Agent::Write alone, in kTransfers transfers that follow some like them. The least of
// some rounds: the pieces of queues and the records that are not put away yet come and go.
absl::StatusOr<Allocations> OfWrite(const SendPathShape& shape) {
  constexpr int kRounds = 5;
  auto path = SendPath::Create(shape);
  if (!path.ok()) return path.status();
  Allocations least;
  for (int round = 0; round <= kRounds; ++round) {
    Allocations sum;
    for (int i = 0; i < kTransfers; ++i) {
      const Allocations before = AllocationsHere();
      auto transfer = (*path)->Submit(Unhurried());
      const Allocations after = AllocationsHere();
      if (!transfer.ok()) return transfer.status();
      sum.count += after.count - before.count;
      sum.bytes += after.bytes - before.bytes;
      if (auto end = transfer->Wait(kAmple); !end.ok()) return end;
    }
    // The first warms up.
    if (round == 1 || (round > 1 && sum.bytes < least.bytes)) least = sum;
  }
  return least;
}

// 4 bytes a transfer would be seen, be they for thousands of blocks: buffers are used again.
TEST(Write, AllocatesNothingThatGrowsWithItsBlocks) {
  SetLogLevel(LogLevel::kError);
  ASSERT_OK_AND_ASSIGN(const Allocations few, OfWrite({.ids = 64}));
  for (const uint32_t ids : {1024u, 32768u}) {
    ASSERT_OK_AND_ASSIGN(const Allocations many, OfWrite({.ids = ids}));
    EXPECT_LE(many.count, few.count + kTransfers / 2) << ids;
    EXPECT_LE(many.bytes, few.bytes + kTransfers * 4u) << ids;
  }
  RecordProperty("bytes_per_transfer", static_cast<int>(few.bytes / kTransfers));
  RecordProperty("allocations_per_transfer", static_cast<int>(few.count / kTransfers));
}

// A paged region costs what its description has, once a transfer, however many blocks it has.
TEST(Write, AllocatesForPagedRegionsNotForTheirBlocks) {
  SetLogLevel(LogLevel::kError);
  ASSERT_OK_AND_ASSIGN(const Allocations few, OfWrite({.ids = 8, .regions = 64}));
  ASSERT_OK_AND_ASSIGN(const Allocations many, OfWrite({.ids = 1024, .regions = 64}));
  EXPECT_LE(many.count, few.count + kTransfers / 2);
  EXPECT_LE(many.bytes, few.bytes + kTransfers * 4u);
  EXPECT_LE(few.bytes, kTransfers * 64u * 512);
}

}  // namespace
}  // namespace kvxfer::testing
