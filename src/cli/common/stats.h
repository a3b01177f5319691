// Percentiles of a small sample; clocks; CPU time and memory of this process.
#ifndef KVXFER_CLI_COMMON_STATS_H_
#define KVXFER_CLI_COMMON_STATS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kvxfer::cli {

// By nearest rank: each percentile is one of the samples, without interpolation. With fewer than
// 1,000 samples, p99.9 is the largest one. All fields are zero without samples.
struct Summary {
  size_t count = 0;
  double sum = 0;
  double mean = 0;
  double min = 0;
  double p50 = 0;
  double p99 = 0;
  double p999 = 0;
  double max = 0;
};

Summary Summarize(std::vector<double> samples);

// User and system time of all threads since the process started, in seconds.
double CpuSeconds();

// Resident memory of this process, with registered and mapped memory.
uint64_t RssBytes();

// Comparable between processes with equal BootId.
int64_t MonotonicNanoseconds();
std::string BootId();

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_STATS_H_
