// Encoding and decoding of the control frames that every transfer needs.

#include <benchmark/benchmark.h>

#include <span>
#include <string>

#include "src/core/protocol/wire_format.h"

namespace kvxfer {
namespace {

OpenFrame Open(size_t notification_bytes) {
  OpenFrame frame;
  frame.transfer = 123456;
  frame.order = 123400;
  frame.notice = Notice::kNotification;
  frame.notification = std::string(notification_bytes, 'n');
  frame.lanes = {{.ref = {.slot = 1, .generation = 2}, .arrivals = 1},
                 {.ref = {.slot = 3, .generation = 4}, .arrivals = 1}};
  return frame;
}

void BM_EncodeOpen(benchmark::State& state) {
  const OpenFrame frame = Open(static_cast<size_t>(state.range(0)));
  for (auto _ : state) {
    benchmark::DoNotOptimize(EncodeMessage(FrameType::kOpen, 7, 6, Encode(frame)));
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_EncodeOpen)->Arg(16)->Arg(1024)->Arg(65536);

void BM_DecodeOpen(benchmark::State& state) {
  const OpenFrame frame = Open(static_cast<size_t>(state.range(0)));
  const std::string message = EncodeMessage(FrameType::kOpen, 7, 6, Encode(frame));
  for (auto _ : state) {
    const auto envelope = DecodeEnvelope(std::as_bytes(std::span(message)));
    if (!envelope.ok()) return state.SkipWithError("envelope refused");
    const auto decoded = Decode<OpenFrame>(envelope->body);
    if (!decoded.ok()) return state.SkipWithError("frame refused");
    benchmark::DoNotOptimize(decoded);
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_DecodeOpen)->Arg(16)->Arg(1024)->Arg(65536);

// Argument: transfers that one frame says have arrived.
void BM_ReleasedThereAndBack(benchmark::State& state) {
  ReleasedFrame frame;
  for (uint64_t i = 0; i < static_cast<uint64_t>(state.range(0)); ++i) {
    frame.arrived.push_back(i + 1);
    frame.freed.push_back({.slot = static_cast<uint32_t>(i), .generation = 5});
  }
  for (auto _ : state) {
    const std::string body = Encode(frame);
    const auto decoded = Decode<ReleasedFrame>(std::as_bytes(std::span(body)));
    if (!decoded.ok()) return state.SkipWithError("frame refused");
    benchmark::DoNotOptimize(decoded);
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_ReleasedThereAndBack)->Arg(1)->Arg(64);

}  // namespace
}  // namespace kvxfer
