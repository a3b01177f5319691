// The table of `kvxfer bench`.

#include "absl/strings/str_cat.h"
#include "src/cli/bench/report.h"
#include "src/cli/common/units.h"

namespace kvxfer::cli {
namespace {

// An open loop has a rate of requests, not of blocks.
bool CountsBlocks(const BenchPlan& plan) { return plan.workload == Workload::kRaw && !plan.rate; }

// Whether a GPU of this host takes part, so that its own copy rate was measured for comparison.
bool HasDevice(const BenchPlan& plan) {
  const MemorySides& memory = plan.cases[0].memory;
  return plan.workload != Workload::kLatency &&
         (memory.here.cuda() || (memory.there.cuda() && plan.workers.servers.empty()));
}

struct Cell {
  Table::Column column{};
  std::string text{};
};

std::vector<Cell> CellsOf(const BenchPlan& plan, const BenchRow& row) {
  const Tally& all = row.ran.all;
  const LatencyHistogram& times = row.ran.times;
  const double p50 = times.Percentile(0.5);
  const double gb = static_cast<double>(all.bytes) * 1e-9;
  std::vector<Cell> cells = {
      {{"block", 8}, FormatBytes(row.bench.block_bytes)},
      {{"blocks", 7}, std::to_string(all.blocks / std::max<uint64_t>(all.requests, 1))},
      {{"GB/s", 7}, FormatFixed(all.gb_per_s(), 2)}};
  cells.push_back(CountsBlocks(plan)
                      ? Cell{{"Mops/s", 7}, FormatFixed(all.per_second(all.blocks) * 1e-6, 3)}
                      : Cell{{"req/s", 8}, FormatFixed(all.per_second(all.requests), 1)});
  if (plan.rate) cells.push_back({{"target req/s", 12}, FormatFixed(row.target_rate, 1)});
  if (HasDevice(plan)) {
    const double whole = row.device.whole;
    cells.push_back(
        {{"% of device copy", 16}, whole > 0 ? FormatFixed(100 * all.gb_per_s() / whole, 1) : "-"});
  }
  for (const auto& [name, fraction] :
       {std::pair("p50", 0.5), {"p90", 0.9}, {"p99", 0.99}, {"p99.9", 0.999}}) {
    cells.push_back({{name, 7}, FormatTime(times.Percentile(fraction) * 1e-6)});
  }
  const auto per_gb = [gb](double seconds) { return gb > 0 ? FormatFixed(seconds / gb, 3) : "-"; };
  cells.push_back({{"max", 7}, FormatTime(times.max() * 1e-6)});
  cells.push_back({{"p99/p50"}, FormatFixed(p50 > 0 ? times.Percentile(0.99) / p50 : 0, 2)});
  cells.push_back({{"CPU s/GB initiator"}, per_gb(row.ran.cpu_seconds)});
  cells.push_back({{"target", 6}, per_gb(row.cpu_seconds_at_targets())});
  if (plan.peers() > 1) cells.push_back({{"min/max peer"}, FormatFixed(row.fairness(), 2)});
  return cells;
}

std::vector<Table::Column> Columns(const BenchPlan& plan) {
  std::vector<Table::Column> columns;
  for (const Cell& cell : CellsOf(plan, {})) columns.push_back(cell.column);
  return columns;
}

std::string Load(const BenchPlan& plan) {
  std::string text;
  if (plan.trace) {
    text = absl::StrCat(plan.trace->requests.size(), " requests of a trace");
  } else if (plan.loop.requests > 0) {
    text = absl::StrCat(plan.loop.requests, " requests");
  } else {
    text = FormatDuration(plan.loop.duration, " ");
  }
  if (plan.rate) absl::StrAppend(&text, ", open loop");
  return text;
}

}  // namespace

BenchTable::BenchTable(const BenchPlan& plan) : plan_(plan), table_(Columns(plan)) {}

std::string BenchTable::Title() const {
  const BenchCase& first = plan_.cases[0];
  std::string text;
  if (plan_.workload == Workload::kLatency) {
    text = absl::StrCat("round trips (notified write, answered by a ",
                        first.by_message ? "message" : "write", "), ", first.memory.Words());
  } else {
    text = absl::StrCat(first.bidirectional ? "bidirectional " : "", first.write ? "write" : "read",
                        " of scattered blocks, ", first.memory.Words());
  }
  if (!plan_.model.empty()) {
    absl::StrAppend(&text, ", ", plan_.model, " tp ", plan_.tp, ", ", first.pieces, " regions");
  }
  if (plan_.tokens > 0) absl::StrAppend(&text, ", ", plan_.tokens, " tokens a request");
  if (plan_.peers() > 1) {
    absl::StrAppend(&text, ", ", plan_.peers(),
                    plan_.workers.initiators > 1 ? " initiators, one target" : " targets");
  }
  if (first.threads > 1) absl::StrAppend(&text, ", ", first.threads, " threads a peer");
  return absl::StrCat(text, ", ", Load(plan_));
}

std::string BenchTable::Line(const BenchRow& row) const {
  std::vector<std::string> texts;
  for (const Cell& cell : CellsOf(plan_, row)) texts.push_back(cell.text);
  return table_.Row(texts);
}

std::string BenchTable::Footer(const BenchRow& row) const {
  std::string text = absl::StrCat(
      "every byte of the first round of each line verified; path ", row.opened.path,
      "\nregistration ", FormatTime(row.opened.register_ms * 1e-3), ", first transfer ",
      FormatTime(row.opened.first_transfer_us * 1e-6), "; resident memory: initiator ",
      FormatBytes(row.ran.rss_bytes), ", target ", FormatBytes(row.rss_bytes_at_targets()));
  if (row.device.whole > 0) {
    absl::StrAppend(&text, "\ndevice copy: one large copy ", FormatFixed(row.device.whole, 2),
                    " GB/s");
    if (row.device.scattered > 0) {
      absl::StrAppend(&text, "; scattered blocks as in the last line, by the copy kernel, ",
                      FormatFixed(row.device.scattered, 2), " GB/s");
    }
  }
  if (row.peak) {
    absl::StrAppend(&text, "\nclosed loop before the run: ", FormatFixed(row.peak->gb_per_s(), 2),
                    " GB/s");
  }
  if (plan_.trace && row.ran.tokens > 0) {
    const double part =
        static_cast<double>(row.ran.hit_tokens) / static_cast<double>(row.ran.tokens);
    absl::StrAppend(&text, "\n", row.ran.tokens, " prompt tokens, ", FormatFixed(100 * part, 1),
                    " % of them already in the target's prefix cache");
  }
  return text;
}

}  // namespace kvxfer::cli
