// --measure memory: what both processes retain after requests have ended, as heap in use and as
// resident memory.

#include <utility>

#include "absl/strings/str_cat.h"
#include "src/cli/bench/kv/modes.h"
#include "src/cli/bench/kv/source.h"
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
    return Report(*figures);
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

  Outcome Report(const Figures& figures) const {
    const Case& one = source_.one();
    const uint32_t blocks = one.BlocksOf(one.prefill);
    Outcome row = one.Row();
    row.json.erase("prefill_layout");
    row.json.erase("decode_layout");
    row.json.update({{"layers", one.kv.layers}, {"blocks", blocks}, {"transfers", transfers_}});
    row.cells.push_back(absl::StrCat(one.kv.layers, " x ", blocks));
    row.cells.push_back(absl::StrCat(one.kv.layers * blocks));
    for (size_t side = 0; side < 2; ++side) {
      const double once = figures.warm.heap[side] - figures.small.heap[side];
      const double each = (figures.end.heap[side] - figures.warm.heap[side]) / transfers_;
      const double growth = figures.end.rss[side] - figures.warm.rss[side];
      Outcome of;
      of.Add("heap_first_bytes", once, FormatFixed(once / 1024, 1) + " KiB");
      of.Add("heap_bytes_per_transfer", each, FormatFixed(each, 0) + " B");
      of.Add("rss_growth_bytes", growth, FormatFixed(growth / 1024, 0) + " KiB");
      row.json[side == 0 ? "prefill" : "decode"] = of.json;
      row.cells.insert(row.cells.end(), of.cells.begin(), of.cells.end());
    }
    return row;
  }

  const Source& source_;
  const uint32_t transfers_;
  uint64_t requests_ = 0;
};

}  // namespace

Mode MemoryMode() {
  // One model: a thousand requests of each model would take minutes and show the same.
  return {.name = "memory",
          .title = "memory retained after requests have ended",
          .iters = 1000,
          .unit = "requests",
          .two_sizes = true,
          .columns =
              "model:15|tp:5|layers x blocks:15|product:8|prefill: heap once:18|heap/request:12|"
              "RSS growth:10|decode: heap once:17|heap/request:12|RSS growth:10",
          .measure = [](const Source& source, const Options& options) {
            return RetainedMemoryRun(source, options.iters).Measure();
          }};
}

}  // namespace kvxfer::cli::kv_bench
