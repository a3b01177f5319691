// The queues of the send path: transfers posted by several threads at once, and the numbered
// control frames.

#include <benchmark/benchmark.h>

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/core/protocol/reliable_channel.h"
#include "src/core/protocol/wire_format.h"
#include "tests/support/send_path.h"

namespace kvxfer {
namespace {

// Every thread posts transfers of one block to one agent and waits for each.
void BM_SubmissionQueue(benchmark::State& state) {
  static std::unique_ptr<testing::SendPath> path;  // of all threads of one run
  if (state.thread_index() == 0) {
    auto made = testing::SendPath::Create({.ids = 1});
    if (made.ok()) path = *std::move(made);
  }
  for (auto _ : state) {
    if (path == nullptr) {
      state.SkipWithError("no path");
      break;
    }
    const absl::Status end = path->Send();
    if (!end.ok()) state.SkipWithError(std::string(end.message()).c_str());
  }
  state.SetItemsProcessed(state.iterations());
  if (state.thread_index() == 0) path.reset();
}
BENCHMARK(BM_SubmissionQueue)->ThreadRange(1, 4)->UseRealTime();

// Argument: frames on the way at once. One frame: pushed, sent, received, acknowledged.
void BM_ControlQueue(benchmark::State& state) {
  const std::string body = Encode(CreditFrame{.notifications = 7, .bytes = 1 << 20});
  ReliableChannel sender;
  ReliableChannel receiver;
  size_t frames = 0;
  const auto take = [&frames](const auto&) {
    ++frames;
    return absl::OkStatus();
  };
  for (auto _ : state) {
    for (int64_t i = 0; i < state.range(0); ++i) sender.Push(FrameType::kCredit, body);
    frames = 0;
    while (const std::string* message = sender.NextToSend()) {
      const auto envelope = DecodeEnvelope(std::as_bytes(std::span(*message)));
      if (!envelope.ok() || !receiver.OnFrame(*envelope, take).ok()) {
        return state.SkipWithError("frame refused");
      }
      sender.MessageSent();
    }
    if (!sender.OnAck(receiver.received()).ok()) return state.SkipWithError("ack refused");
    if (frames != static_cast<size_t>(state.range(0)) || sender.kept() != 0) {
      return state.SkipWithError("frames lost");
    }
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(BM_ControlQueue)->Arg(1)->Arg(64);

}  // namespace
}  // namespace kvxfer
