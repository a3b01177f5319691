// What is kept of requests that are over: the heap in use of both processes, and what is resident.

#include <utility>

#include "absl/strings/str_cat.h"
#include "benchmarks/kv/each_case.h"
#include "benchmarks/kv/modes.h"
#include "benchmarks/kv/source.h"
#include "benchmarks/kv/statistics.h"
#include "src/cli/table.h"
#include "src/cli/units.h"

namespace kvxfer::kv_bench {
namespace {

using cli::FormatFixed;
using cli::Json;

constexpr int kWarmUp = 20;

struct Sample {
  double heap[2] = {};  // of prefill, of decode
  double rss[2] = {};
};

class Memory {
 public:
  Memory(const Source& source, uint32_t transfers) : source_(source), transfers_(transfers) {}

  // Before the first request of all layers; after some; after all of them.
  struct Figures {
    Sample small{};
    Sample warm{};
    Sample end{};
  };

  absl::StatusOr<Figures> Measure() {
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

 private:
  absl::Status Requests(uint32_t count, uint32_t layers) {
    for (uint32_t i = 0; i < count; ++i) {
      const std::string name = absl::StrCat("request ", ++requests_);
      absl::Status status = source_.Write(name, 0, layers);
      if (status.ok()) status = source_.Forget(name);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status Take(Sample& sample) const {
    const auto theirs = source_.Ask({{"do", "memory"}});
    if (!theirs.ok()) return theirs.status();
    const Json ours = MemoryJson();
    for (size_t side = 0; side < 2; ++side) {
      const Json& of = side == 0 ? ours : *theirs;
      sample.heap[side] = cli::GetNumber(of, "heap");
      sample.rss[side] = cli::GetNumber(of, "rss");
    }
    return absl::OkStatus();
  }

  const Source& source_;
  const uint32_t transfers_;
  uint64_t requests_ = 0;
};

Json ToJson(const Case& one, uint32_t transfers, const Memory::Figures& figures) {
  Json row = {{"model", one.model},         {"prefill_tp", one.prefill.tp},
              {"decode_tp", one.decode.tp}, {"tokens", one.tokens},
              {"layers", one.kv.layers},    {"blocks", one.BlocksOf(one.prefill)},
              {"transfers", transfers}};
  for (size_t side = 0; side < 2; ++side) {
    row[side == 0 ? "prefill" : "decode"] = {
        {"heap_first_bytes", figures.warm.heap[side] - figures.small.heap[side]},
        {"heap_bytes_per_transfer", (figures.end.heap[side] - figures.warm.heap[side]) / transfers},
        {"rss_growth_bytes", figures.end.rss[side] - figures.warm.rss[side]}};
  }
  return row;
}

std::vector<std::string> Row(const Case& one, const Json& row) {
  const uint32_t blocks = one.BlocksOf(one.prefill);
  std::vector<std::string> cells = {one.model, absl::StrCat(one.prefill.tp, ">", one.decode.tp),
                                    absl::StrCat(one.kv.layers, " x ", blocks),
                                    absl::StrCat(one.kv.layers * blocks)};
  for (const char* side : {"prefill", "decode"}) {
    const Json& of = row[side];
    cells.push_back(FormatFixed(cli::GetNumber(of, "heap_first_bytes"), 0));
    cells.push_back(FormatFixed(cli::GetNumber(of, "heap_bytes_per_transfer"), 0));
    cells.push_back(FormatFixed(cli::GetNumber(of, "rss_growth_bytes") / 1024, 0));
  }
  return cells;
}

}  // namespace

absl::StatusOr<Json> MeasureMemory(const std::vector<Case>& cases, const Options& options,
                                   cli::Channel& channel) {
  const cli::Table table({{"model", 15},
                          {"tp", 5},
                          {"layers x blocks", 15},
                          {"product", 8},
                          {"prefill: first B", 16},
                          {"B/request", 9},
                          {"rss KiB", 7},
                          {"decode: first B", 15},
                          {"B/request", 9},
                          {"rss KiB", 7}});
  Json rows = Json::array();
  const auto measure = [&](const Source& source) -> absl::StatusOr<std::vector<std::string>> {
    const auto figures = Memory(source, options.transfers).Measure();
    if (!figures.ok()) return figures.status();
    rows.push_back(ToJson(source.one(), options.transfers, *figures));
    return Row(source.one(), rows.back());
  };
  absl::Status status = EachCase(cases, /*alone=*/false, options, channel, table, measure);
  if (!status.ok()) return status;
  return rows;
}

}  // namespace kvxfer::kv_bench
