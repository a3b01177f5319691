#include "src/cli/common/latency_histogram.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

namespace kvxfer::cli {
namespace {

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
  const auto bad = [] { return absl::InvalidArgumentError("an incomplete histogram"); };
  const absl::StatusOr<uint64_t> sum = GetUint(json, "sum");
  const absl::StatusOr<uint64_t> min = GetUint(json, "min");
  const absl::StatusOr<uint64_t> max = GetUint(json, "max");
  const auto buckets = json.find("buckets");
  if (!sum.ok() || !min.ok() || !max.ok() || buckets == json.end() || !buckets->is_array()) {
    return bad();
  }
  LatencyHistogram histogram;
  for (const Json& pair : *buckets) {
    if (!pair.is_array() || pair.size() != 2 || !pair[0].is_number_unsigned() ||
        !pair[1].is_number_unsigned() || pair[0].get<uint64_t>() >= kBuckets + (1u << kSubBits)) {
      return bad();
    }
    const auto bucket = pair[0].get<size_t>();
    if (bucket >= histogram.buckets_.size()) histogram.buckets_.resize(bucket + 1);
    histogram.buckets_[bucket] += pair[1].get<uint64_t>();
    histogram.count_ += pair[1].get<uint64_t>();
  }
  histogram.sum_ = *sum;
  histogram.min_ = *min;
  histogram.max_ = *max;
  return histogram;
}

}  // namespace kvxfer::cli
