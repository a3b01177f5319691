// --measure rate: WriteBlocks in turn with a plain Write. Both move the same bytes between the same
// places in the same order. Other load of the machine affects both alike, so that the difference is
// the work that kvxfer does for WriteBlocks.

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/cli/bench/kv/modes.h"
#include "src/cli/bench/kv/source.h"
#include "src/cli/common/stats.h"
#include "src/cli/common/units.h"

namespace kvxfer::cli::kv_bench {
namespace {

constexpr size_t kFewestTurns = 20;

enum Way : size_t { kReshard, kPlain };

struct RateFigures {
  PlanFigures plan{};
  size_t targets = 0;  // decode ranks that the prefill rank sends to
  bool paged = false;
  std::array<std::vector<double>, 2> seconds{};  // by Way
  std::vector<double> ratios{};                  // rate of WriteBlocks over that of Write

  uint64_t bytes() const { return plan.bytes * targets; }
  double gb_per_s(Way way) const { return GbPerSecond(bytes(), Median(seconds[way])); }
  double p99(Way way) const { return Quantile(seconds[way], 0.99); }
  Outcome Report(const Case& one) const;
};

class RateRun {
 public:
  explicit RateRun(const Source& source) : source_(source) {}

  absl::StatusOr<Outcome> Measure(Duration duration) {
    RateFigures figures{.targets = source_.shares().size()};
    for (const Share& share : source_.shares()) {
      SharePlan plan = source_.PlanOf(share);
      auto measured = plan.Measure();
      if (!measured.ok()) return measured.status();
      auto plain = plan.Plain();
      if (!plain.ok()) return plain.status();
      figures.plan = *measured;  // the last one's: all ranks take as much
      figures.paged = plain->paged();
      plain_.push_back(*std::move(plain));
    }
    if (absl::Status status = Verify(); !status.ok()) return status;
    const int64_t end = MonotonicNanoseconds() + duration.count();
    while (figures.ratios.size() < kFewestTurns || MonotonicNanoseconds() < end) {
      if (absl::Status status = Turn(figures); !status.ok()) return status;
    }
    return figures.Report(source_.one());
  }

 private:
  // Also touches all memory for the first time and makes the connections.
  absl::Status Verify() {
    for (const Way way : {kReshard, kPlain}) {
      const auto took = Move(way);
      if (!took.ok()) return took.status();
      if (absl::Status status = source_.CheckTarget(); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status Turn(RateFigures& figures) {
    std::array<double, 2> took{};
    const bool odd = figures.ratios.size() % 2 != 0;
    for (const Way way : {odd ? kPlain : kReshard, odd ? kReshard : kPlain}) {
      const auto seconds = Move(way);
      if (!seconds.ok()) return seconds.status();
      took[way] = *seconds;
      figures.seconds[way].push_back(*seconds);
    }
    figures.ratios.push_back(took[kPlain] / took[kReshard]);
    return absl::OkStatus();
  }

  absl::StatusOr<double> Move(Way way) {
    const std::string name = absl::StrCat("request ", ++requests_);
    const int64_t start = MonotonicNanoseconds();
    absl::Status moved = way == kReshard ? source_.Write(name) : WritePlain(name);
    const int64_t end = MonotonicNanoseconds();
    if (!moved.ok()) return moved;
    // A decode rank that receives from several prefill ranks would wait for the others.
    if (absl::Status status = source_.Forget(name); !status.ok()) return status;
    return static_cast<double>(end - start) / 1e9;
  }

  absl::Status WritePlain(const std::string& name) {
    std::vector<Transfer> posted;
    for (size_t i = 0; i < plain_.size(); ++i) {
      auto transfer = source_.WritePlain(source_.shares()[i], plain_[i], name);
      if (!transfer.ok()) return transfer.status();
      posted.push_back(*std::move(transfer));
    }
    return source_.WaitAll(posted);
  }

  const Source& source_;
  std::vector<PlainBlocks> plain_;  // of each share
  uint64_t requests_ = 0;
};

Outcome RateFigures::Report(const Case& one) const {
  const std::string run =
      plan.smallest == plan.largest
          ? FormatBytes(plan.largest)
          : absl::StrCat(FormatBytes(plan.smallest), "-", FormatBytes(plan.largest));
  Outcome row = one.Row();
  row.json.update({{"prefill_block_tokens", one.prefill.block_tokens},
                   {"decode_block_tokens", one.decode.block_tokens},
                   {"smallest_run", plan.smallest},
                   {"bytes", bytes()},
                   {"turns", ratios.size()},
                   {"plain_blocks", paged ? "paged" : "descriptors"}});
  row.cells.push_back(absl::StrCat(one.prefill.order, ">", one.decode.order));
  row.cells.push_back(absl::StrCat(one.prefill.block_tokens, ">", one.decode.block_tokens));
  row.Count("target_ranks", targets);
  row.Count("runs_per_rank", plan.runs);
  row.Add("largest_run", plan.largest, run);
  row.Number("list_ns_per_run", plan.list_ns, 2);
  row.Number("plan_ns_per_run", plan.plan_ns, 1);
  for (const Way way : {kReshard, kPlain}) {
    row.json[way == kReshard ? "write_blocks" : "plain"] = {{"gb_per_s", gb_per_s(way)},
                                                            {"p50_ms", Median(seconds[way]) * 1e3},
                                                            {"p99_ms", p99(way) * 1e3}};
    row.cells.push_back(FormatFixed(gb_per_s(way), 2) + (way == kReshard || paged ? "" : "d"));
    row.cells.push_back(FormatTime(p99(way)));
  }
  row.Number("ratio", Median(ratios), 2);
  row.Number("ratio_p99", Quantile(ratios, 0.01), 2);
  return row;
}

}  // namespace

Mode RateMode() {
  return {.name = "rate",
          .title = "requests beside a plain write of the same runs",
          .alone = true,
          .columns =
              "model:15|tp:5|layout:9|block:7|ranks:5|runs/rank:9|run:9|list ns/run:11|"
              "plan ns/run:11|GB/s:6|p99:7|plain GB/s:10|plain p99:9|ratio:5|p99 ratio:9",
          .measure = [](const Source& source, const Options& options) {
            return RateRun(source).Measure(options.duration);
          }};
}

}  // namespace kvxfer::cli::kv_bench
