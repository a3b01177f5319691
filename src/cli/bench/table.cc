// The table of `kvxfer bench`.

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "src/cli/bench/report.h"
#include "src/cli/common/units.h"

namespace kvxfer::cli {
namespace {

// Three figures are enough for a time.
std::string TimeCell(double us) { return FormatFixed(us, us < 100 ? 1 : 0); }

// What an open loop is held to are requests.
bool CountsBlocks(const BenchPlan& plan) { return plan.workload == Workload::kRaw && !plan.rate; }

// Whether a GPU of this host takes part, whose own copy is a measure of it.
bool HasDevice(const BenchPlan& plan) {
  const MemorySides& memory = plan.cases[0].memory;
  return plan.workload != Workload::kLatency &&
         (memory.here.cuda() || (memory.there.cuda() && plan.workers.servers.empty()));
}

std::vector<Table::Column> Columns(const BenchPlan& plan) {
  std::vector<Table::Column> columns = {{"block", 8}, {"blocks", 7}, {"GB/s", 7}};
  columns.push_back(CountsBlocks(plan) ? Table::Column{"Mops/s", 7} : Table::Column{"req/s", 8});
  if (plan.rate) columns.push_back({"asked", 8});
  if (HasDevice(plan)) columns.push_back({"of copy", 7});
  for (const char* percentile : {"p50 us", "p90 us", "p99 us", "p99.9 us", "max us"}) {
    columns.push_back({percentile, 8});
  }
  columns.push_back({"p99/p50"});
  columns.push_back({"CPU s/GB here"});
  columns.push_back({"there", 6});
  if (plan.peers() > 1) columns.push_back({"min/max peer"});
  return columns;
}

std::string Load(const BenchPlan& plan) {
  std::string text;
  if (plan.trace) {
    text = absl::StrCat(plan.trace->requests.size(), " requests of a trace");
  } else if (plan.loop.requests > 0) {
    text = absl::StrCat(plan.loop.requests, " requests");
  } else {
    text = FormatFixed(Seconds(plan.loop.duration), 1) + " s";
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
    text =
        absl::StrCat("round trips (notified write and answer), ", first.memory.Words(), " memory");
  } else {
    text = absl::StrCat(first.bidirectional ? "bidirectional " : "", first.write ? "write" : "read",
                        " of scattered blocks, ", first.memory.Words(), " memory");
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
  const Tally& all = row.ran.all;
  const LatencyHistogram& times = row.ran.times;
  const uint64_t requests = std::max<uint64_t>(all.requests, 1);
  const double p50 = times.Percentile(0.5);
  std::vector<std::string> cells = {FormatBytes(row.bench.block_bytes),
                                    std::to_string(all.blocks / requests),
                                    FormatFixed(row.gb_per_s(), 2)};
  cells.push_back(CountsBlocks(plan_) ? FormatFixed(row.per_second(all.blocks) * 1e-6, 3)
                                      : FormatFixed(row.per_second(all.requests), 1));
  if (plan_.rate) cells.push_back(FormatFixed(row.target_rate, 1));
  if (HasDevice(plan_)) {
    const double whole = row.device.whole;
    cells.push_back(whole > 0 ? FormatFixed(row.gb_per_s() / whole, 2) : "-");
  }
  for (double fraction : {0.5, 0.9, 0.99, 0.999})
    cells.push_back(TimeCell(times.Percentile(fraction)));
  cells.push_back(TimeCell(times.max()));
  cells.push_back(FormatFixed(p50 > 0 ? times.Percentile(0.99) / p50 : 0, 2));
  const double gb = static_cast<double>(all.bytes) * 1e-9;
  cells.push_back(gb > 0 ? FormatFixed(row.ran.cpu_seconds / gb, 3) : "-");
  cells.push_back(gb > 0 ? FormatFixed(row.cpu_seconds_at_targets() / gb, 3) : "-");
  if (plan_.peers() > 1) cells.push_back(FormatFixed(row.fairness(), 2));
  return table_.Row(cells);
}

std::string BenchTable::Footer(const BenchRow& row) const {
  std::string text = absl::StrCat(
      "every byte of the first round of each line verified; path ", row.opened.path,
      "\nregistering ", FormatFixed(row.opened.register_ms, 2), " ms, first transfer ",
      FormatFixed(row.opened.first_transfer_us * 1e-3, 2), " ms; memory here ",
      FormatBytes(row.ran.rss_bytes), ", there ", FormatBytes(row.rss_bytes_at_targets()));
  if (row.device.whole > 0) {
    absl::StrAppend(&text, "\nthe GPU's own copy: ", FormatFixed(row.device.whole, 2), " GB/s");
    if (row.device.scattered > 0) {
      absl::StrAppend(&text, "; of blocks as in the last line, by its copy kernel: ",
                      FormatFixed(row.device.scattered, 2), " GB/s");
    }
  }
  if (row.peak) {
    absl::StrAppend(&text, "\nclosed loop before: ", FormatFixed(row.peak->gb_per_s(), 2), " GB/s");
  }
  if (plan_.trace && row.ran.tokens > 0) {
    const double part =
        static_cast<double>(row.ran.hit_tokens) / static_cast<double>(row.ran.tokens);
    absl::StrAppend(&text, "\n", row.ran.tokens, " prompt tokens, ", FormatFixed(100 * part, 1),
                    " % of them in the target's prefix cache already");
  }
  return text;
}

}  // namespace kvxfer::cli
