#include "src/cli/bench/options.h"

#include <CLI/CLI.hpp>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/cli/common/memory_choice.h"
#include "src/cli/common/options.h"

namespace kvxfer::cli {
namespace {

constexpr const char* kWhere = "Where";
constexpr const char* kWhat = "What is moved";
constexpr const char* kHow = "How much of it at once";
constexpr const char* kLoad = "How long, and under which load";
constexpr const char* kInstances = "KV caches of unlike instances";
constexpr std::initializer_list<const char*> kInstanceOptions = {
    "--prefill-tp", "--decode-tp",  "--prefill-block", "--decode-block",
    "--layout-src", "--layout-dst", "--measure",       "--layer-time"};
constexpr const char* kOutput = "Output";

void Group(CLI::App* command, const char* group, std::initializer_list<const char*> names) {
  for (const char* name : names) command->get_option(name)->group(group);
}

void Exclude(CLI::App* command, const char* name, std::initializer_list<const char*> others) {
  for (const char* other : others) {
    command->get_option(name)->excludes(command->get_option(other));
  }
}

// Which options go together is said by who asks for both; here it would hide what each means.
class PlainFormatter : public CLI::Formatter {
 public:
  std::string make_option_opts(const CLI::Option* option) const override {
    std::string text;
    if (option->get_type_size() == 0) return text;
    text += " " + get_label(option->get_type_name());
    if (!option->get_default_str().empty()) text += "=" + option->get_default_str();
    if (option->get_expected_max() > 1) text += " ...";
    return text;
  }
};

void DeclareWhere(CLI::App* command, BenchOptions& o) {
  command->add_option("server", o.servers,
                      "host:port of kvxfer serve, several with --scheme onetomany (default: the "
                      "targets are processes of this run)");
  command->add_option("--backend", o.backend,
                      "tcp, shm, faulty:tcp, ... (default: the best; with --prefill-tp: shm)");
  command->add_option("--listen", o.listen, kClientListenHelp);
  Group(command, kWhere, {"server", "--backend", "--listen"});
}

void DeclareWhat(CLI::App* command, BenchOptions& o) {
  command->add_option("--op,--op-type,--op_type", o.op, "write or read")
      ->transform(CLI::IsMember(std::vector<std::string>{"write", "read"}, CLI::ignore_case));
  command->add_option("--memory", o.memory, kMemoryHelp);
  AddSizes(command, "-s,--block-sizes,--size", o.block_sizes, "",
           "One size, a range that doubles, or a list (default: 4K:4M; of --latency 4K)");
  AddSize(command, "--start-block-size,--start_block_size", o.start_block_size,
          "A range by its ends (default: --block-sizes)")
      ->default_str("");
  AddSize(command, "--max-block-size,--max_block_size", o.max_block_size,
          "Its last size (default: --block-sizes)")
      ->default_str("");
  AddSize(command, "--total,--total-buffer-size,--total_buffer_size", o.total,
          "Bytes of one round, shared by all peers and threads");
  command->add_option("--model", o.model,
                      "KV caches of this model in place of raw blocks: a name or a config.json "
                      "(default with --prefill-tp: all known ones)");
  AddNumber(command, "--tokens", o.tokens, "Of a request, with --model or --prefill-tp")
      ->default_str(std::to_string(kDefaultTokens));
  AddNumber(command, "--tp", o.tp, "Ranks the model is split over; one rank's part is moved");
  AddNumber(command, "--block-tokens", o.block_tokens, "Of one KV block");
  command->add_option(
      "--trace", o.trace,
      "Requests as they arrive in a file of timestamp, input_length, hash_ids (default: "
      "made ones)");
  AddSize(command, "--cache-size", o.cache_bytes, "KV cache of each side, with --trace");
  AddNumber(command, "--speedup", o.speedup, "The trace's time goes by so much faster");
  Group(command, kWhat,
        {"--op", "--memory", "--block-sizes", "--start-block-size", "--max-block-size", "--total",
         "--model", "--tokens", "--tp", "--block-tokens", "--trace", "--cache-size", "--speedup"});
}

void DeclareHow(CLI::App* command, BenchOptions& o) {
  command->add_flag("--latency", o.latency,
                    "Round trips: a notified write and the application's answer");
  command->add_flag("-b,--bidirectional", o.bidirectional, "The target moves as much back");
  AddNumber(command, "--threads,--num-threads,--num_threads", o.threads,
            "Of each peer, each with one request at a time (default: 1; of --trace 4)");
  AddNumber(command, "--peers", o.peers, "Agents at the many end (default: 1)");
  command->add_option("--scheme", o.scheme,
                      "manytoone: --peers initiators, one target; onetomany: the other way round");
  Group(command, kHow, {"--latency", "--bidirectional", "--threads", "--peers", "--scheme"});
}

void DeclareLoad(CLI::App* command, BenchOptions& o) {
  AddNumber(command, "-n,--iters,--num-iter,--num_iter,--rounds", o.iters,
            "Measured requests of each thread (default: 10; of --latency 10000; of "
            "--measure streaming and migration 30, kept 1000)");
  AddNumber(command, "--requests", o.requests,
            "Measured requests in all, with --model (default: 16) or --trace (all)");
  AddDuration(command, "-D,--duration", o.duration,
              "In place of a number (default with --peers, --rate or --measure rate: 2s)")
      ->default_str("");
  AddNumber(command, "--warmup,--warmup-iter,--warmup_iter", o.warmup,
            "Requests of each thread before, not measured (default: 2; of --latency 100)");
  command->add_option(
      "--rate", o.rate,
      "Open loop: requests a second, or a part of a closed loop's, as 50% (default: closed loop)");
  command->add_option("--arrivals", o.arrivals, "With --rate: constant or poisson");
  AddNumber(command, "--seed", o.seed, "Of block order, content, arrivals and injected faults");
  AddDuration(command, "--timeout", o.timeout, "Longest time for one request");
  Group(command, kLoad,
        {"--iters", "--requests", "--duration", "--warmup", "--rate", "--arrivals", "--seed",
         "--timeout"});
}

void DeclareInstances(CLI::App* command, BenchOptions& o) {
  AddNumber(command, "--prefill-tp", o.prefill_tp,
            "Ranks of the prefill instance, which gives KV caches to the decode instance (default: "
            "no instances)");
  AddNumber(command, "--decode-tp", o.decode_tp,
            "Ranks of the decode instance (default: no instances)");
  AddNumber(command, "--prefill-block", o.prefill_block, "Tokens of one block there");
  AddNumber(command, "--decode-block", o.decode_block, "Tokens of one block there");
  command->add_option("--layout-src", o.layout_src,
                      "Of a block of prefill: NHD token by token, HND head by head");
  command->add_option("--layout-dst", o.layout_dst, "Of a block of decode");
  command->add_option(
      "--measure", o.measure,
      "rate: beside a plain write of the same runs; streaming: layer by layer; "
      "migration: while it goes on; kept: what memory is kept of requests that are over");
  AddDuration(command, "--layer-time", o.layer_time,
              "Of computing a layer, with --measure streaming; a token, with migration")
      ->default_str("1ms");
  Group(command, kInstances, kInstanceOptions);
}

void RelateInstances(CLI::App* command) {
  for (const char* name : kInstanceOptions) {
    for (const char* tp : {"--prefill-tp", "--decode-tp"}) {
      if (std::string_view(name) != tp) {
        command->get_option(name)->needs(command->get_option(tp));
      }
    }
  }
  Exclude(command, "--prefill-tp",
          {"server",           "--listen",  "--op",       "--block-sizes",   "--start-block-size",
           "--max-block-size", "--total",   "--tp",       "--block-tokens",  "--trace",
           "--cache-size",     "--speedup", "--latency",  "--bidirectional", "--threads",
           "--peers",          "--scheme",  "--requests", "--warmup",        "--rate",
           "--arrivals",       "--seed",    "--timeout",  "--csv",           "--timeline"});
}

}  // namespace

void DeclareBenchOptions(CLI::App* command, BenchOptions& o) {
  command->formatter(std::make_shared<PlainFormatter>());
  DeclareWhere(command, o);
  DeclareWhat(command, o);
  DeclareInstances(command, o);
  DeclareHow(command, o);
  DeclareLoad(command, o);
  command->add_flag("--json", o.json, "One JSON document, at the end");
  command->add_flag("--csv", o.csv, "A line of CSV for each result, at the end");
  AddNumber(command, "--timeline", o.timeline,
            "With --json: when each of the first so many requests of a result was "
            "posted, began, was told of and ended (default: of none)");
  Group(command, kOutput, {"--json", "--csv", "--timeline"});

  RelateInstances(command);
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
  for (const char* option : {"--cache-size", "--speedup"}) {
    command->get_option(option)->needs(command->get_option("--trace"));
  }
}

}  // namespace kvxfer::cli
