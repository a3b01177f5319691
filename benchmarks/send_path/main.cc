// The send path by itself, for tools that count instructions: benchmarks/micro/callgrind runs it.
// Between kvxfer_count_from and kvxfer_count_to lies what is counted, and in kvxfer_counted the
// part of it that this thread does.

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

#include "benchmarks/send_path/marks.h"
#include "kvxfer/log.h"
#include "tests/support/cuda_driver/hooks.h"
#include "tests/support/layer_path.h"
#include "tests/support/null_device.h"
#include "tests/support/send_path.h"

extern "C" {
// By reference: what it returns has no place in C.
__attribute__((noinline)) void kvxfer_counted(kvxfer::testing::SendPath& path,
                                              const kvxfer::TransferOptions& options,
                                              absl::Status& end) {
  end = path.Send(options);
}
// One layer of a request.
__attribute__((noinline)) void kvxfer_counted_layer(kvxfer::testing::LayerPath& path,
                                                    uint32_t layer, absl::Status& status) {
  status = path.Write(layer);
}
}

namespace kvxfer::testing {
namespace {

void Print(const DeviceCounts& counts, uint64_t blocks) {
  const auto per = [](uint64_t count, uint64_t of) {
    return static_cast<double>(count) / static_cast<double>(of);
  };
  std::printf("work requests per block:                  %10.4f\n", per(counts.requests, blocks));
  std::printf("work requests per doorbell:               %10.1f\n",
              per(counts.requests, counts.doorbells));
  std::printf("completions per block at the initiator:   %10.5f\n",
              per(counts.send_entries, blocks));
  std::printf("completions per block at the target:      %10.5f\n",
              per(counts.receive_entries, blocks));
}

// Calls of the stand-in CUDA driver so far; of a real one nothing is known.
uint64_t DriverCalls() {
  const cuda_driver::Hooks* const hooks = cuda_driver::FindHooks();
  return hooks == nullptr ? 0 : hooks->kvxfer_standin_calls(nullptr);
}

absl::Status Run(const SendPathShape& shape, int transfers, bool notify) {
  auto path = SendPath::Create(shape);
  if (!path.ok()) return path.status();
  TransferOptions options;
  options.deadline = std::chrono::minutes(10);
  if (notify) options.notification = "request 7";
  constexpr int kWarmUp = 4;
  DeviceCounts before;
  uint64_t calls = 0;
  for (int i = -kWarmUp; i < transfers; ++i) {
    if (i == 0) {
      before = CountsOfNullDevices();
      calls = DriverCalls();
      kvxfer_count_from();
    }
    absl::Status end;
    kvxfer_counted(**path, options, end);
    if (end.ok() && notify) end = (*path)->TakeNotification();
    if (!end.ok()) return end;
  }
  kvxfer_count_to();
  if (shape.backend == SendPathShape::Backend::kVerbs) {
    Print(CountsOfNullDevices() - before, (*path)->runs() * static_cast<uint64_t>(transfers));
  }
  if (shape.backend == SendPathShape::Backend::kCudaIpc) {
    std::printf("calls of the CUDA driver per transfer:    %10.2f\n",
                static_cast<double>(DriverCalls() - calls) / transfers);
  }
  return absl::OkStatus();
}

absl::Status RunLayers(const LayerPathShape& shape, int requests) {
  auto path = LayerPath::Create(shape);
  if (!path.ok()) return path.status();
  constexpr int kWarmUp = 4;
  for (int i = -kWarmUp; i < requests; ++i) {
    if (auto status = (*path)->Begin(); !status.ok()) return status;
    if (i == 0) kvxfer_count_from();
    for (uint32_t layer = 0; layer < shape.layers; ++layer) {
      absl::Status status;
      kvxfer_counted_layer(**path, layer, status);
      if (!status.ok()) return status;
    }
    if (auto status = (*path)->Finish(); !status.ok()) return status;
  }
  kvxfer_count_to();
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  CLI::App app("Writes blocks by their ids over a backend that moves nothing.", "send_path");
  SendPathShape shape;
  int transfers = 10;
  bool notify = false;
  app.add_option("--ids", shape.ids, "Blocks of each region")->check(CLI::Range(1, 1 << 20));
  app.add_option("--regions", shape.regions, "Paged regions")->check(CLI::Range(1, 1024));
  app.add_option("--transfers", transfers, "Transfers that are counted")
      ->check(CLI::Range(1, 1'000'000));
  app.add_flag_callback(
      "--verbs", [&] { shape.backend = SendPathShape::Backend::kVerbs; },
      "Over the verbs backend and a device that moves nothing");
  app.add_flag_callback(
      "--cuda-ipc", [&] { shape.backend = SendPathShape::Backend::kCudaIpc; },
      "Over cuda_ipc, memory of GPU 0");
  app.add_option("--idle-peers", shape.idle_peers, "Further peers of both agents, which do nothing")
      ->check(CLI::Range(0, 10'000));
  app.add_flag("--notify", notify, "Each with a notification, which the target takes");
  uint32_t layers = 0;
  bool plain = false;
  app.add_option("--layers", layers,
                 "Transfers are requests of so many layers, each written by itself")
      ->check(CLI::Range(1, 1024));
  app.add_flag("--plain", plain, "Their blocks are not prepared");
  CLI11_PARSE(app, argc, argv);
  SetLogLevel(LogLevel::kError);  // that a peer goes is no news here
  const absl::Status status =
      layers == 0
          ? Run(shape, transfers, notify)
          : RunLayers({.layers = layers, .blocks = shape.ids, .prepared = !plain}, transfers);
  if (status.ok()) return 0;
  std::fprintf(stderr, "send_path: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace
}  // namespace kvxfer::testing

int main(int argc, char** argv) { return kvxfer::testing::Main(argc, argv); }
