// --measure memory: what both processes retain after requests have ended, as heap in use and as
// resident memory.

#include <utility>

#include "absl/strings/str_cat.h"
#include "src/cli/bench/kv/each_case.h"
#include "src/cli/bench/kv/modes.h"
#include "src/cli/bench/kv/source.h"
#include "src/cli/bench/kv/statistics.h"
#include "src/cli/common/table.h"
#include "src/cli/common/units.h"

namespace kvxfer::cli::kv_bench {
namespace {

constexpr uint32_t kWarmUp = 20;

struct HeldMemory {
  double heap[2] = {};  // bytes, at prefill and at decode
  double rss[2] = {};
};

class RetainedMemoryRun {
 public:
  RetainedMemoryRun(const Source& source, uint32_t transfers)
      : source_(source), transfers_(transfers) {}

  absl::StatusOr<Outcome> Measure() {
    const auto figures = Sample();
    if (!figures.ok()) return figures.status();
    Json row = ToJson(*figures);
    return Outcome{Cells(row), std::move(row)};
  }

 private:
  // Before the first request of all layers, after some, and after all of them.
  struct Figures {
    HeldMemory small{};
    HeldMemory warm{};
    HeldMemory end{};
  };

  absl::StatusOr<Figures> Sample() {
    Figures figures;
    absl::Status status = Requests(kWarmUp, 1);
    if (!status.ok()) return status;
    if (status = Take(figures.small); !status.ok()) return status;
    if (status = Requests(kWarmUp, kAllLayers); !status.ok()) return status;
    if (status = source_.CheckTarget(); !status.ok()) return status;
    if (status = Take(figures.warm); !status.ok()) return status;
    if (status = Requests(transfers_, kAllLayers); !status.ok()) return status;
    if (status = Take(figures.end); !status.ok()) return status;
    return figures;
  }

  absl::Status Requests(uint32_t count, uint32_t layers) {
    for (uint32_t i = 0; i < count; ++i) {
      const std::string name = absl::StrCat("request ", ++requests_);
      absl::Status status = source_.Write(name, 0, layers);
      if (status.ok()) status = source_.Forget(name);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status Take(HeldMemory& sample) const {
    const auto theirs = source_.Ask({{"do", "memory"}});
    if (!theirs.ok()) return theirs.status();
    const Json ours = MemoryJson();
    for (size_t side = 0; side < 2; ++side) {
      const Json& of = side == 0 ? ours : *theirs;
      sample.heap[side] = GetNumber(of, "heap");
      sample.rss[side] = GetNumber(of, "rss");
    }
    return absl::OkStatus();
  }

  Json ToJson(const Figures& figures) const;
  std::vector<std::string> Cells(const Json& row) const;

  const Source& source_;
  const uint32_t transfers_;
  uint64_t requests_ = 0;
};

Json RetainedMemoryRun::ToJson(const Figures& figures) const {
  const Case& one = source_.one();
  Json row = {{"model", one.model},         {"prefill_tp", one.prefill.tp},
              {"decode_tp", one.decode.tp}, {"tokens", one.tokens},
              {"layers", one.kv.layers},    {"blocks", one.BlocksOf(one.prefill)},
              {"transfers", transfers_}};
  for (size_t side = 0; side < 2; ++side) {
    row[side == 0 ? "prefill" : "decode"] = {
        {"heap_first_bytes", figures.warm.heap[side] - figures.small.heap[side]},
        {"heap_bytes_per_transfer",
         (figures.end.heap[side] - figures.warm.heap[side]) / transfers_},
        {"rss_growth_bytes", figures.end.rss[side] - figures.warm.rss[side]}};
  }
  return row;
}

std::vector<std::string> RetainedMemoryRun::Cells(const Json& row) const {
  const Case& one = source_.one();
  const uint32_t blocks = one.BlocksOf(one.prefill);
  std::vector<std::string> cells = {one.model, absl::StrCat(one.prefill.tp, ">", one.decode.tp),
                                    absl::StrCat(one.kv.layers, " x ", blocks),
                                    absl::StrCat(one.kv.layers * blocks)};
  for (const char* side : {"prefill", "decode"}) {
    const Json& of = row[side];
    cells.push_back(FormatFixed(GetNumber(of, "heap_first_bytes") / 1024, 1) + " KiB");
    cells.push_back(FormatFixed(GetNumber(of, "heap_bytes_per_transfer"), 0) + " B");
    cells.push_back(FormatFixed(GetNumber(of, "rss_growth_bytes") / 1024, 0) + " KiB");
  }
  return cells;
}

}  // namespace

absl::StatusOr<Json> MeasureRetainedMemory(const std::vector<Case>& cases, const Options& options,
                                           Channel& channel) {
  const Table table({{"model", 15},
                     {"tp", 5},
                     {"layers x blocks", 15},
                     {"product", 8},
                     {"prefill: heap once", 18},
                     {"heap/request", 12},
                     {"RSS growth", 10},
                     {"decode: heap once", 17},
                     {"heap/request", 12},
                     {"RSS growth", 10}});
  return EachCase(cases, options, channel, table, [&](const Source& source) {
    return RetainedMemoryRun(source, options.iters).Measure();
  });
}

}  // namespace kvxfer::cli::kv_bench
