// A whole transfer by block ids over the null backend: what the application's thread pays in
// Write, and the way to the end.

#include <benchmark/benchmark.h>

#include <memory>
#include <string>

#include "tests/support/send_path.h"

namespace kvxfer::testing {
namespace {

std::unique_ptr<SendPath> MakePath(benchmark::State& state) {
  auto path = SendPath::Create({.ids = static_cast<uint32_t>(state.range(0)),
                                .regions = static_cast<uint32_t>(state.range(1))});
  if (path.ok()) return *std::move(path);
  state.SkipWithError(std::string(path.status().message()).c_str());
  return nullptr;
}

// "items" are runs: no two of the blocks are adjacent.
void CountRuns(benchmark::State& state, const SendPath& path) {
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(path.runs()));
  state.counters["s_per_run"] = benchmark::Counter(
      static_cast<double>(path.runs()),
      benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

void BM_Submit(benchmark::State& state) {
  const auto path = MakePath(state);
  if (path == nullptr) return;
  for (auto _ : state) {
    auto transfer = path->Submit();
    state.PauseTiming();
    const absl::Status end =
        transfer.ok() ? transfer->Wait(std::chrono::minutes(1)) : transfer.status();
    state.ResumeTiming();
    if (!end.ok()) return state.SkipWithError(std::string(end.message()).c_str());
  }
  CountRuns(state, *path);
}
BENCHMARK(BM_Submit)->Args({1, 1})->Args({32768, 1})->Args({512, 64});

void BM_SubmitAndWait(benchmark::State& state) {
  const auto path = MakePath(state);
  if (path == nullptr) return;
  for (auto _ : state) {
    const absl::Status end = path->Send();
    if (!end.ok()) return state.SkipWithError(std::string(end.message()).c_str());
  }
  CountRuns(state, *path);
}
BENCHMARK(BM_SubmitAndWait)->Args({1, 1})->Args({32768, 1})->Args({512, 64});

}  // namespace
}  // namespace kvxfer::testing
