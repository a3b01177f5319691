// `kvxfer bench`: how fast scattered blocks move, a table row for each block size.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/cli/agent_setup.h"
#include "src/cli/bench_run.h"
#include "src/cli/bootstrap.h"
#include "src/cli/commands.h"
#include "src/cli/host_memory.h"
#include "src/cli/options.h"
#include "src/cli/peer_service.h"
#include "src/cli/process.h"
#include "src/cli/table.h"
#include "src/cli/units.h"

namespace kvxfer::cli {
namespace {

double MillionBlocksPerSecond(const BenchRow& row) {
  return static_cast<double>(row.blocks) * static_cast<double>(row.round_us.count) /
         row.round_us.sum;
}

Json RowJson(const BenchRow& row) {
  return {{"block_bytes", row.block_bytes},
          {"blocks", row.blocks},
          {"bytes", row.bytes},
          {"rounds", row.round_us.count},
          {"gb_per_s", row.gb_per_s()},
          {"gbit_per_s", 8 * row.gb_per_s()},
          {"mops_per_s", MillionBlocksPerSecond(row)},
          {"p50_us", row.round_us.p50},
          {"p99_us", row.round_us.p99},
          {"p999_us", row.round_us.p999},
          {"min_us", row.round_us.min},
          {"max_us", row.round_us.max},
          {"local_cpu_seconds_per_gb", row.local_cpu_seconds / row.total_gb()},
          {"remote_cpu_seconds_per_gb", row.remote_cpu_seconds / row.total_gb()},
          {"verified", true}};
}

std::vector<std::string> RowCells(const BenchRow& row) {
  const double gb = row.total_gb();
  return {std::to_string(row.block_bytes),
          std::to_string(row.blocks),
          FormatFixed(row.gb_per_s(), 2),
          FormatFixed(8 * row.gb_per_s(), 1),
          FormatFixed(MillionBlocksPerSecond(row), 3),
          FormatFixed(row.round_us.p50, 0),
          FormatFixed(row.round_us.p99, 0),
          FormatFixed(row.round_us.p999, 0),
          FormatFixed(row.local_cpu_seconds / gb, 3),
          FormatFixed(row.remote_cpu_seconds / gb, 3)};
}

absl::Status BenchOver(const BenchConfig& config, Channel& channel) {
  HostMemory memory;  // before the agent: it outlives its registration
  const absl::StatusOr<std::unique_ptr<Agent>> agent =
      MakeAgent({.role = "bench",
                 .backends = config.backend,
                 .listen = config.listen,
                 .default_listen = LocalHost(channel),
                 .fault_seed = config.seed});
  if (!agent.ok()) return agent.status();
  BenchRun run(config, channel, **agent, memory);
  if (absl::Status s = run.Prepare(); !s.ok()) return s;
  const Table table({{"#bytes", 8},
                     {"blocks", 7},
                     {"GB/s", 7},
                     {"Gb/s", 7},
                     {"Mops/s", 7},
                     {"p50 us", 8},
                     {"p99 us", 8},
                     {"p99.9 us", 8},
                     {"CPU s/GB here"},
                     {"there", 6}});
  if (!config.json) {
    std::printf("%s of scattered %s blocks, %s a round, %lu rounds each, one at a time\n",
                config.op.c_str(), config.memory.c_str(), FormatBytes(config.total).c_str(),
                config.rounds);
    std::puts(table.Header().c_str());
    std::fflush(stdout);
  }
  Json rows = Json::array();
  for (uint64_t block_bytes : config.block_sizes) {
    const absl::StatusOr<BenchRow> row = run.Run(block_bytes);
    if (!row.ok()) return row.status();
    if (!config.json) std::puts(table.Row(RowCells(*row)).c_str());
    std::fflush(stdout);
    rows.push_back(RowJson(*row));
  }
  if (config.json) {
    const Json report = {{"op", config.op},
                         {"memory", config.memory},
                         {"path", run.path()},
                         {"rows", std::move(rows)}};
    std::puts(DumpJson(report, 2).c_str());
  } else {
    std::printf("every byte of the first round of each size verified; path %s\n",
                run.path().c_str());
  }
  ExpectPeersToLeave();
  return absl::OkStatus();
}

absl::Status RunBench(const BenchConfig& config) {
  if (config.server.empty()) {
    absl::StatusOr<WorkerProcess> worker =
        WorkerProcess::Start("bench-worker", "the target process");
    if (!worker.ok()) return worker.status();
    const Json first = {{"backend", config.backend}, {"seed", config.seed + 1}};
    if (absl::Status s = worker->channel().Send(first); !s.ok()) return s;
    return BenchOver(config, worker->channel());
  }
  const absl::StatusOr<HostPort> address = ParseHostPort(config.server);
  if (!address.ok()) return address.status();
  absl::StatusOr<Channel> channel = ConnectTo(*address, std::chrono::seconds(2));
  if (!channel.ok()) return channel.status();
  return BenchOver(config, *channel);
}

absl::Status Worker() {
  absl::StatusOr<Channel> parent = ChannelToParent();
  if (!parent.ok()) return parent.status();
  const absl::StatusOr<Json> first = parent->Receive(std::chrono::seconds(30));
  if (!first.ok()) return first.status();
  // The parent alone speaks to the user; what concerns both sides it logs too.
  ExpectPeersToLeave();
  absl::StatusOr<std::unique_ptr<Agent>> agent =
      MakeAgent({.role = "target",
                 .backends = GetString(*first, "backend"),
                 .own_port = true,
                 .fault_seed = GetUint(*first, "seed").value_or(1)});
  if (!agent.ok()) return parent->Send(ErrorAnswer(agent.status()));
  // No bound: the one client is the user's own process.
  PeerService service(std::move(*agent), UINT64_MAX);
  service.Serve(*parent);
  return absl::OkStatus();
}

}  // namespace

void AddBench(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("bench", "Measures writes or reads of scattered blocks by block size");
  const auto config = std::make_shared<BenchConfig>();
  command->add_option("server", config->server,
                      "host:port of kvxfer serve; without it a second process is the target");
  command->add_option("--backend", config->backend,
                      "tcp, shm, faulty:tcp, ... (default: the best)");
  command->add_option("--listen", config->listen, kClientListenHelp);
  command->add_option("--op", config->op, "write or read");
  command->add_option("--memory", config->memory, kMemoryHelp);
  AddSizes(command, "--block-sizes", config->block_sizes, "4K:4M",
           "One size, a range that doubles, or a list");
  AddSize(command, "--total", config->total, "Bytes of one round");
  command->add_option("--rounds", config->rounds, "Measured rounds of each block size");
  command->add_option("--seed", config->seed, "Of block order, content and injected faults");
  AddDuration(command, "--timeout", config->timeout, "Longest time for one round");
  command->add_flag("--json", config->json, "Report as JSON");
  command->callback([config, &action] { action = [config] { return RunBench(*config); }; });
}

void AddBenchWorker(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("bench-worker", "The other process of bench and ping");
  command->group("");
  command->callback([&action] { action = Worker; });
}

}  // namespace kvxfer::cli
