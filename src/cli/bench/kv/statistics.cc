#include "src/cli/bench/kv/statistics.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "src/cli/common/stats.h"

namespace kvxfer::cli::kv_bench {

int64_t Spin(int64_t ns) {
  const int64_t start = MonotonicNanoseconds();
  while (MonotonicNanoseconds() - start < ns) {
  }
  return MonotonicNanoseconds() - start;
}

int64_t ThreadWaitedNs() {
  std::ifstream schedstat("/proc/thread-self/schedstat");
  int64_t ran = 0;
  int64_t waited = 0;
  schedstat >> ran >> waited;
  return waited;
}

double Quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const double rank = std::ceil(q * static_cast<double>(values.size()));
  return values[std::clamp<size_t>(static_cast<size_t>(rank), 1, values.size()) - 1];
}

Json MemoryJson() {
  const struct mallinfo2 info = ::mallinfo2();
  std::ifstream statm("/proc/self/statm");
  uint64_t pages = 0;
  uint64_t resident = 0;
  statm >> pages >> resident;
  return {{"heap", info.uordblks + info.hblkhd},
          {"rss", resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE))}};
}

}  // namespace kvxfer::cli::kv_bench
