// One layer of a request, in the thread that computes the layers: Agent::WriteLayers of prepared
// blocks beside WriteBlocks, over the null backend. Arguments: blocks; whether they are prepared;
// whether a thread drives that never sleeps. Else the background thread sleeps, and has to be
// woken.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/layer_path.h"

namespace kvxfer::testing {
namespace {

using Clock = std::chrono::steady_clock;

// Computes a layer: long enough that what was posted has been sent.
void Compute() { std::this_thread::sleep_for(std::chrono::microseconds(300)); }

// The seconds that the calls took, one for each layer.
absl::StatusOr<std::vector<double>> WriteRequest(LayerPath& path) {
  if (auto status = path.Begin(); !status.ok()) return status;
  std::vector<double> calls;
  for (uint32_t layer = 0; layer < path.layers(); ++layer) {
    const auto begin = Clock::now();
    const absl::Status status = path.Write(layer);
    calls.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    if (!status.ok()) return status;
    Compute();
  }
  if (auto status = path.Finish(); !status.ok()) return status;
  return calls;
}

// The time is the median of the layers of one request.
void BM_WriteLayer(benchmark::State& state) {
  const auto path = LayerPath::Create({.blocks = static_cast<uint32_t>(state.range(0)),
                                       .prepared = state.range(1) != 0,
                                       .spins = state.range(2) != 0});
  if (!path.ok()) return state.SkipWithError(std::string(path.status().message()).c_str());
  for (auto _ : state) {
    auto calls = WriteRequest(**path);
    if (!calls.ok()) return state.SkipWithError(std::string(calls.status().message()).c_str());
    const auto median = calls->begin() + static_cast<std::ptrdiff_t>(calls->size() / 2);
    std::ranges::nth_element(*calls, median);
    state.SetIterationTime(*median);
  }
}
BENCHMARK(BM_WriteLayer)
    ->ArgsProduct({{256, 2048}, {0, 1}, {0, 1}})
    ->ArgNames({"blocks", "prepared", "spins"})
    ->UseManualTime()
    ->Iterations(20);

}  // namespace
}  // namespace kvxfer::testing
