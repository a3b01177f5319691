// Medians, time spent and waited, and memory of this process.
//
// Thread-safety: any thread.
#ifndef KVXFER_CLI_BENCH_KV_STATISTICS_H_
#define KVXFER_CLI_BENCH_KV_STATISTICS_H_

#include <cstdint>
#include <vector>

#include "src/cli/common/json_util.h"

namespace kvxfer::cli::kv_bench {

// Uses the CPU for `ns` nanoseconds. Returns how long it took.
int64_t Spin(int64_t ns);
// The time in which this thread was ready to run and had no CPU; 0 if the kernel does not report
// it.
int64_t ThreadWaitedNs();

// The smallest value that at least the share `q` of the values does not exceed; 0 without values.
double Quantile(std::vector<double> values, double q);
inline double Median(std::vector<double> values) { return Quantile(std::move(values), 0.5); }

// The memory of this process now, in bytes: `heap`, in use of malloc, and `rss`, resident.
Json MemoryJson();

}  // namespace kvxfer::cli::kv_bench

#endif  // KVXFER_CLI_BENCH_KV_STATISTICS_H_
