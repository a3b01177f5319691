// Times of any number of requests in bounded memory: buckets 1/256 of a power of two wide, so that
// a percentile is off by at most 0.2 %. Count, sum, least and largest are exact.
//
// Thread-safety: plain value. Histograms of threads and processes are merged afterwards.
#ifndef KVXFER_CLI_COMMON_LATENCY_HISTOGRAM_H_
#define KVXFER_CLI_COMMON_LATENCY_HISTOGRAM_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/types.h"
#include "src/cli/common/json_util.h"

namespace kvxfer::cli {

// Of a distribution: `part` of the requests took at most `us`.
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
  // In microseconds; zero where nothing was added. Percentile is of nearest rank: fraction 0.99 of
  // the requests took at most as long.
  double Percentile(double fraction) const;
  double min() const { return Microseconds(min_); }
  double max() const { return Microseconds(max_); }
  double mean() const;
  // At most kMaxCdfPoints, in order, denser towards the slowest; the last is {max(), 1}. Each part
  // is exact, each time within a bucket. Empty where nothing was added.
  std::vector<CdfPoint> Cdf() const;

  // Travels between processes; only buckets that hold something do.
  Json ToJson() const;
  static absl::StatusOr<LatencyHistogram> FromJson(const Json& json);

 private:
  static double Microseconds(uint64_t nanoseconds) {
    return static_cast<double>(nanoseconds) / 1e3;
  }

  std::vector<uint64_t> buckets_;  // as long as the largest time asks for
  uint64_t count_ = 0;
  uint64_t sum_ = 0;  // these three in nanoseconds
  uint64_t min_ = 0;
  uint64_t max_ = 0;
};

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_LATENCY_HISTOGRAM_H_
