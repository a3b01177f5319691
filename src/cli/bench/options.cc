// The options of `kvxfer bench` on the command line.

#include "src/cli/common/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <initializer_list>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "src/cli/bench/kv/modes.h"
#include "src/cli/bench/plan.h"

namespace kvxfer::cli {
namespace {

constexpr const char* kWhere = "Where";
constexpr const char* kWhat = "What is moved";
constexpr const char* kInstances = "KV caches between two instances";
constexpr const char* kHow = "How much at once";
constexpr const char* kLoad = "How long, and under which load";

// These have a meaning for a run between two instances too. One of the group kInstances makes it
// such a run, as in `kvxfer demo`.
constexpr std::array<std::string_view, 9> kForInstancesToo = {
    "--help",         "--backend", "--memory",   "--model", "--tokens",
    "--block-tokens", "--iters",   "--duration", "--json"};

void Exclude(CLI::App* command, const char* name, std::initializer_list<const char*> others) {
  for (const char* other : others) {
    command->get_option(name)->excludes(command->get_option(other));
  }
}

// The name of the first option that was given and for which `counts` holds; empty: none.
std::string FirstGiven(const CLI::App* command,
                       absl::FunctionRef<bool(const CLI::Option& option)> counts) {
  for (const CLI::Option* option : command->get_options()) {
    if (option->count() > 0 && counts(*option)) return option->get_name();
  }
  return "";
}

void DeclareWhere(CLI::App* command, BenchOptions& o) {
  command
      ->add_option("server", o.servers,
                   "Address of `kvxfer serve`, or several with --scheme onetomany (default: "
                   "processes of this run are the targets)")
      ->type_name("HOST[:PORT]");
  AddBackend(command, o.backend,
             absl::StrCat(kFastestBackend, "; between two instances shm, or cuda_ipc for GPUs"));
  AddListen(command, o.listen);
}

void DeclareWhat(CLI::App* command, BenchOptions& o) {
  AddChoice(command, "--op,--op-type,--op_type", o.op, {"write", "read"},
            "Direction, as the initiator sees it");
  AddMemory(command, o.memory,
            "Memory of both sides, or of the initiators and of the targets, separated by a comma");
  AddSizes(command, "-s,--block-sizes,--size", o.block_sizes, "",
           "One block size, a range that doubles, or a list (default: 4K:4M; with --latency 4K)");
  AddSize(command, "--start-block-size,--start_block_size", o.start_block_size,
          "First block size of a range that doubles (default: --block-sizes)")
      ->default_str("");
  AddSize(command, "--max-block-size,--max_block_size", o.max_block_size,
          "Last block size of that range (default: --block-sizes)")
      ->default_str("");
  AddSize(command, "--total,--total-buffer-size,--total_buffer_size", o.total,
          "Bytes in one round, shared by all peers and threads");
  AddModel(command, o.model,
           ": moves its KV caches in place of raw blocks (default: raw blocks; between two "
           "instances every known model)");
  AddNumber(command, "--tokens", o.tokens, "Tokens of each request, with --model or two instances")
      ->default_str(std::to_string(kDefaultTokens));
  AddNumber(command, "--block-tokens", o.block_tokens, "Tokens in one block of a KV cache");
  AddNumber(command, "--tp", o.tp,
            "Tensor-parallel ranks of the model; the part of one rank is moved");
  AddText(command, "--trace", o.trace, "FILE",
          "Requests as they arrive in this file, which has timestamp, input_length and hash_ids "
          "in each line (default: requests that all look alike)");
  AddSize(command, "--cache-size", o.cache_bytes, "KV cache of each side, with --trace");
  AddNumber(command, "--speedup", o.speedup, "Replays the trace so many times as fast");
}

void DeclareHow(CLI::App* command, BenchOptions& o) {
  command->add_flag("--latency", o.latency,
                    "Measures round trips: a notified write and the answer of the application");
  AddChoice(command, "--answer", o.answer, {"write", "message"},
            "What that answer is, with --latency: a notified write, or a notification alone");
  command->add_flag("-b,--bidirectional", o.bidirectional,
                    "Moves as much from the targets at the same time");
  AddNumber(command, "--threads,--num-threads,--num_threads", o.threads,
            "Threads for each peer, with one request each at a time (default: 1; with --trace 4)");
  AddNumber(command, "--peers", o.peers,
            "Agents on the side that has many (default: 1, or the number of servers)");
  AddChoice(command, "--scheme", o.scheme, {"manytoone", "onetomany"},
            "Which side has many agents: the initiators or the targets");
}

void DeclareLoad(CLI::App* command, BenchOptions& o) {
  AddNumber(command, "-n,--iters,--num-iter,--num_iter", o.iters,
            "Measured requests of each thread (default: 10; with --latency 10000; with --measure "
            "streaming or migration 30, memory 1000)");
  AddNumber(command, "--requests", o.requests,
            "Measured requests of all threads together (default: with --model 16, with --trace "
            "all)");
  AddDuration(command, "-D,--duration", o.duration,
              "Measures for this time in place of a number of requests (default: with --peers, "
              "--rate or --measure rate 2s)")
      ->default_str("");
  AddNumber(command, "--warmup,--warmup-iter,--warmup_iter", o.warmup,
            "Requests of each thread before the measured ones (default: 2; with --latency 100)");
  const auto check = [](std::string_view text) { return ParseRate(text).status(); };
  AddChecked(command, "--rate", o.rate, "N[%]",
             "Open loop: requests a second, or a percentage of closed-loop throughput, e.g. 50% "
             "(default: closed loop)",
             check);
  AddChoice(command, "--arrivals", o.arrivals, {"constant", "poisson"},
            "Spacing of the requests with --rate");
  AddNumber(command, "--seed", o.seed,
            "Random seed for block order, content, arrivals and injected faults");
  AddDuration(command, "--timeout", o.timeout, "Deadline of one request");
}

void DeclareInstances(CLI::App* command, BenchOptions& o) {
  AddKvSide(command, o.prefill);
  AddKvSide(command, o.decode);
  AddChoice(command, "--measure", o.measure, kv_bench::ModeNames(),
            "rate: beside a plain write of the same runs; streaming: layer by layer during "
            "prefill; migration: while the request goes on; memory: retained after requests");
  AddDuration(command, "--layer-time", o.layer_time,
              "Simulated time to compute a layer, with --measure streaming; a token, with "
              "migration");
}

void DeclareOutput(CLI::App* command, BenchOptions& o) {
  AddJson(command, o.json);
  command->add_flag("--csv", o.csv, "Prints one line of CSV for each result in place of text");
  AddNumber(command, "--timeline", o.timeline,
            "With --json: when each of the first N requests of a result was posted, began, was "
            "notified and ended (default: no request)");
}

}  // namespace

void DeclareBenchOptions(CLI::App* command, BenchOptions& o) {
  for (const auto& [group, declare] : {std::pair(kWhere, &DeclareWhere),
                                       {kWhat, &DeclareWhat},
                                       {kInstances, &DeclareInstances},
                                       {kHow, &DeclareHow},
                                       {kLoad, &DeclareLoad},
                                       {"Output", &DeclareOutput}}) {
    command->option_defaults()->group(group);
    declare(command, o);
  }

  Exclude(command, "--json", {"--csv"});
  Exclude(command, "--iters", {"--duration", "--requests"});
  Exclude(command, "--duration", {"--requests"});
  Exclude(command, "--start-block-size", {"--block-sizes"});
  for (const char* kv : {"--model", "--trace"}) {
    Exclude(command, kv,
            {"--block-sizes", "--start-block-size", "--max-block-size", "--total", "--latency"});
  }
  Exclude(command, "--trace",
          {"--tokens", "--rate", "--iters", "--warmup", "--bidirectional", "--peers"});
  Exclude(command, "--latency", {"--threads", "--bidirectional", "--total", "--timeline"});
  Exclude(command, "--rate", {"--bidirectional"});
  command->get_option("--arrivals")->needs(command->get_option("--rate"));
  command->get_option("--timeline")->needs(command->get_option("--json"));
  command->get_option("--answer")->needs(command->get_option("--latency"));
  for (const char* option : {"--cache-size", "--speedup"}) {
    command->get_option(option)->needs(command->get_option("--trace"));
  }
}

void NoteGivenOptions(const CLI::App* command, BenchOptions& o) {
  o.has_duration = command->get_option("--duration")->count() > 0;
  o.has_layer_time = command->get_option("--layer-time")->count() > 0;
  const auto of_instances = [](const CLI::Option& option) {
    return option.get_group() == kInstances;
  };
  const auto not_for_instances = [&](const CLI::Option& option) {
    return !of_instances(option) &&
           std::ranges::find(kForInstancesToo, option.get_name()) == kForInstancesToo.end();
  };
  const std::string instance = FirstGiven(command, of_instances);
  o.instances = !instance.empty();
  const std::string other = FirstGiven(command, not_for_instances);
  if (o.instances && !other.empty()) {
    throw CLI::ValidationError(absl::StrCat(instance, " excludes ", other));
  }
}

}  // namespace kvxfer::cli
