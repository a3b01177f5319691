// `kvxfer demo`: moves the KV caches of some requests from this process, the prefill side, to a
// decode process. group.h has the demo with two instances.

#include "src/cli/demo/demo.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "src/cli/common/bootstrap.h"
#include "src/cli/common/channel.h"
#include "src/cli/common/command_line.h"
#include "src/cli/common/options.h"
#include "src/cli/common/stats.h"
#include "src/cli/common/table.h"
#include "src/cli/common/units.h"
#include "src/cli/demo/shard.h"
#include "src/core/base/clock.h"
#include "src/core/base/strings.h"

namespace kvxfer::cli {
namespace {

struct DemoRun {
  std::string path{};      // ChosenPath after the run
  double seconds = 0;      // from the first assignment to the last verification
  double cpu_seconds = 0;  // of both processes, with content and checks
  std::vector<DemoResult> results{};
  absl::Status guards;  // of both sides
};

double Milliseconds(Duration duration) { return Seconds(duration) * 1e3; }

size_t CountVerified(const DemoRun& run) {
  size_t verified = 0;
  for (const DemoResult& result : run.results) {
    if (result.released && result.error.empty()) ++verified;
  }
  return verified;
}

ReportRow RowOf(const DemoConfig& config, size_t request, const DemoResult& result) {
  ReportRow row;
  row.Count("request", request);
  row.Count("tokens", config.tokens);
  row.Count("blocks", config.blocks_per_request());
  row.Count("runs", result.runs);
  row.Add("bytes", result.stats.bytes,
          FormatFixed(static_cast<double>(result.stats.bytes) / (1 << 20), 1));
  row.Number("queued_ms", Milliseconds(result.stats.queued), 2);
  row.Number("wire_ms", Milliseconds(result.stats.wire), 2);
  row.Number("gb_per_s", GbPerSecond(result.stats.bytes, Seconds(result.stats.wire)), 2);
  row.Add("verified", result.error.empty(), result.error.empty() ? "yes" : "NO");
  row.json["error"] = result.error;
  return row;
}

void PrintJson(const DemoConfig& config, const DemoRun& run) {
  Json requests = Json::array();
  for (size_t i = 0; i < run.results.size(); ++i) {
    requests.push_back(RowOf(config, i, run.results[i]).json);
  }
  const uint64_t bytes = config.requests * config.request_bytes();
  const size_t verified = CountVerified(run);
  const Json report = {
      {"ok", verified == run.results.size() && run.guards.ok()},
      {"model", config.model.name},
      {"block_bytes", config.block_bytes()},
      {"regions", config.model.pieces()},
      {"memory", config.memory},
      {"memory_decode", config.memory_there},
      {"requests", std::move(requests)},
      {"verified", verified},
      {"guard_zones", run.guards.ok() ? "intact" : std::string(run.guards.message())},
      {"bytes", bytes},
      {"seconds", run.seconds},
      {"gb_per_s", GbPerSecond(bytes, run.seconds)},
      {"cpu_seconds", run.cpu_seconds},
      {"path", run.path}};
  std::puts(DumpJson(report, 2).c_str());
}

void PrintTable(const DemoConfig& config, const DemoRun& run) {
  std::printf("%s: %u layers, blocks of %lu tokens, %u regions a side, %s a block in each\n",
              config.model.name.c_str(), config.model.layers, config.block_tokens,
              config.model.pieces(), FormatBytes(config.block_bytes()).c_str());
  const Table table(
      "request:7|tokens:6|blocks:6|runs:7|MiB:8|queue ms:8|wire ms:8|GB/s:6|verified:8");
  std::puts(table.Header().c_str());
  for (size_t i = 0; i < run.results.size(); ++i) {
    std::puts(table.Row(RowOf(config, i, run.results[i]).cells).c_str());
  }
  const uint64_t bytes = config.requests * config.request_bytes();
  std::printf("%zu of %zu requests verified, every byte; guard zones %s\n", CountVerified(run),
              run.results.size(), run.guards.ok() ? "intact" : "WRITTEN");
  std::printf("%s in %.2f s: %.2f GB/s with making and checking content, %.2f CPU seconds\n",
              FormatBytes(bytes).c_str(), run.seconds, GbPerSecond(bytes, run.seconds),
              run.cpu_seconds);
  std::printf("path %s\n", run.path.c_str());
}

// DataLoss names the first thing that is wrong.
absl::Status OutcomeOf(const DemoRun& run) {
  for (const DemoResult& result : run.results) {
    if (!result.error.empty()) return absl::DataLossError("verification failed: " + result.error);
  }
  return Annotate(run.guards, "guard zones");
}

// Exchanges metadata with the decode process and returns its regions.
absl::StatusOr<std::vector<PagedRegion>> Meet(const DemoConfig& config, WorkerProcess& worker,
                                              Agent& agent, std::string& peer) {
  const absl::StatusOr<std::string> ours = agent.Metadata();
  if (!ours.ok()) return ours.status();
  Json hello = ToJson(config);
  hello["memory"] = config.memory_there;
  hello["memory_there"] = config.memory;
  hello["metadata"] = ToHex(*ours);
  const absl::StatusOr<Json> answer = worker.channel().Call(hello, config.timeout);
  if (!answer.ok()) return answer.status();
  if (absl::Status s = Into(peer, AddPeerOf(*answer, agent)); !s.ok()) return s;
  return GetRegions(*answer, "regions");
}

// The decode process is silent between messages, unless it has failed.
absl::Status CheckWorker(WorkerProcess& worker) {
  if (worker.channel().Readable()) {
    const absl::StatusOr<Json> message = worker.channel().ReceiveAnswer(std::chrono::seconds(1));
    if (message.ok()) return absl::InternalError("the decode process sends an unexpected message");
    // The way in which the process ended says more than a closed channel.
    if (!absl::IsUnavailable(message.status())) return message.status();
    return worker.Join(std::chrono::seconds(1));
  }
  return worker.CheckAlive();
}

// Call it when every request is verified and every transfer has ended on both sides. Gets the
// results of the decode process and lets it end.
absl::Status Finish(WorkerProcess& worker, DemoRun& run, Duration timeout) {
  ExpectPeersToLeave();
  const absl::StatusOr<Json> last = worker.channel().Call({{"type", "finish"}}, timeout);
  if (!last.ok()) return last.status();
  if (const std::string written = GetString(*last, "guards"); !written.empty()) {
    run.guards = absl::DataLossError("decode side: " + written);
  }
  const auto cpu = last->find("cpu_seconds");
  run.cpu_seconds = CpuSeconds();
  if (cpu != last->end() && cpu->is_number()) run.cpu_seconds += cpu->get<double>();
  return worker.Join(timeout);
}

// The order of these objects is the order of their lifetimes: the cache outlives the agent that has
// it registered, and the decode process outlives this agent.
absl::Status RunDemo(DemoConfig config, bool json) {
  const absl::StatusOr<DemoMemory> memory = DemoMemoryOf(config.memory, 1, 1);
  if (!memory.ok()) return memory.status();
  config.memory = memory->prefill.front().ToString();
  config.memory_there = memory->decode.front().ToString();
  const absl::StatusOr<KvCacheShape> shape = DemoCacheShape(config);
  if (!shape.ok()) return shape.status();
  const absl::StatusOr<KvCache> cache = KvCache::Create(*shape);
  if (!cache.ok()) return cache.status();
  absl::StatusOr<WorkerProcess> worker = WorkerProcess::Start("demo-worker", "the decode process");
  if (!worker.ok()) return worker.status();
  const absl::StatusOr<std::unique_ptr<Agent>> agent =
      MakeAgent({.role = "prefill", .backends = config.backend, .fault_seed = config.seed});
  if (!agent.ok()) return agent.status();
  // Only this agent reads the source: peers need no access.
  if (auto s = cache->RegisterWith(**agent, Access::kNone); !s.ok()) return s.status();
  std::string peer;
  absl::StatusOr<std::vector<PagedRegion>> remote = Meet(config, *worker, **agent, peer);
  if (!remote.ok()) return remote.status();

  DemoRun run;
  const Time start = Now();
  {
    ProgressBar bar("requests", config.requests);
    absl::Status status = Into(run.results, RunPrefill(
                                                config, **agent, *cache, peer, std::move(*remote),
                                                [&worker] { return CheckWorker(*worker); },
                                                [&bar](size_t done) { bar.Update(done); }));
    if (!status.ok()) return status;
  }
  run.seconds = Seconds(Now() - start);
  run.path = ChosenPath(**agent, peer, config.memories());
  if (absl::Status s = Finish(*worker, run, config.timeout); !s.ok()) return s;
  run.guards.Update(cache->CheckGuards());
  if (json) {
    PrintJson(config, run);
  } else {
    PrintTable(config, run);
  }
  return OutcomeOf(run);
}

struct DemoFlags {
  DemoConfig config;
  std::string model = "llama-3.1-8b";
  KvSide prefill{.name = "prefill"};
  KvSide decode{.name = "decode"};
  std::vector<CLI::Option*> of_sides{};  // if one is given, each rank is a process
  CLI::Option* one_rank = nullptr;       // --tp
  bool json = false;
};

absl::Status RunFlags(DemoFlags& flags) {
  if (absl::Status s = Into(flags.config.model, LoadKvModel(flags.model)); !s.ok()) return s;
  const bool ranks =
      std::ranges::any_of(flags.of_sides, [](const CLI::Option* o) { return o->count() > 0; });
  if (!ranks) return RunDemo(flags.config, flags.json);
  if (flags.one_rank->count() > 0) {
    return Invalid(
        "--tp moves the part of one rank; --prefill-tp and --decode-tp move that of every rank");
  }
  const absl::StatusOr<DemoGroupRun> run = RunDemoGroup(flags.config, flags.prefill, flags.decode);
  if (!run.ok()) return run.status();
  if (flags.json) {
    PrintGroupJson(*run);
  } else {
    PrintGroupTable(*run);
  }
  return OutcomeOf(*run);
}

void AddDemoSide(CLI::App* command, DemoFlags& flags, KvSide& side) {
  for (CLI::Option* option : AddKvSide(command, side)) {
    option->group("Two instances, a process for each rank");
    flags.of_sides.push_back(option);
  }
}

}  // namespace

void AddDemo(CLI::App& app, Action& action) {
  const auto flags = std::make_shared<DemoFlags>();
  CLI::App* command = AddCommand(
      app, action, "demo",
      "Moves KV caches of requests between two processes, or between the ranks of two instances, "
      "and checks every byte",
      [flags] { return RunFlags(*flags); });
  DemoConfig& config = flags->config;
  AddModel(command, flags->model);
  AddNumber(command, "--requests", config.requests, "Requests to move");
  AddNumber(command, "--tokens", config.tokens, "Tokens of each request");
  AddNumber(command, "--block-tokens", config.block_tokens, "Tokens in one block");
  flags->one_rank = AddNumber(command, "--tp", config.tp,
                              "Tensor-parallel ranks of the model; the part of one rank is moved");
  AddDemoSide(command, *flags, flags->prefill);
  AddDemoSide(command, *flags, flags->decode);
  AddBackend(command, config.backend);
  AddMemory(command, config.memory,
            "Memory of the KV caches, or of prefill and of decode, separated by a comma; cuda "
            "gives each rank the next GPU");
  AddNumber(command, "--seed", config.seed, "Random seed for block tables, content and faults");
  AddSize(command, "--gap", config.gap, "Guarded bytes behind each block; 0 packs the blocks");
  AddSize(command, "--cache-size", config.cache_bytes, "KV cache of each side");
  AddDuration(command, "--timeout", config.timeout, "Longest time without progress");
  // For tests: changes one byte of one request.
  command->add_flag("--corrupt", config.corrupt)->group("");
  AddJson(command, flags->json);
}

}  // namespace kvxfer::cli
