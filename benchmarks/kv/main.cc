// KV caches between instances of unlike tensor parallelism, of real models, between two processes.
//
//   kvxfer_kv_bench                                  rates, beside a plain Write of the same runs
//   kvxfer_kv_bench --streaming --layer-us 2000      layer by layer
//   kvxfer_kv_bench --memory                         what is kept of a thousand requests
//
// docs/performance.md says what the figures are.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <utility>

#include "benchmarks/kv/modes.h"
#include "benchmarks/kv/target.h"
#include "kvxfer/log.h"
#include "src/cli/exit_status.h"
#include "src/core/strings.h"

namespace kvxfer::kv_bench {
namespace {

struct Texts {
  std::string memory = "mapped";
  bool streaming = false;
  bool migration = false;
  bool keeps = false;  // --memory
};

void AddShape(CLI::App& app, Options& options) {
  const auto is_tp = CLI::Range(1, 1024);
  const auto is_block = CLI::Range(1, 4096);
  const auto is_layout = CLI::IsMember({"NHD", "HND"});
  app.add_option("--model", options.model,
                 "A known model or a config.json; all known ones without it");
  app.add_option("--prefill-tp", options.prefill_tp, "Ranks of prefill; without it 4>2 and 8>4")
      ->check(is_tp);
  app.add_option("--decode-tp", options.decode_tp, "Ranks of decode")->check(is_tp);
  app.add_option("--prefill-block", options.prefill_block, "Tokens of a block")
      ->check(is_block)
      ->capture_default_str();
  app.add_option("--decode-block", options.decode_block, "Tokens of a block")
      ->check(is_block)
      ->capture_default_str();
  app.add_option("--layout-src", options.layout_src, "Prefill: NHD or HND")
      ->check(is_layout)
      ->capture_default_str();
  app.add_option("--layout-dst", options.layout_dst, "Decode: NHD or HND")
      ->check(is_layout)
      ->capture_default_str();
  app.add_option("--tokens", options.tokens, "Of a request")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
}

void AddRun(CLI::App& app, Options& options, Texts& texts) {
  app.add_option("--backend", options.backend, "loopback measures within one process")
      ->check(CLI::IsMember({"shm", "tcp", "loopback"}))
      ->capture_default_str();
  app.add_option("--host-memory", texts.memory, cli::kMemoryHelp)->capture_default_str();
  app.add_option("--seconds", options.seconds, "Of a case")
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str();
  CLI::Option* const streaming =
      app.add_flag("--streaming", texts.streaming, "Layer by layer, while the next is computed");
  app.add_flag("--migration", texts.migration, "A request that moves while it goes on")
      ->excludes(streaming);
  app.add_option("--layer-us", options.layer_us, "Of computing, with --streaming")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  app.add_option("--rounds", options.rounds, "With --streaming")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  app.add_flag("--memory", texts.keeps, "What is kept of requests that are over")
      ->excludes(streaming);
  app.add_option("--transfers", options.transfers, "With --memory")
      ->check(CLI::Range(1, 10'000'000))
      ->capture_default_str();
  app.add_option("--json", options.json, "File for the figures");
}

absl::Status WriteJson(const Options& options, const cli::Json& rows) {
  if (options.json.empty()) return absl::OkStatus();
  const char* const mode = options.mode == Mode::kThroughput  ? "throughput"
                           : options.mode == Mode::kStreaming ? "streaming"
                           : options.mode == Mode::kMigration ? "migration"
                                                              : "memory";
  const cli::Json document = {{"mode", mode}, {"backend", options.backend}, {"results", rows}};
  std::ofstream file(options.json);
  file << cli::DumpJson(document, 2) << "\n";
  file.close();
  return file ? absl::OkStatus() : absl::InternalError(absl::StrCat("cannot write ", options.json));
}

absl::Status Run(const Options& options) {
  const auto cases = CasesOf(options);
  if (!cases.ok()) return cases.status();
  // Before any agent is made.
  auto target = TargetProcess::Start(*cases, options);
  if (!target.ok()) return target.status();
  const auto measure = options.mode == Mode::kThroughput  ? MeasureThroughput
                       : options.mode == Mode::kStreaming ? MeasureStreaming
                       : options.mode == Mode::kMigration ? MeasureMigration
                                                          : MeasureMemory;
  const auto rows = measure(*cases, options, (*target)->channel());
  if (!rows.ok()) return rows.status();
  if (absl::Status ended = (*target)->End(); !ended.ok()) return ended;
  return WriteJson(options, *rows);
}

int Main(int argc, char** argv) {
  CLI::App app("KV caches between instances of unlike tensor parallelism.", "kvxfer_kv_bench");
  Options options;
  Texts texts;
  AddShape(app, options);
  AddRun(app, options, texts);
  CLI11_PARSE(app, argc, argv);
  SetLogLevel(LogLevel::kError);
  options.mode = texts.streaming   ? Mode::kStreaming
                 : texts.migration ? Mode::kMigration
                 : texts.keeps     ? Mode::kMemory
                                   : Mode::kThroughput;
  const auto memory = cli::ParseMemorySource(texts.memory);
  absl::Status status = memory.status();
  if (status.ok()) {
    options.memory = *memory;
    status = Run(options);
  }
  if (!status.ok()) std::fprintf(stderr, "kvxfer_kv_bench: %s\n", status.ToString().c_str());
  return static_cast<int>(cli::ExitStatusOf(status.code()));
}

}  // namespace
}  // namespace kvxfer::kv_bench

int main(int argc, char** argv) { return kvxfer::kv_bench::Main(argc, argv); }
