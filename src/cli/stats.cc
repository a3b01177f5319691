#include "src/cli/stats.h"

#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvxfer::cli {

Summary Summarize(std::vector<double> samples) {
  Summary summary;
  if (samples.empty()) return summary;
  std::sort(samples.begin(), samples.end());
  const double count = static_cast<double>(samples.size());
  const auto rank = [&](double fraction) {
    const auto position = static_cast<size_t>(std::ceil(fraction * count));
    return samples[std::clamp<size_t>(position, 1, samples.size()) - 1];
  };
  summary.count = samples.size();
  summary.sum = std::accumulate(samples.begin(), samples.end(), 0.0);
  summary.mean = summary.sum / count;
  summary.min = samples.front();
  summary.p50 = rank(0.50);
  summary.p99 = rank(0.99);
  summary.p999 = rank(0.999);
  summary.max = samples.back();
  return summary;
}

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace kvxfer::cli
