// The output of `kvxfer bench`: a table that grows, or a JSON document or CSV at the end.

#ifndef KVXFER_CLI_BENCH_REPORT_H_
#define KVXFER_CLI_BENCH_REPORT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "src/cli/bench/plan.h"
#include "src/cli/bench/workers.h"
#include "src/cli/common/json_util.h"
#include "src/cli/common/table.h"
#include "src/cli/common/units.h"

namespace kvxfer::cli {

// The copy rates of GPUs without kvxfer, for comparison with its transfers. In 10^9 bytes a second,
// counting each byte once; the best of a few turns. Zero: not measured.
struct DeviceCopyRates {
  double whole = 0;      // one large copy by the driver
  double scattered = 0;  // blocks in random order on both sides, by one copy kernel
};

// Copies from the GPU of one side to that of the other, or within a GPU if only one side has one.
// Copies at most as many of the `blocks` blocks as one kernel takes. The rates are zero if neither
// side has a GPU or a GPU lacks memory for the copy; `scattered` is also zero if one GPU cannot
// reach the other.
absl::StatusOr<DeviceCopyRates> MeasureDeviceCopy(const MemorySides& sides, uint64_t block_bytes,
                                                  uint64_t blocks);

// The figures of one configuration.
struct BenchRow {
  BenchCase bench{};
  Opened opened{};
  DeviceCopyRates device{};  // of GPUs of this host that take part
  Ran ran{};
  double target_rate = 0;       // requests a second in an open loop
  std::optional<Tally> peak{};  // of the closed loop that "--rate 50%" is a percentage of

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
