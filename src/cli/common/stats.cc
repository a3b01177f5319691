#include "src/cli/common/stats.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
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

uint64_t RssBytes() {
  uint64_t total = 0;
  uint64_t resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

int64_t MonotonicNanoseconds() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string BootId() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

}  // namespace kvxfer::cli
