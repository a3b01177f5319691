#include "src/cli/common/stats.h"

#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <fstream>
#include <numeric>

namespace kvxfer::cli {
namespace {

// Of sorted samples, at least one.
double NearestRank(const std::vector<double>& sorted, double fraction) {
  const auto rank = static_cast<size_t>(std::ceil(fraction * static_cast<double>(sorted.size())));
  return sorted[std::clamp<size_t>(rank, 1, sorted.size()) - 1];
}

constexpr unsigned kSubBits = 8;
constexpr size_t kBuckets = (64 - kSubBits) << kSubBits;

// The shares of requests at which a distribution has a point, in units of 1/kWhole: every
// hundredth, and every tenth of the last hundredth, of the last thousandth and of the last
// ten-thousandth.
constexpr uint64_t kWhole = 100'000;
constexpr std::array<uint64_t, kMaxCdfPoints> CdfParts() {
  std::array<uint64_t, kMaxCdfPoints> parts{};
  size_t i = 0;
  for (uint64_t part = 0; i < parts.size() - 1;) {
    parts[i++] = part;
    const uint64_t left = kWhole - part;
    part += left > 1000 ? 1000 : left > 100 ? 100 : left > 10 ? 10 : 1;
  }
  parts.back() = kWhole;
  return parts;
}
constexpr std::array<uint64_t, kMaxCdfPoints> kCdfParts = CdfParts();

// Each value below 512 ns has its own bucket. Above, each power of two has 256 buckets.
size_t BucketOf(uint64_t value) {
  const auto bits = static_cast<unsigned>(std::bit_width(value));
  const unsigned shift = bits > kSubBits + 1 ? bits - (kSubBits + 1) : 0;
  return (size_t{shift} << kSubBits) + static_cast<size_t>(value >> shift);
}

uint64_t MiddleOf(size_t bucket) {
  constexpr size_t kExact = size_t{2} << kSubBits;
  if (bucket < kExact) return bucket;
  const size_t shift = (bucket >> kSubBits) - 1;
  const uint64_t first = uint64_t{bucket - (shift << kSubBits)} << shift;
  return first + (uint64_t{1} << shift) / 2;
}

}  // namespace

Summary Summarize(std::vector<double> samples) {
  if (samples.empty()) return {};
  std::ranges::sort(samples);
  const double sum = std::accumulate(samples.begin(), samples.end(), 0.0);
  return {.count = samples.size(),
          .mean = sum / static_cast<double>(samples.size()),
          .min = samples.front(),
          .p50 = NearestRank(samples, 0.50),
          .p99 = NearestRank(samples, 0.99),
          .p999 = NearestRank(samples, 0.999),
          .max = samples.back()};
}

double Quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return NearestRank(values, q);
}

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

uint64_t RssBytes() {
  uint64_t total = 0;
  uint64_t resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

uint64_t HeapBytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

int64_t MonotonicNanoseconds() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string BootId() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

int64_t Spin(int64_t ns) {
  const int64_t start = MonotonicNanoseconds();
  while (MonotonicNanoseconds() - start < ns) {
  }
  return MonotonicNanoseconds() - start;
}

int64_t ThreadWaitedNs() {
  int64_t ran = 0;
  int64_t waited = 0;
  std::ifstream("/proc/thread-self/schedstat") >> ran >> waited;
  return waited;
}

void LatencyHistogram::Add(Duration time) {
  const auto value = static_cast<uint64_t>(std::max<int64_t>(time.count(), 0));
  const size_t bucket = BucketOf(value);
  if (bucket >= buckets_.size()) buckets_.resize(bucket + 1);
  ++buckets_[bucket];
  min_ = count_ == 0 ? value : std::min(min_, value);
  max_ = std::max(max_, value);
  sum_ += value;
  ++count_;
}

void LatencyHistogram::Merge(const LatencyHistogram& other) {
  if (other.count_ == 0) return;
  if (other.buckets_.size() > buckets_.size()) buckets_.resize(other.buckets_.size());
  for (size_t i = 0; i < other.buckets_.size(); ++i) buckets_[i] += other.buckets_[i];
  min_ = count_ == 0 ? other.min_ : std::min(min_, other.min_);
  max_ = std::max(max_, other.max_);
  sum_ += other.sum_;
  count_ += other.count_;
}

double LatencyHistogram::Percentile(double fraction) const {
  if (count_ == 0) return 0;
  const auto wanted = static_cast<uint64_t>(std::ceil(fraction * static_cast<double>(count_)));
  const uint64_t rank = std::clamp<uint64_t>(wanted, 1, count_);
  uint64_t seen = 0;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    seen += buckets_[i];
    if (seen >= rank) return Microseconds(std::clamp(MiddleOf(i), min_, max_));
  }
  return max();
}

double LatencyHistogram::mean() const {
  return count_ == 0 ? 0 : Microseconds(sum_) / static_cast<double>(count_);
}

std::vector<CdfPoint> LatencyHistogram::Cdf() const {
  std::vector<CdfPoint> points;
  size_t next = 0;
  uint64_t seen = 0;
  for (size_t i = 0; i < buckets_.size() && seen < count_; ++i) {
    if (buckets_[i] == 0) continue;
    seen += buckets_[i];
    const auto reached = [&] {
      return next < kCdfParts.size() && seen * kWhole >= kCdfParts[next] * count_;
    };
    if (!reached()) continue;
    while (reached()) ++next;
    const uint64_t ns = seen == count_ ? max_ : std::clamp(MiddleOf(i), min_, max_);
    points.push_back(
        {.us = Microseconds(ns), .part = static_cast<double>(seen) / static_cast<double>(count_)});
  }
  return points;
}

Json LatencyHistogram::ToJson() const {
  Json filled = Json::array();
  for (size_t i = 0; i < buckets_.size(); ++i) {
    if (buckets_[i] != 0) filled.push_back({i, buckets_[i]});
  }
  return {{"buckets", std::move(filled)}, {"sum", sum_}, {"min", min_}, {"max", max_}};
}

absl::StatusOr<LatencyHistogram> LatencyHistogram::FromJson(const Json& json) {
  const auto buckets = GetField<std::vector<std::vector<uint64_t>>>(json, "buckets");
  if (!buckets.ok()) return buckets.status();
  LatencyHistogram histogram;
  for (const std::vector<uint64_t>& pair : *buckets) {
    if (pair.size() != 2 || pair[0] >= kBuckets + (1u << kSubBits)) {
      return Invalid("an incomplete histogram");
    }
    if (pair[0] >= histogram.buckets_.size()) histogram.buckets_.resize(pair[0] + 1);
    histogram.buckets_[pair[0]] += pair[1];
    histogram.count_ += pair[1];
  }
  JsonIn io(json);
  io("sum", histogram.sum_);
  io("min", histogram.min_);
  io("max", histogram.max_);
  if (absl::Status s = io.Finish(); !s.ok()) return s;
  return histogram;
}

absl::Status FromJson(const Json& json, LatencyHistogram& histogram) {
  absl::StatusOr<LatencyHistogram> read = LatencyHistogram::FromJson(json);
  if (read.ok()) histogram = *std::move(read);
  return read.status();
}

}  // namespace kvxfer::cli
