// Latencies of any number of requests, in bounded memory. A bucket is 1/256 of a power of two wide,
// so that the error of a percentile is at most 0.2 %. Count, sum, minimum and maximum are exact.
//
// Thread-safety: plain value. Threads and processes have a histogram each, which are merged later.
#ifndef KVXFER_CLI_COMMON_LATENCY_HISTOGRAM_H_
#define KVXFER_CLI_COMMON_LATENCY_HISTOGRAM_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/types.h"
#include "src/cli/common/json_util.h"

namespace kvxfer::cli {

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

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_LATENCY_HISTOGRAM_H_
