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

absl::Status ReadList(const char* variable, std::vector<std::string>& out, char separator = ',') {
  const std::string_view value = Value(variable);
  if (value.empty()) return absl::OkStatus();
  std::vector<std::string> names;
  for (absl::string_view part : absl::StrSplit(ToAbsl(value), separator)) {
    part = absl::StripAsciiWhitespace(part);
    if (part.empty()) {
      return Bad(variable, value,
                 separator == ','
                     ? "has an empty name; write names with commas, as in \"shm,tcp\""
                     : "has an empty folder; write folders with colons, as in \"/a:/b\"");
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

absl::Status ReadNumber32(const char* variable, int64_t low, int64_t high, uint32_t& out) {
  int64_t number = out;
  absl::Status status = ReadNumber(variable, low, high, number);
  out = static_cast<uint32_t>(number);
  return status;
}

absl::Status ReadVerbs(VerbsOptions& verbs) {
  absl::Status status = ReadList("KVXFER_VERBS_DEVICES", verbs.devices);
  status.Update(ReadList("KVXFER_VERBS_FABRICS", verbs.fabrics));
  ReadText("KVXFER_VERBS_LISTEN", verbs.listen);
  int64_t gid_index = verbs.gid_index;
  status.Update(ReadNumber("KVXFER_VERBS_GID_INDEX", -1, 255, gid_index));
  verbs.gid_index = static_cast<int32_t>(gid_index);
  status.Update(ReadNumber32("KVXFER_VERBS_P_KEY", 1, 0xffff, verbs.p_key));
  status.Update(ReadNumber32("KVXFER_VERBS_SERVICE_LEVEL", 0, 15, verbs.service_level));
  status.Update(ReadNumber32("KVXFER_VERBS_TRAFFIC_CLASS", 0, 255, verbs.traffic_class));
  status.Update(ReadNumber32("KVXFER_VERBS_MTU", 0, 4096, verbs.mtu));
  status.Update(ReadNumber32("KVXFER_VERBS_TIMEOUT", 1, 31, verbs.timeout));
  status.Update(ReadNumber32("KVXFER_VERBS_RETRY_COUNT", 1, 7, verbs.retry_count));
  status.Update(ReadNumber32("KVXFER_VERBS_RNR_TIMER", 0, 31, verbs.rnr_timer));
  status.Update(ReadNumber32("KVXFER_VERBS_QUEUE_DEPTH", 16, 32768, verbs.queue_depth));
  status.Update(ReadNumber32("KVXFER_VERBS_RECEIVE_DEPTH", 64, 1 << 20, verbs.receive_depth));
  status.Update(ReadNumber32("KVXFER_VERBS_MAX_INLINE", 0, 1024, verbs.max_inline));
  int64_t stall_ms = verbs.stall_timeout / std::chrono::milliseconds(1);
  status.Update(ReadNumber("KVXFER_VERBS_STALL_TIMEOUT_MS", 100, 86'400'000, stall_ms));
  verbs.stall_timeout = std::chrono::milliseconds(stall_ms);
  return status;
}

absl::Status ReadLibfabric(LibfabricOptions& libfabric) {
  ReadText("KVXFER_LIBFABRIC_PROVIDER", libfabric.provider);
  ReadText("KVXFER_LIBFABRIC_LISTEN", libfabric.listen);
  return ReadList("KVXFER_LIBFABRIC_DOMAINS", libfabric.domains);
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
  status.Update(ReadList("KVXFER_PLUGIN_PATH", options.plugin_path, ':'));

  int64_t streams = options.tcp_streams;
  status.Update(ReadNumber("KVXFER_TCP_STREAMS", 1, kMaxTcpStreams, streams));
  options.tcp_streams = static_cast<uint32_t>(streams);

  status.Update(ReadList("KVXFER_TCP_ADDRESSES", options.tcp_addresses));

  int64_t serve_metadata = options.serve_metadata ? 1 : 0;
  status.Update(ReadNumber("KVXFER_SERVE_METADATA", 0, 1, serve_metadata));
  options.serve_metadata = serve_metadata != 0;

  int64_t copy_threads = options.shm_copy_threads;
  status.Update(ReadNumber("KVXFER_SHM_COPY_THREADS", 0, kMaxCopyThreads, copy_threads));
  options.shm_copy_threads = static_cast<uint32_t>(copy_threads);

  auto staging_bytes = static_cast<int64_t>(options.staging_bytes);
  status.Update(
      ReadNumber("KVXFER_STAGING_BYTES", 0, AgentOptions::kMaxStagingBytes, staging_bytes));
  options.staging_bytes = static_cast<uint64_t>(staging_bytes);
  status.Update(ReadVerbs(options.verbs));
  ReadText("KVXFER_UCX_TLS", options.ucx.tls);
  ReadText("KVXFER_UCX_NET_DEVICES", options.ucx.net_devices);
  ReadText("KVXFER_UCX_LISTEN", options.ucx.listen);
  status.Update(ReadLibfabric(options.libfabric));

  // -1 is the adaptive spin of AgentOptions.
  int64_t spin_us = -1;
  status.Update(ReadNumber("KVXFER_SPIN_US", -1, kMaxSpinMicroseconds, spin_us));
  if (spin_us >= 0) options.spin = std::chrono::microseconds(spin_us);

  if (!status.ok()) return status;
  return options;
}

}  // namespace kvxfer
