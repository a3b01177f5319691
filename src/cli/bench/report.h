// The output of `kvxfer bench`: a table that grows, or a JSON document or CSV at the end.
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

// The figures of one configuration.
struct BenchRow {
  BenchCase bench{};
  Opened opened{};
  DeviceCopyRates device{};  // of GPUs of this host that take part
  Ran ran{};
  double target_rate = 0;       // requests a second in an open loop
  std::optional<Tally> peak{};  // of the closed loop that "--rate 50%" is a percentage of

  double gb_per_s() const { return ran.all.gb_per_s(); }
  double per_second(uint64_t count) const;
  double cpu_seconds_at_targets() const;
  uint64_t rss_bytes_at_targets() const;
  // The rate of the slowest peer divided by that of the fastest.
  double fairness() const;
};

// {"machine", "version", "date", "results"}; docs/bench.schema.json describes it. For complete runs
// only.
Json ReportJson(const BenchPlan& plan, const std::vector<BenchRow>& rows);
// One line of names and one for each row, with the JSON fields that are neither lists nor objects.
std::string ReportCsv(const BenchPlan& plan, const std::vector<BenchRow>& rows);

// For people. The columns depend on the kind of run.
class BenchTable {
 public:
  explicit BenchTable(const BenchPlan& plan);
  std::string Header() const { return table_.Header(); }
  std::string Line(const BenchRow& row) const;
  // What is moved and how; for the line before the table.
  std::string Title() const;
  // Facts about the last row that are not in its columns.
  std::string Footer(const BenchRow& row) const;

 private:
  const BenchPlan& plan_;
  const Table table_;
};

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_BENCH_REPORT_H_
