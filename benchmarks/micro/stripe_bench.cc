// Striping: one large block cut into slices over rails, each booked on its lane, the lanes closed.

#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "src/core/plan/block_list.h"
#include "src/core/plan/plan.h"
#include "src/core/plan/region_table.h"
#include "src/core/protocol/lane_book.h"

namespace kvxfer {
namespace {

constexpr uint64_t kBytes = uint64_t{1} << 30;
constexpr uint64_t kBase = uint64_t{1} << 40;

// Argument: rails. Items are slices of 1 MiB.
void BM_Stripe(benchmark::State& state) {
  const auto rails = static_cast<uint32_t>(state.range(0));
  const std::vector<Descriptor> block{{kBase, kBytes}};
  const RegionTable table(
      {{.id = RegionId{1}, .base = kBase, .bytes = kBytes, .access = Access::kReadWrite}},
      "benchmark");
  const auto list = BlockList::FromDescriptors({block, block}, Direction::kWrite, table, table);
  if (!list.ok()) return state.SkipWithError(std::string(list.status().message()).c_str());
  const BlockView view = list->View({}, {});
  const SliceLimits limits{.max_bytes = SliceBytes(kBytes, rails, 1 << 20), .max_pieces = 1024};
  int64_t slices = 0;
  for (auto _ : state) {
    LaneBook book(rails, /*rail_keeps_order=*/true);
    uint32_t rail = 0;
    for (SliceCursor cursor(&view); !cursor.done(); rail = (rail + 1) % rails, ++slices) {
      benchmark::DoNotOptimize(cursor.Next(limits));
      if (book.NeedsSlot(rail)) book.OpenLane(rail, {.slot = rail, .generation = 1});
      benchmark::DoNotOptimize(book.ImmediateFor(rail, cursor.done()));
      book.OnPosted(rail, cursor.done());
    }
    while (const auto open = book.NextToClose()) book.OnPosted(*open, true);
    if (book.Lanes().size() != rails) return state.SkipWithError("a rail without a lane");
  }
  state.SetItemsProcessed(slices);
}
BENCHMARK(BM_Stripe)->Arg(1)->Arg(2)->Arg(16);

}  // namespace
}  // namespace kvxfer
