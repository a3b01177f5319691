// --measure rate: WriteBlocks in turn with a plain Write. Both move the same bytes between the same
// places in the same order. Other load of the machine affects both alike, so that the difference is
// the work that kvxfer does for WriteBlocks.

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/cli/bench/kv/each_case.h"
#include "src/cli/bench/kv/modes.h"
#include "src/cli/bench/kv/source.h"
#include "src/cli/bench/kv/statistics.h"
#include "src/cli/common/stats.h"
#include "src/cli/common/table.h"
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
  Json ToJson(const Case& one) const;
  std::vector<std::string> Cells(const Case& one) const;
};

class RateRun {
 public:
  explicit RateRun(const Source& source) : source_(source) {}

  absl::StatusOr<RateFigures> Measure(Duration duration) {
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
    return figures;
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

Json RateFigures::ToJson(const Case& one) const {
  const auto json = [&](Way way) {
    return Json{{"gb_per_s", gb_per_s(way)},
                {"p50_ms", Median(seconds[way]) * 1e3},
                {"p99_ms", p99(way) * 1e3}};
  };
  Json row = one.ToJson();
  row.update({{"prefill_block_tokens", one.prefill.block_tokens},
              {"decode_block_tokens", one.decode.block_tokens},
              {"target_ranks", targets},
              {"runs_per_rank", plan.runs},
              {"smallest_run", plan.smallest},
              {"largest_run", plan.largest},
              {"bytes", bytes()},
              {"list_ns_per_run", plan.list_ns},
              {"plan_ns_per_run", plan.plan_ns},
              {"turns", ratios.size()},
              {"write_blocks", json(kReshard)},
              {"plain", json(kPlain)},
              {"plain_blocks", paged ? "paged" : "descriptors"},
              {"ratio", Median(ratios)},
              {"ratio_p99", Quantile(ratios, 0.01)}});
  return row;
}

std::vector<std::string> RateFigures::Cells(const Case& one) const {
  const std::string run =
      plan.smallest == plan.largest
          ? FormatBytes(plan.largest)
          : absl::StrCat(FormatBytes(plan.smallest), "-", FormatBytes(plan.largest));
  return {one.model,
          absl::StrCat(one.prefill.tp, ">", one.decode.tp),
          absl::StrCat(one.prefill.order, ">", one.decode.order),
          absl::StrCat(one.prefill.block_tokens, ">", one.decode.block_tokens),
          absl::StrCat(targets),
          absl::StrCat(plan.runs),
          run,
          FormatFixed(plan.list_ns, 2),
          FormatFixed(plan.plan_ns, 1),
          FormatFixed(gb_per_s(kReshard), 2),
          FormatTime(p99(kReshard)),
          FormatFixed(gb_per_s(kPlain), 2) + (paged ? "" : "d"),
          FormatTime(p99(kPlain)),
          FormatFixed(Median(ratios), 2),
          FormatFixed(Quantile(ratios, 0.01), 2)};
}

}  // namespace

absl::StatusOr<Json> MeasureRate(const std::vector<Case>& cases, const Options& options,
                                 Channel& channel) {
  const Table table({{"model", 15},
                     {"tp", 5},
                     {"layout", 9},
                     {"block", 7},
                     {"ranks", 5},
                     {"runs/rank", 9},
                     {"run", 9},
                     {"list ns/run", 11},
                     {"plan ns/run", 11},
                     {"GB/s", 6},
                     {"p99", 7},
                     {"plain GB/s", 10},
                     {"plain p99", 9},
                     {"ratio", 5},
                     {"p99 ratio", 9}});
  return EachCase(cases, options, channel, table,
                  [&](const Source& source) -> absl::StatusOr<Outcome> {
                    const auto figures = RateRun(source).Measure(options.duration);
                    if (!figures.ok()) return figures.status();
                    return Outcome{figures->Cells(source.one()), figures->ToJson(source.one())};
                  });
}

}  // namespace kvxfer::cli::kv_bench
