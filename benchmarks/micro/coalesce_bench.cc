// Coalescing: what a walk of slices makes of ids that lie side by side in runs of a given length,
// and what is left of the cost of a block.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "src/core/plan/block_list.h"
#include "src/core/plan/plan.h"
#include "src/core/plan/region_table.h"

namespace kvxfer {
namespace {

constexpr uint32_t kIds = 32768;
constexpr uint64_t kBlockBytes = 4096;
constexpr uint64_t kBase = uint64_t{1} << 40;

// All ids, in runs of `length` in random order.
std::vector<uint32_t> Runs(uint32_t length) {
  std::vector<uint32_t> starts;
  for (uint32_t id = 0; id < kIds; id += length) starts.push_back(id);
  std::shuffle(starts.begin(), starts.end(), std::mt19937(1));
  std::vector<uint32_t> ids;
  for (const uint32_t start : starts) {
    for (uint32_t i = 0; i < length; ++i) ids.push_back(start + i);
  }
  return ids;
}

// Argument: blocks of a run, the same runs on both sides.
void BM_Coalesce(benchmark::State& state) {
  const std::vector<PagedRegion> paged{{kBase, kBlockBytes, kBlockBytes, kIds}};
  const RegionTable table({{.id = RegionId{1},
                            .base = kBase,
                            .bytes = kIds * kBlockBytes,
                            .access = Access::kReadWrite}},
                          "benchmark");
  const std::vector<uint32_t> ids = Runs(static_cast<uint32_t>(state.range(0)));
  IdPool pool;
  const auto list =
      BlockList::FromPaged({paged, paged, ids, ids}, Direction::kWrite, table, table, pool);
  if (!list.ok()) return state.SkipWithError(std::string(list.status().message()).c_str());
  const std::vector<const Registration*> registrations(1);
  const std::vector<const RemoteKey*> keys(1);
  const SliceLimits limits{.max_bytes = 1 << 20, .max_pieces = 1024};
  const BlockView view = list->View(registrations, keys);
  uint64_t runs = 0;
  for (auto _ : state) {
    runs = 0;
    for (SliceCursor cursor(&view); !cursor.done();) {
      for (RunWalk walk(cursor.Next(limits)); !walk.done(); walk.Next()) {
        benchmark::DoNotOptimize(walk.run());
        ++runs;
      }
    }
  }
  state.SetItemsProcessed(state.iterations() * kIds);
  state.counters["runs"] = static_cast<double>(runs);
}
BENCHMARK(BM_Coalesce)->Arg(1)->Arg(8)->Arg(256)->Arg(kIds);

}  // namespace
}  // namespace kvxfer
