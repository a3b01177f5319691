// `kvxfer bench`: how fast, how evenly and at what CPU cost blocks move.

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kvxfer/log.h"
#include "src/cli/bench/kv/modes.h"
#include "src/cli/bench/plan.h"
#include "src/cli/bench/report.h"
#include "src/cli/bench/workers.h"
#include "src/cli/common/bootstrap.h"
#include "src/cli/common/cache_memory.h"
#include "src/cli/common/command_line.h"
#include "src/cli/common/stats.h"
#include "src/cli/common/table.h"
#include "src/cli/common/units.h"

namespace kvxfer::cli {
namespace {

// Length of the closed loop whose rate "--rate 50%" is a share of.
constexpr Duration kPeakRun = std::chrono::seconds(1);

absl::Status CheckMemory(const BenchPlan& plan) {
  for (const BenchCase& bench : plan.cases) {
    absl::Status fits =
        CheckFits(plan.needs(bench), "a smaller --total, fewer --tokens or --threads");
    if (!fits.ok()) return fits;
  }
  return absl::OkStatus();
}

// Measures only GPUs of this host: a server may have other ones.
absl::StatusOr<DeviceCopyRates> DeviceRates(const BenchPlan& plan, const BenchCase& bench) {
  if (plan.workload == Workload::kLatency) return DeviceCopyRates{};  // there is no rate
  MemorySides sides = bench.memory;
  if (!plan.workers.servers.empty()) sides.there = MemoryChoice();
  return MeasureDeviceCopy(sides, bench.block_bytes, bench.pieces * bench.request_blocks);
}

// Holds back the library's warnings during a run. If the run fails, its status says why, once. If
// it succeeds, the warnings qualify its figures and are printed at its end.
class HeldWarnings {
 public:
  HeldWarnings() {
    SetLogSink([this](LogLevel, std::string_view line) {
      const std::lock_guard lock(mutex_);
      text_.append("kvxfer: warning: ").append(line).append("\n");
    });
  }
  ~HeldWarnings() { SetLogSink({}); }
  HeldWarnings(const HeldWarnings&) = delete;
  HeldWarnings& operator=(const HeldWarnings&) = delete;

  void Print() const {
    FlushLog(std::chrono::milliseconds(200));
    const std::lock_guard lock(mutex_);
    std::fputs(text_.c_str(), stderr);
  }

 private:
  mutable std::mutex mutex_;
  std::string text_;  // the logging thread writes it until the sink is replaced
};

// Sets up, warms up and measures one configuration after the other, with a progress bar.
class CaseRun {
 public:
  // Calls `opened` when the first configuration is set up: by then, wrong options have been
  // refused.
  CaseRun(const BenchPlan& plan, BenchWorkers& workers, bool bar, std::function<void()> opened)
      : plan_(plan), workers_(workers), show_bar_(bar), opened_(std::move(opened)) {}

  absl::StatusOr<BenchRow> Run(const BenchCase& bench) {
    BenchRow row{.bench = bench};
    label_ = FormatBytes(bench.block_bytes);
    if (absl::Status s = Into(row.device, DeviceRates(plan_, bench)); !s.ok()) return s;
    {
      const ProgressBar bar(label_ + " verify", 1, show_bar_);
      if (absl::Status s = Into(row.opened, workers_.Open(bench)); !s.ok()) return s;
    }
    if (opened_) std::exchange(opened_, nullptr)();
    if (plan_.warmup > 0) {
      if (auto s = Load({.requests = plan_.warmup}, "warm up"); !s.ok()) return s.status();
    }
    LoopSpec spec = plan_.loop;
    if (plan_.rate) {
      if (absl::Status s = FindRate(row); !s.ok()) return s;
      spec.rate = row.target_rate;
    }
    absl::StatusOr<Ran> ran = Load(spec, "measure");
    if (!ran.ok()) return ran.status();
    row.ran = std::move(*ran);
    if (row.ran.all.requests > 0) return row;
    return absl::DeadlineExceededError(
        "no request came due within --duration; make it longer or the --rate higher");
  }

 private:
  absl::Status FindRate(BenchRow& row) {
    row.target_rate = plan_.rate->per_second;
    if (plan_.rate->percent == 0) return absl::OkStatus();
    const absl::StatusOr<Ran> peak = Load({.duration = kPeakRun}, "find the peak");
    if (!peak.ok()) return peak.status();
    row.peak = peak->all;
    row.target_rate = peak->all.per_second(peak->all.requests) * plan_.rate->percent / 100;
    return absl::OkStatus();
  }

  absl::StatusOr<Ran> Load(const LoopSpec& spec, const char* what) {
    ProgressBar bar(absl::StrCat(label_, " ", what), 1, show_bar_);
    const int64_t start = MonotonicNanoseconds();
    const TraceSpec* trace = plan_.trace ? &*plan_.trace : nullptr;
    return workers_.Run(spec, trace, [&](uint64_t moved) {
      const auto passed = static_cast<double>(MonotonicNanoseconds() - start);
      bar.UpdatePart(spec.requests > 0
                         ? static_cast<double>(moved) / static_cast<double>(spec.requests)
                         : passed / static_cast<double>(spec.duration.count()));
    });
  }

  const BenchPlan& plan_;
  BenchWorkers& workers_;
  const bool show_bar_;
  std::function<void()> opened_;
  std::string label_;
};

// At the end of the run: a script that reads JSON or CSV from a pipe gets nothing or all of it.
void PrintWhole(const BenchOptions& options, const BenchPlan& plan,
                const std::vector<BenchRow>& rows) {
  if (options.json) std::puts(DumpJsonLines(ReportJson(plan, rows)).c_str());
  if (options.csv) std::puts(ReportCsv(plan, rows).c_str());
}

absl::Status RunCases(const BenchOptions& options, BenchPlan& plan, BenchWorkers& workers) {
  const bool text = !options.json && !options.csv;
  const BenchTable table(plan);
  CaseRun run(plan, workers, text || isatty(STDOUT_FILENO) == 1, [&] {
    if (!text) return;
    std::printf("%s\n%s\n", table.Title().c_str(), table.Header().c_str());
    std::fflush(stdout);
  });
  std::vector<BenchRow> rows;
  for (BenchCase& bench : plan.cases) {
    bench.targets = workers.targets();
    absl::StatusOr<BenchRow> row = run.Run(bench);
    if (!row.ok()) return row.status();
    if (text) {
      std::puts(table.Line(*row).c_str());
      std::fflush(stdout);
    }
    rows.push_back(std::move(*row));
  }
  ExpectPeersToLeave();
  if (absl::Status s = workers.Close(); !s.ok()) return s;
  if (text) std::puts(table.Footer(rows.back()).c_str());
  PrintWhole(options, plan, rows);
  return absl::OkStatus();
}

absl::Status RunBench(const BenchOptions& options) {
  absl::StatusOr<BenchPlan> plan = MakePlan(options);
  if (!plan.ok()) return plan.status();
  if (absl::Status s = CheckMemory(*plan); !s.ok()) return s;
  RaiseDescriptorLimit();
  const HeldWarnings warnings;
  const absl::StatusOr<std::unique_ptr<BenchWorkers>> workers = BenchWorkers::Start(plan->workers);
  if (!workers.ok()) return workers.status();
  absl::Status status = RunCases(options, *plan, **workers);
  if (!status.ok()) return (*workers)->Explain(status);
  warnings.Print();
  return status;
}

absl::Status RunKvBench(const BenchOptions& options) {
  const HeldWarnings warnings;
  absl::Status status = kv_bench::Run(options);
  if (status.ok()) warnings.Print();
  return status;
}

}  // namespace

void AddBench(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "bench",
      "Measures transfers: rates, latency, jitter, CPU time, many peers, traces and KV caches");
  const auto options = std::make_shared<BenchOptions>();
  DeclareBenchOptions(command, *options);
  command->callback([command, options, &action] {
    NoteGivenOptions(command, *options);
    action = [options] { return options->instances ? RunKvBench(*options) : RunBench(*options); };
  });
}

}  // namespace kvxfer::cli
