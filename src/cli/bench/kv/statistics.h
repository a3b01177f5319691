// Medians, time spent and waited, and what memory a process has.
//
// Thread-safety: pure, but for MemoryJson, which asks the process.
#ifndef KVXFER_CLI_BENCH_KV_STATISTICS_H_
#define KVXFER_CLI_BENCH_KV_STATISTICS_H_

#include <cstdint>
#include <vector>

#include "src/cli/common/json_util.h"

namespace kvxfer::cli::kv_bench {

// Keeps the CPU for so long; returns how long it was.
int64_t Spin(int64_t ns);
// How long it could have run and had no CPU, for others had them; 0 where the kernel does not tell.
int64_t ThreadWaitedNs();

// The smallest value that a part `q` of the values does not exceed; 0 of none.
double Quantile(std::vector<double> values, double q);
inline double Median(std::vector<double> values) { return Quantile(std::move(values), 0.5); }

// Of this process: `heap`, bytes in use of malloc's, and `rss`, bytes resident, both now.
Json MemoryJson();

}  // namespace kvxfer::cli::kv_bench

#endif  // KVXFER_CLI_BENCH_KV_STATISTICS_H_
