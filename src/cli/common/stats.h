// Percentiles of small samples; clocks; CPU time and memory of this process.
//
// Thread-safety: any thread.

#ifndef KVXFER_CLI_COMMON_STATS_H_
#define KVXFER_CLI_COMMON_STATS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/types.h"
#include "src/cli/common/json_util.h"

namespace kvxfer::cli {

// By nearest rank: each percentile is one of the samples, without interpolation. With fewer than
// 1,000 samples, p99.9 is the largest one. All fields are zero without samples.
struct Summary {
  size_t count = 0;
  double mean = 0;
  double min = 0;
  double p50 = 0;
  double p99 = 0;
  double p999 = 0;
  double max = 0;
};

Summary Summarize(std::vector<double> samples);

// The smallest value that at least the share `q` of the values does not exceed; 0 without values.
double Quantile(std::vector<double> values, double q);
inline double Median(std::vector<double> values) { return Quantile(std::move(values), 0.5); }

// User and system time of all threads since the process started, in seconds.
double CpuSeconds();

// Resident memory of this process, with registered and mapped memory; and what malloc has in use.
uint64_t RssBytes();
uint64_t HeapBytes();

// Comparable between processes with equal BootId.
int64_t MonotonicNanoseconds();
std::string BootId();

// Uses the CPU for `ns` nanoseconds. Returns how long it took.
int64_t Spin(int64_t ns);
// The time in which this thread was ready to run and had no CPU; 0 if the kernel does not report
// it.
int64_t ThreadWaitedNs();

// Latencies of any number of requests, in bounded memory. A bucket is 1/256 of a power of two wide,
// so that the error of a percentile is at most 0.2 %. Count, sum, minimum and maximum are exact.
//
// Thread-safety: plain value. Threads and processes have a histogram each, which are merged later.

// A point of a distribution: the share `part` of the requests took at most `us`.
struct CdfPoint {
  double us = 0;
  double part = 0;
};
inline constexpr size_t kMaxCdfPoints = 128;

class LatencyHistogram {
 public:
  // A negative time counts as zero.
  void Add(Duration time);
  void Merge(const LatencyHistogram& other);

  uint64_t count() const { return count_; }
  // In microseconds; zero if nothing was added. Percentile uses nearest rank: the share `fraction`
  // of the requests took at most that long.
  double Percentile(double fraction) const;
  double min() const { return Microseconds(min_); }
  double max() const { return Microseconds(max_); }
  double mean() const;
  // At most kMaxCdfPoints points in order, denser towards the slowest requests; the last point is
  // {max(), 1}. Each `part` is exact, each time within a bucket. Empty if nothing was added.
  std::vector<CdfPoint> Cdf() const;

  // For other processes. Empty buckets are left out.
  Json ToJson() const;
  static absl::StatusOr<LatencyHistogram> FromJson(const Json& json);

 private:
  static double Microseconds(uint64_t nanoseconds) {
    return static_cast<double>(nanoseconds) / 1e3;
  }

  std::vector<uint64_t> buckets_;  // up to that of the largest time
  uint64_t count_ = 0;
  uint64_t sum_ = 0;  // these three in nanoseconds
  uint64_t min_ = 0;
  uint64_t max_ = 0;
};

// As a field of a message.
inline Json ToJson(const LatencyHistogram& histogram) { return histogram.ToJson(); }
absl::Status FromJson(const Json& json, LatencyHistogram& histogram);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_STATS_H_
