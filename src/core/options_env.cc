// The only place of kvxfer that reads environment variables. A variable that is set but empty
// counts as not set.

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kvxfer/options.h"
#include "src/core/strings.h"

namespace kvxfer {
namespace {

constexpr int64_t kMaxTcpStreams = 16;
constexpr int64_t kMaxCopyThreads = 8;
constexpr int64_t kMaxSpinMicroseconds = 1'000'000;

std::string_view Value(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

absl::Status Bad(const char* variable, std::string_view value, std::string_view wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat(variable, "=\"", ToAbsl(value), "\": ", ToAbsl(wanted)));
}

absl::Status ReadList(const char* variable, std::vector<std::string>& out) {
  const std::string_view value = Value(variable);
  if (value.empty()) return absl::OkStatus();
  std::vector<std::string> names;
  for (absl::string_view part : absl::StrSplit(ToAbsl(value), ',')) {
    part = absl::StripAsciiWhitespace(part);
    if (part.empty()) {
      return Bad(variable, value, "has an empty name; write names with commas, as in \"shm,tcp\"");
    }
    names.emplace_back(part.data(), part.size());
  }
  out = std::move(names);
  return absl::OkStatus();
}

// Leaves `out` alone when the variable is not set.
absl::Status ReadNumber(const char* variable, int64_t low, int64_t high, int64_t& out) {
  const std::string_view value = Value(variable);
  if (value.empty()) return absl::OkStatus();
  int64_t number = 0;
  if (!absl::SimpleAtoi(ToAbsl(value), &number) || number < low || number > high) {
    return Bad(variable, value, ToStd(absl::StrCat("must be a number from ", low, " to ", high)));
  }
  out = number;
  return absl::OkStatus();
}

void ReadText(const char* variable, std::string& out) {
  const std::string_view value = Value(variable);
  if (!value.empty()) out = value;
}

}  // namespace

absl::StatusOr<AgentOptions> OptionsFromEnvironment() {
  AgentOptions options;
  ReadText("KVXFER_NAME", options.name);
  if (options.name.size() > kMaxNameBytes) {
    return Bad("KVXFER_NAME", options.name, "is longer than 255 bytes; choose a shorter name");
  }
  ReadText("KVXFER_LISTEN", options.listen);
  ReadText("KVXFER_ADVERTISE", options.advertise);

  absl::Status status = ReadList("KVXFER_BACKENDS", options.backends);
  status.Update(ReadList("KVXFER_REQUIRE_BACKENDS", options.require_backends));

  int64_t streams = options.tcp_streams;
  status.Update(ReadNumber("KVXFER_TCP_STREAMS", 1, kMaxTcpStreams, streams));
  options.tcp_streams = static_cast<uint32_t>(streams);

  int64_t copy_threads = options.shm_copy_threads;
  status.Update(ReadNumber("KVXFER_SHM_COPY_THREADS", 0, kMaxCopyThreads, copy_threads));
  options.shm_copy_threads = static_cast<uint32_t>(copy_threads);

  // -1 is the adaptive spin of AgentOptions.
  int64_t spin_us = -1;
  status.Update(ReadNumber("KVXFER_SPIN_US", -1, kMaxSpinMicroseconds, spin_us));
  if (spin_us >= 0) options.spin = std::chrono::microseconds(spin_us);

  if (!status.ok()) return status;
  return options;
}

}  // namespace kvxfer
