// What `kvxfer bench` prints: a table that grows, or one JSON document or CSV at the end.
#ifndef KVXFER_CLI_BENCH_REPORT_H_
#define KVXFER_CLI_BENCH_REPORT_H_

#include <optional>
#include <string>
#include <vector>

#include "src/cli/bench/device_copy.h"
#include "src/cli/bench/group.h"
#include "src/cli/bench/plan.h"
#include "src/cli/common/json_util.h"
#include "src/cli/common/table.h"

namespace kvxfer::cli {

// One configuration's figures.
struct BenchRow {
  BenchCase bench{};
  Opened opened{};
  DeviceCopyRates device{};  // of GPUs of this host that take part
  Ran ran{};
  double target_rate = 0;       // of an open loop, requests a second
  std::optional<Tally> peak{};  // of the closed loop before, where the rate is a part of that

  double gb_per_s() const { return ran.all.gb_per_s(); }
  double per_second(uint64_t count) const;
  double cpu_seconds_at_targets() const;
  uint64_t rss_bytes_at_targets() const;
  // The slowest peer's rate by the fastest's.
  double fairness() const;
};

// {"machine", "version", "date", "results"}; docs/bench.schema.json describes it. Only of whole
// runs.
Json ReportJson(const BenchPlan& plan, const std::vector<BenchRow>& rows);
// A line of names and one for each row; the fields of the JSON that are neither lists nor objects.
std::string ReportCsv(const BenchPlan& plan, const std::vector<BenchRow>& rows);

// For people. Columns follow the kind of run.
class BenchTable {
 public:
  explicit BenchTable(const BenchPlan& plan);
  std::string Header() const { return table_.Header(); }
  std::string Line(const BenchRow& row) const;
  // What is moved, how, and where to; before the table.
  std::string Title() const;
  // Of the last row: what the columns leave out.
  std::string Footer(const BenchRow& row) const;

 private:
  const BenchPlan& plan_;
  const Table table_;
};

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_BENCH_REPORT_H_
