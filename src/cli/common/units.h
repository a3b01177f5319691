// Sizes and times as people write them, and back. The only place that parses them.
#ifndef KVXFER_CLI_COMMON_UNITS_H_
#define KVXFER_CLI_COMMON_UNITS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/types.h"

namespace kvxfer::cli {

// "4096", "4K", "64KiB", "1M", "2G", "1T": powers of 1024, upper or lower case. "KB" is refused,
// for it means two things.
absl::StatusOr<uint64_t> ParseSize(std::string_view text);

// "64K"; "4K:4M", which doubles from the first to at most the last; or a list "4K,64K:256K,1M".
// Every size is above zero; at most 64 of them.
absl::StatusOr<std::vector<uint64_t>> ParseSizes(std::string_view text);

// "250us", "10ms", "1s", "2m"; zero needs no unit. At most ten days.
absl::StatusOr<Duration> ParseDuration(std::string_view text);

// "4 KiB", "1.5 MiB", "17 B".
std::string FormatBytes(uint64_t bytes);
// In which a time is short to read: us below 10 ms, ms below 10 s, s.
struct TimeUnit {
  double per_second = 1;
  const char* name = "s";
};
TimeUnit UnitFor(double seconds);

// "%.*f" as a string.
std::string FormatFixed(double value, int decimals);

// In 10^9 bytes; zero where no time has passed.
inline double GbPerSecond(uint64_t bytes, double seconds) {
  return seconds > 0 ? static_cast<double>(bytes) * 1e-9 / seconds : 0;
}

inline double Seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_UNITS_H_
