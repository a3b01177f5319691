// Round trips between two agents of this process, for tools that count instructions and system
// calls: benchmarks/micro/count_ping runs it. What is counted lies between kvxfer_count_from and
// kvxfer_count_to. Each agent has a thread that writes one block with a notification, and waits for
// the other's.

#include <sched.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "benchmarks/send_path/counted_calls.h"
#include "benchmarks/send_path/marks.h"
#include "kvxfer/agent.h"
#include "kvxfer/log.h"
#include "kvxfer/memory.h"
#include "src/core/base/cpus.h"
#include "tests/support/gpu_space.h"

namespace kvxfer::testing {
namespace {

constexpr Duration kLong = std::chrono::minutes(5);  // also under valgrind
constexpr int kWarmUp = 20;

// Keeps each CPU from going idle, with threads that anything else may interrupt: on a virtual
// machine it takes up to a millisecond to wake an idle CPU, and timers expire meanwhile.
class Awake {
 public:
  explicit Awake(bool wanted) {
    for (int i = 0; wanted && i < UsableCpus(); ++i) threads_.emplace_back([this] { Loop(); });
  }
  ~Awake() {
    ends_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  Awake(const Awake&) = delete;
  Awake& operator=(const Awake&) = delete;

 private:
  void Loop() {
    const sched_param none{};
    if (sched_setscheduler(0, SCHED_IDLE, &none) != 0) return;
    while (!ends_.load(std::memory_order_relaxed)) {
    }
  }

  std::atomic<bool> ends_{false};
  std::vector<std::thread> threads_;
};

struct Side {
  HostBuffer memory{};
  std::unique_ptr<GpuSpace> gpu{};  // in its place
  std::unique_ptr<Agent> agent{};
  std::string peer{};
  Descriptor mine{};
  Descriptor theirs{};

  absl::Status Open(const AgentOptions& options, uint64_t bytes, bool on_gpu) {
    absl::StatusOr<MemorySpan> span = Allocate(bytes, on_gpu);
    if (!span.ok()) return span.status();
    auto made = Agent::Create(options);
    if (!made.ok()) return made.status();
    agent = *std::move(made);
    mine = {.address = reinterpret_cast<uintptr_t>(span->data), .bytes = bytes};
    return agent->RegisterMemory(*span, Access::kReadWrite).status();
  }
  absl::StatusOr<MemorySpan> Allocate(uint64_t bytes, bool on_gpu) {
    if (on_gpu) {
      auto space = GpuSpace::Allocate(bytes);
      if (!space.ok()) return space.status();
      gpu = *std::move(space);
      return gpu->span();
    }
    auto buffer = HostBuffer::Allocate(bytes, HostPages::kSmall);
    if (!buffer.ok()) return buffer.status();
    memory = *std::move(buffer);
    return memory.span();
  }
  absl::Status Meet(const Side& other) {
    auto metadata = other.agent->Metadata();
    if (!metadata.ok()) return metadata.status();
    auto name = agent->AddPeer(*metadata);
    if (!name.ok()) return name.status();
    peer = *std::move(name);
    theirs = other.mine;
    return absl::OkStatus();
  }
  absl::Status Say() {
    TransferOptions options;
    options.notification = "request 7";
    return agent
        ->Write(peer, DescriptorBlocks{.local = {&mine, 1}, .remote = {&theirs, 1}}, options)
        .status();
  }
  absl::Status Hear() { return agent->WaitNotification(kLong).status(); }
};

absl::Status Answer(Side& side, int trips) {
  for (int i = 0; i < trips; ++i) {
    absl::Status status = side.Hear();
    if (status.ok()) status = side.Say();
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

using Calls = std::map<std::string, uint64_t>;

absl::StatusOr<Calls> Ask(Side& side, int trips) {
  Calls before = CountedCalls();
  for (int i = -kWarmUp; i < trips; ++i) {
    if (i == 0) {
      before = CountedCalls();
      kvxfer_count_from();
    }
    absl::Status status = side.Say();
    if (status.ok()) status = side.Hear();
    if (!status.ok()) return status;
  }
  kvxfer_count_to();
  Calls calls = CountedCalls();
  for (auto& [name, count] : calls) count -= before[name];
  return calls;
}

// Sums what this process itself did.
uint64_t Total(const Calls& calls) {
  uint64_t total = 0;
  for (const auto& [name, count] : calls) total += name == kTcpSegments ? 0 : count;
  return total;
}

absl::Status Run(AgentOptions options, uint64_t bytes, bool on_gpu, int trips, int rounds) {
  Side here;
  Side there;
  options.name = "here";
  if (auto status = here.Open(options, bytes, on_gpu); !status.ok()) return status;
  options.name = "there";
  if (auto status = there.Open(options, bytes, on_gpu); !status.ok()) return status;
  if (auto status = here.Meet(there); !status.ok()) return status;
  if (auto status = there.Meet(here); !status.ok()) return status;
  // Other processes and timers only add to what a round makes.
  Calls fewest;
  for (int round = 0; round < rounds; ++round) {
    absl::Status answered;
    std::thread other([&] { answered = Answer(there, kWarmUp + trips); });
    const absl::StatusOr<Calls> calls = Ask(here, trips);
    other.join();
    if (!calls.ok()) return calls.status();
    if (!answered.ok()) return answered;
    if (round == 0 || Total(*calls) < Total(fewest)) fewest = *calls;
  }
  for (const auto& [name, count] : fewest) {
    std::printf("%-18s %8.2f\n", name.c_str(), static_cast<double>(count) / trips);
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  CLI::App app("Round trips of small notified writes between two agents.", "ping_path");
  AgentOptions options;
  options.backends = {"shm"};
  uint64_t bytes = 64;
  int trips = 100;
  int rounds = 1;
  bool spins = false;
  bool awake = false;
  bool on_gpu = false;
  app.add_option("--backend", options.backends, "Over this backend")->expected(1);
  const std::map<std::string, ControlCarrier> carriers = {{"auto", ControlCarrier::kAuto},
                                                          {"tcp", ControlCarrier::kTcp},
                                                          {"rdma", ControlCarrier::kRdma},
                                                          {"shm", ControlCarrier::kShm}};
  app.add_option("--control", options.control, "What carries control frames")
      ->transform(CLI::CheckedTransformer(carriers));
  app.add_option("--size", bytes, "Bytes of each block")->check(CLI::Range(1, 1 << 20));
  app.add_option("--trips", trips, "Round trips that are counted")->check(CLI::Range(1, 1'000'000));
  app.add_option("--rounds", rounds, "So many times; the one with the fewest calls is told")
      ->check(CLI::Range(1, 100));
  app.add_flag("--cuda", on_gpu, "Memory of GPU 0");
  app.add_flag("--spin", spins, "They spin, in place of sleeping");
  app.add_flag("--awake", awake, "No CPU goes idle meanwhile");
  CLI11_PARSE(app, argc, argv);
  SetLogLevel(LogLevel::kError);
  const Awake cpus(awake);
  options.spin = spins ? Duration(std::chrono::seconds(1)) : Duration::zero();
  const absl::Status status = Run(options, bytes, on_gpu, trips, rounds);
  if (status.ok()) return 0;
  std::fprintf(stderr, "ping_path: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace
}  // namespace kvxfer::testing

int main(int argc, char** argv) { return kvxfer::testing::Main(argc, argv); }
