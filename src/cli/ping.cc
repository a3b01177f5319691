// `kvxfer ping`: round trips of a notified write and its answer.

#include <cstdio>
#include <thread>

#include "src/cli/common/bootstrap.h"
#include "src/cli/common/cache_memory.h"
#include "src/cli/common/channel.h"
#include "src/cli/common/command_line.h"
#include "src/cli/common/options.h"
#include "src/cli/common/peer_service.h"
#include "src/cli/common/stats.h"
#include "src/cli/common/units.h"
#include "src/core/base/clock.h"

namespace kvxfer::cli {
namespace {

constexpr uint64_t kMaxIters = 1'000'000'000;

struct PingFlags {
  std::string server{};  // empty: a second process
  std::string backend{};
  std::string listen{};
  std::string memory = "mapped";
  uint64_t iters = 10;
  uint64_t size = 64;
  uint64_t warmup = 2;
  Duration interval = std::chrono::milliseconds(100);
  Duration timeout = std::chrono::seconds(5);
  bool json = false;
};

void PrintPing(const PingFlags& flags, const std::string& peer, const std::string& path,
               const Summary& s) {
  if (flags.json) {
    const Json report = {{"peer", peer},     {"path", path},    {"bytes", flags.size},
                         {"count", s.count}, {"min_us", s.min}, {"p50_us", s.p50},
                         {"p99_us", s.p99},  {"max_us", s.max}, {"mean_us", s.mean}};
    std::puts(DumpJson(report, 2).c_str());
    return;
  }
  std::printf("%zu round trips of %s over %s\n", s.count, FormatBytes(flags.size).c_str(),
              path.c_str());
  const TimeUnit unit = UnitFor(s.p50 * 1e-6);
  const double us = unit.per_second * 1e-6;
  std::printf("rtt min/p50/p99/max = %.1f/%.1f/%.1f/%.1f %s\n", s.min * us, s.p50 * us, s.p99 * us,
              s.max * us, unit.name);
}

absl::Status PingOver(const PingFlags& flags, const MemorySides& memory, Channel& channel) {
  KvCache cache;  // before the agent: it outlives its registration
  const auto agent = MakeAgent({.role = "ping",
                                .backends = flags.backend,
                                .listen = flags.listen,
                                .default_listen = LocalHost(channel),
                                .gpu_memory = memory.here.cuda()});
  if (!agent.ok()) return agent.status();
  auto trip = RoundTrip::Open(channel, **agent, cache, flags.size, memory, flags.timeout);
  if (!trip.ok()) return trip.status();
  const std::string peer = trip->session().peer();
  const bool each = !flags.json && flags.iters <= 100;
  std::vector<double> times;
  // The first round trips also make the connection, and are not measured.
  for (uint64_t i = 0; i < flags.warmup + flags.iters; ++i) {
    if (i > flags.warmup && flags.interval.count() > 0) {
      std::this_thread::sleep_for(flags.interval);
    }
    const Time start = Now();
    if (absl::Status s = trip->Once(); !s.ok()) return s;
    const double seconds = Seconds(Now() - start);
    if (i < flags.warmup) continue;
    times.push_back(seconds * 1e6);
    if (each) {
      std::printf("%s from %s: seq=%lu time=%s\n", FormatBytes(flags.size).c_str(), peer.c_str(),
                  i - flags.warmup + 1, FormatTime(seconds).c_str());
      std::fflush(stdout);
    }
  }
  PrintPing(flags, peer, ChosenPath(**agent, peer, memory), Summarize(std::move(times)));
  ExpectPeersToLeave();
  return absl::OkStatus();
}

// Checks that the host memory of this host suffices: for the write and its answer, and without a
// server for the other process too. Allocating GPU memory reports what a GPU lacks.
absl::Status CheckMemory(const PingFlags& flags, const MemorySides& memory) {
  std::vector<MemoryNeed> needs;
  if (!memory.here.cuda()) needs.push_back({.choice = memory.here, .bytes = 2 * flags.size});
  if (flags.server.empty() && !memory.there.cuda()) {
    needs.push_back({.choice = memory.there, .bytes = flags.size});
  }
  const absl::Status fits = CheckFits(needs, "a smaller --size");
  return fits.ok() ? fits : absl::ResourceExhaustedError(fits.message());
}

absl::Status RunPing(const PingFlags& flags) {
  if (absl::Status s = FirstError({CheckRange("--iters", flags.iters, 1, kMaxIters),
                                   CheckRange("--warmup", flags.warmup, 0, kMaxIters),
                                   CheckRange("--size", flags.size, 1, uint64_t{1} << 60),
                                   CheckAboveZero("--timeout", flags.timeout)});
      !s.ok())
    return s;
  const absl::StatusOr<MemorySides> memory = ParseMemorySides(flags.memory);
  if (!memory.ok()) return memory.status();
  if (absl::Status fits = CheckMemory(flags, *memory); !fits.ok()) return fits;
  if (flags.server.empty()) {
    absl::StatusOr<WorkerProcess> worker = WorkerProcess::Start("bench-worker", "the peer process");
    if (!worker.ok()) return worker.status();
    const Json role = {{"backend", flags.backend}, {"gpu_memory", memory->there.cuda()}};
    if (absl::Status s = worker->channel().Send(role); !s.ok()) return s;
    return PingOver(flags, *memory, worker->channel());
  }
  absl::StatusOr<Channel> channel = ConnectToServer(flags.server);
  if (!channel.ok()) return channel.status();
  return PingOver(flags, *memory, *channel);
}

}  // namespace

void AddPing(CLI::App& app, Action& action) {
  const auto flags = std::make_shared<PingFlags>();
  CLI::App* command =
      AddCommand(app, action, "ping", "Measures round trips of small notified writes",
                 [flags] { return RunPing(*flags); });
  AddText(command, "server", flags->server, "HOST[:PORT]",
          "Address of `kvxfer serve` (default: a second process on this host answers)");
  AddNumber(command, "-n,--iters", flags->iters, "Round trips to measure");
  AddNumber(command, "--warmup", flags->warmup, "Round trips before the measured ones");
  AddSize(command, "-s,--size", flags->size, "Bytes in each write and in each answer");
  AddDuration(command, "--interval", flags->interval, "Pause between round trips");
  AddDuration(command, "--timeout", flags->timeout, "Longest wait for an answer");
  AddBackend(command, flags->backend);
  AddListen(command, flags->listen);
  AddMemory(command, flags->memory,
            "Memory of both sides, or of this side and of the other, separated by a comma");
  AddJson(command, flags->json);
}

}  // namespace kvxfer::cli
