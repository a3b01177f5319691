// Sizes, times, addresses and kinds of memory as people write and read them. Only this file parses
// them.

#ifndef KVXFER_CLI_COMMON_UNITS_H_
#define KVXFER_CLI_COMMON_UNITS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/options.h"
#include "kvxfer/types.h"
#include "src/cli/common/json_util.h"

namespace kvxfer::cli {

// "4096", "4K", "64KiB", "1M", "2G", "1T": powers of 1024, in upper or lower case. "KB" is refused
// because it has two meanings.
absl::StatusOr<uint64_t> ParseSize(std::string_view text);

// "64K"; "4K:4M", which doubles from the first size to at most the last; or a list such as
// "4K,64K:256K,1M". Each size is above zero, and there are at most 64 of them.
absl::StatusOr<std::vector<uint64_t>> ParseSizes(std::string_view text);

// "250us", "10ms", "1s", "2m"; zero needs no unit. At most ten days.
absl::StatusOr<Duration> ParseDuration(std::string_view text);

// "4 KiB", "1.5 MiB", "17 B".
std::string FormatBytes(uint64_t bytes);
// As ParseSize takes it: "4K", "1G", "17".
std::string FormatSize(uint64_t bytes);
// As ParseDuration takes it: "250us", "100ms", "60s"; `space` goes between number and unit.
std::string FormatDuration(Duration duration, const char* space = "");
// Three significant digits: "7.50 us", "12.3 ms", "2.00 s", "1234 s".
std::string FormatTime(double seconds);

// The unit in which a time has few digits: us below 10 ms, ms below 10 s, else s.
struct TimeUnit {
  double per_second = 1;
  const char* name = "s";
};
TimeUnit UnitFor(double seconds);

// "%.*f" as a string.
std::string FormatFixed(double value, int decimals);

// In units of 10^9 bytes a second; zero if no time has passed.
inline double GbPerSecond(uint64_t bytes, double seconds) {
  return seconds > 0 ? static_cast<double>(bytes) * 1e-9 / seconds : 0;
}

inline double Seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

// An address on the command line.
struct HostPort {
  std::string host;  // name or address, without brackets
  uint16_t port = kDefaultPort;

  std::string ToString() const;  // brackets around IPv6 addresses
};

// Takes "node7", "node7:7471", "[::1]:7471", "[::1]" and "::1". Without a port in the text, the
// port is `default_port`.
absl::StatusOr<HostPort> ParseHostPort(std::string_view text, uint16_t default_port = kDefaultPort);

// --- Which memory the processes of a run use: the values of --memory.

enum class MemorySource {
  kMapped,          // HostBuffer: a peer on this host maps it
  kMappedSmall,     // the same with small pages
  kMappedReserved,  // the same with reserved huge pages
  kAttached,        // anonymous memory, as from malloc: a peer on this host attaches to it
  kCuda,            // memory of a GPU
};

struct MemoryChoice {
  MemoryChoice() = default;
  // `of_device` is for kCuda only.
  MemoryChoice(MemorySource from, int of_device = 0)  // NOLINT(google-explicit-constructor)
      : source(from), device(of_device) {}

  MemorySource source = MemorySource::kMapped;
  int device = 0;  // for kCuda: the number that CUDA gives the GPU in this process

  bool cuda() const { return source == MemorySource::kCuda; }
  // As ParseMemoryChoice takes it.
  std::string ToString() const;
  bool operator==(const MemoryChoice&) const = default;
};

// The words that ParseMemoryChoice takes, for help and completion.
std::vector<std::string> MemoryWords();

// "mapped" or "host", which mean the same; "mapped-small", "mapped-reserved", "attached"; "cuda:1",
// or "cuda" for the first GPU.
absl::StatusOr<MemoryChoice> ParseMemoryChoice(std::string_view text);

// The same as a field of a message.
inline Json ToJson(const MemoryChoice& choice) { return choice.ToString(); }
absl::Status FromJson(const Json& json, MemoryChoice& choice);

// The memory of the two sides of a run: initiators (here) and targets (there), or prefill and
// decode.
struct MemorySides {
  MemoryChoice here{};
  MemoryChoice there{};

  // "cuda:0 memory", or "mapped memory at the initiator, cuda:1 memory at the target".
  std::string Words() const;
};

// One value for both sides, or two separated by a comma: "mapped,cuda:1".
absl::StatusOr<MemorySides> ParseMemorySides(std::string_view text);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_UNITS_H_
