// Checking a transfer's blocks, cutting it into slices and walking their runs: what a Write costs
// before any byte moves. Paged: 64 regions (K and V of 32 layers) and scattered ids.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "src/core/plan/block_list.h"
#include "src/core/plan/plan.h"
#include "src/core/plan/region_table.h"

namespace kvxfer {
namespace {

constexpr uint64_t kBlockBytes = 32 << 10;
constexpr uint32_t kRegions = 64;
constexpr uint64_t kBase = uint64_t{1} << 40;

struct Case {
  explicit Case(uint32_t ids) {
    const uint64_t region_bytes = kBlockBytes * ids;
    std::vector<RegionView> views;
    for (uint32_t i = 0; i < kRegions; ++i) {
      const uint64_t base = kBase + i * (region_bytes + 4096);
      views.push_back({.id = RegionId{i + 1},
                       .base = base,
                       .bytes = region_bytes,
                       .access = Access::kReadWrite});
      paged.push_back(
          {.base = base, .block_bytes = kBlockBytes, .stride = kBlockBytes, .count = ids});
    }
    table = RegionTable(std::move(views), "benchmark");
    for (auto* list : {&local_ids, &remote_ids}) {
      list->resize(ids);
      std::iota(list->begin(), list->end(), 0u);
      std::shuffle(list->begin(), list->end(), random);
    }
    for (const PagedRegion& region : paged) {
      for (uint32_t id : local_ids) local.push_back({region.base + id * kBlockBytes, kBlockBytes});
      for (uint32_t id : remote_ids) {
        remote.push_back({region.base + id * kBlockBytes, kBlockBytes});
      }
    }
  }

  PagedBlocks paged_blocks() const {
    return {.local = paged, .remote = paged, .local_ids = local_ids, .remote_ids = remote_ids};
  }

  std::mt19937 random{1};
  RegionTable table;
  std::vector<PagedRegion> paged;
  std::vector<uint32_t> local_ids;
  std::vector<uint32_t> remote_ids;
  std::vector<Descriptor> local;
  std::vector<Descriptor> remote;
};

void CountBlocks(benchmark::State& state) {
  state.SetItemsProcessed(state.iterations() * state.range(0) * kRegions);
}

void BM_BlockListFromPaged(benchmark::State& state) {
  const Case c(static_cast<uint32_t>(state.range(0)));
  IdPool pool;
  for (auto _ : state) {
    auto list = BlockList::FromPaged(c.paged_blocks(), Direction::kWrite, c.table, c.table, pool);
    if (!list.ok()) return state.SkipWithError(std::string(list.status().message()).c_str());
    benchmark::DoNotOptimize(list);
    list->ReleaseIds(pool);
  }
  CountBlocks(state);
}
BENCHMARK(BM_BlockListFromPaged)->Arg(128)->Arg(1024);

void BM_BlockListFromDescriptors(benchmark::State& state) {
  const Case c(static_cast<uint32_t>(state.range(0)));
  const DescriptorBlocks blocks{.local = c.local, .remote = c.remote};
  for (auto _ : state) {
    auto list = BlockList::FromDescriptors(blocks, Direction::kWrite, c.table, c.table);
    if (!list.ok()) return state.SkipWithError(std::string(list.status().message()).c_str());
    benchmark::DoNotOptimize(list);
  }
  CountBlocks(state);
}
BENCHMARK(BM_BlockListFromDescriptors)->Arg(128)->Arg(1024);

// Cuts the paged blocks of a case into slices, again and again. visit(slice) returns the bytes that
// it found in the slice.
template <typename Visit>
void CutSlices(benchmark::State& state, Visit visit) {
  const Case c(static_cast<uint32_t>(state.range(0)));
  IdPool pool;
  const auto list =
      BlockList::FromPaged(c.paged_blocks(), Direction::kWrite, c.table, c.table, pool);
  if (!list.ok()) return state.SkipWithError(std::string(list.status().message()).c_str());
  const SliceLimits limits{.max_bytes = SliceBytes(list->total_bytes(), 2, 1 << 20),
                           .max_pieces = 1024};
  const std::vector<const Registration*> registrations(kRegions);
  const std::vector<const RemoteKey*> keys(kRegions);
  const BlockView view = list->View(registrations, keys);
  for (auto _ : state) {
    uint64_t bytes = 0;
    for (SliceCursor cursor(&view); !cursor.done();) bytes += visit(cursor.Next(limits));
    if (bytes != list->total_bytes()) return state.SkipWithError("bytes lost");
  }
  CountBlocks(state);
}

void BM_PlanWholeTransfer(benchmark::State& state) {
  CutSlices(state, [](const BlockRange& slice) {
    uint64_t bytes = 0;
    for (RunWalk walk(slice); !walk.done(); walk.Next()) bytes += walk.run().bytes;
    return bytes;
  });
}
BENCHMARK(BM_PlanWholeTransfer)->Arg(128)->Arg(1024);

// The agent's part of it alone: cutting, without the walk that the backend does.
void BM_CutWholeTransfer(benchmark::State& state) {
  CutSlices(state, [](const BlockRange& slice) { return slice.bytes; });
}
BENCHMARK(BM_CutWholeTransfer)->Arg(128)->Arg(1024);

}  // namespace
}  // namespace kvxfer
