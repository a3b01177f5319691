// The target's work for one notified transfer: OPEN, its immediates, and the actions that follow.

#include <benchmark/benchmark.h>

#include <string>

#include "src/core/protocol/arrival_tracker.h"
#include "src/core/protocol/slot_table.h"

namespace kvxfer {
namespace {

// Arguments: lanes of a transfer, immediates of a lane.
void BM_NotifiedTransfer(benchmark::State& state) {
  const auto lanes = static_cast<uint32_t>(state.range(0));
  const auto arrivals = static_cast<uint32_t>(state.range(1));
  SlotTable table;
  const auto grant = table.Grant(1);
  if (!grant || grant->range.count < lanes) return state.SkipWithError("no slots");
  ArrivalTracker tracker(&table, 1);
  ArrivalTracker::Actions actions;
  uint32_t generation = grant->generation;
  uint64_t transfer = 0;
  for (auto _ : state) {
    ++transfer;
    OpenFrame open;
    open.transfer = transfer;
    open.order = transfer;
    open.notice = Notice::kNotification;
    open.notification = "request 7";
    for (uint32_t lane = 0; lane < lanes; ++lane) {
      const SlotRef ref{.slot = grant->range.first + lane, .generation = generation};
      open.lanes.push_back({.ref = ref, .arrivals = arrivals});
      for (uint32_t i = 0; i < arrivals; ++i) {
        if (!tracker.OnImmediate(ref).ok()) return state.SkipWithError("immediate refused");
      }
    }
    if (!tracker.OnOpen(std::move(open)).ok()) return state.SkipWithError("open refused");
    tracker.TakeActions(actions);
    if (actions.deliver.size() != 1) return state.SkipWithError("not delivered");
    generation = NextGeneration(generation);
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_NotifiedTransfer)->Args({1, 1})->Args({2, 1})->Args({4, 64});

}  // namespace
}  // namespace kvxfer
