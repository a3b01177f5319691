// Reads the environment variables. Nothing else in kvxfer does. A variable that is set but empty
// counts as not set.

#include "src/core/base/options_env.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kvxfer/options.h"
#include "src/core/base/log.h"
#include "src/core/base/nearest_word.h"
#include "src/core/base/strings.h"

namespace kvxfer {
namespace {

constexpr std::string_view kPrefix = "KVXFER_";
constexpr int64_t kMaxTcpStreams = 16;
constexpr int64_t kMaxCopyThreads = 8;
constexpr int64_t kMaxSpinMicroseconds = 1'000'000;

absl::Status Bad(const char* variable, std::string_view value, std::string_view wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat(variable, "=\"", ToAbsl(value), "\": ", ToAbsl(wanted)));
}

// Reads variables and records their names. A variable that is set but never read is probably a
// typo.
class Environment {
 public:
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

  // Leaves `out` unchanged if the variable is not set.
  template <typename Integer>
  absl::Status ReadNumber(const char* variable, int64_t low, int64_t high, Integer& out) {
    const std::string_view value = Value(variable);
    if (value.empty()) return absl::OkStatus();
    int64_t number = 0;
    if (!absl::SimpleAtoi(ToAbsl(value), &number) || number < low || number > high) {
      return Bad(variable, value, ToStd(absl::StrCat("must be a number from ", low, " to ", high)));
    }
    out = static_cast<Integer>(number);
    return absl::OkStatus();
  }

  void ReadText(const char* variable, std::string& out) {
    const std::string_view value = Value(variable);
    if (!value.empty()) out = value;
  }

  const std::vector<std::string>& names() const { return names_; }

 private:
  std::string_view Value(const char* variable) {
    names_.emplace_back(variable);
    const char* value = std::getenv(variable);
    return value == nullptr ? std::string_view() : std::string_view(value);
  }

  std::vector<std::string> names_;
};

absl::Status ReadVerbs(Environment& environment, VerbsOptions& verbs) {
  absl::Status status = environment.ReadList("KVXFER_VERBS_DEVICES", verbs.devices);
  status.Update(environment.ReadList("KVXFER_VERBS_FABRICS", verbs.fabrics));
  environment.ReadText("KVXFER_VERBS_LISTEN", verbs.listen);
  const auto number = [&](const char* variable, int64_t low, int64_t high, auto& out) {
    status.Update(environment.ReadNumber(variable, low, high, out));
  };
  number("KVXFER_VERBS_GID_INDEX", -1, 255, verbs.gid_index);
  number("KVXFER_VERBS_P_KEY", 1, 0xffff, verbs.p_key);
  number("KVXFER_VERBS_SERVICE_LEVEL", 0, 15, verbs.service_level);
  number("KVXFER_VERBS_TRAFFIC_CLASS", 0, 255, verbs.traffic_class);
  number("KVXFER_VERBS_MTU", 0, 4096, verbs.mtu);
  number("KVXFER_VERBS_TIMEOUT", 1, 31, verbs.timeout);
  number("KVXFER_VERBS_RETRY_COUNT", 1, 7, verbs.retry_count);
  number("KVXFER_VERBS_RNR_TIMER", 0, 31, verbs.rnr_timer);
  number("KVXFER_VERBS_QUEUE_DEPTH", 16, 32768, verbs.queue_depth);
  number("KVXFER_VERBS_RECEIVE_DEPTH", 64, 1 << 20, verbs.receive_depth);
  number("KVXFER_VERBS_MAX_INLINE", 0, 1024, verbs.max_inline);
  int64_t stall_ms = verbs.stall_timeout / std::chrono::milliseconds(1);
  number("KVXFER_VERBS_STALL_TIMEOUT_MS", 100, 86'400'000, stall_ms);
  verbs.stall_timeout = std::chrono::milliseconds(stall_ms);
  return status;
}

// The variables of the backends.
absl::Status ReadBackends(Environment& environment, AgentOptions& options) {
  absl::Status status =
      environment.ReadNumber("KVXFER_TCP_STREAMS", 1, kMaxTcpStreams, options.tcp_streams);
  status.Update(environment.ReadList("KVXFER_TCP_ADDRESSES", options.tcp_addresses));
  status.Update(environment.ReadNumber("KVXFER_SHM_COPY_THREADS", 0, kMaxCopyThreads,
                                       options.shm_copy_threads));
  status.Update(ReadVerbs(environment, options.verbs));
  environment.ReadText("KVXFER_UCX_TLS", options.ucx.tls);
  environment.ReadText("KVXFER_UCX_NET_DEVICES", options.ucx.net_devices);
  environment.ReadText("KVXFER_UCX_LISTEN", options.ucx.listen);
  environment.ReadText("KVXFER_LIBFABRIC_PROVIDER", options.libfabric.provider);
  environment.ReadText("KVXFER_LIBFABRIC_LISTEN", options.libfabric.listen);
  status.Update(environment.ReadList("KVXFER_LIBFABRIC_DOMAINS", options.libfabric.domains));
  return status;
}

absl::Status Read(Environment& environment, AgentOptions& options) {
  environment.ReadText("KVXFER_NAME", options.name);
  absl::Status status;
  if (options.name.size() > kMaxNameBytes) {
    status = Bad("KVXFER_NAME", options.name, "is longer than 255 bytes; choose a shorter name");
  }
  environment.ReadText("KVXFER_LISTEN", options.listen);
  environment.ReadText("KVXFER_ADVERTISE", options.advertise);
  status.Update(environment.ReadNumber("KVXFER_SERVE_METADATA", 0, 1, options.serve_metadata));
  status.Update(environment.ReadList("KVXFER_BACKENDS", options.backends));
  status.Update(environment.ReadList("KVXFER_REQUIRE_BACKENDS", options.require_backends));
  status.Update(environment.ReadList("KVXFER_PLUGIN_PATH", options.plugin_path, ':'));
  status.Update(environment.ReadNumber("KVXFER_STAGING_BYTES", 0, AgentOptions::kMaxStagingBytes,
                                       options.staging_bytes));
  status.Update(ReadBackends(environment, options));
  // -1 keeps AgentOptions' adaptive spin.
  int64_t spin_us = -1;
  status.Update(environment.ReadNumber("KVXFER_SPIN_US", -1, kMaxSpinMicroseconds, spin_us));
  if (spin_us >= 0) options.spin = std::chrono::microseconds(spin_us);
  return status;
}

// Variables that programs beside the library read: the Python package, the NIXL-compatible module,
// examples, scripts, benchmarks and tests. A name that ends with '_' stands for all variables that
// begin with it.
constexpr std::array<std::string_view, 13> kReadElsewhere = {
    "KVXFER_CLI",          "KVXFER_COMPARE_BIN", "KVXFER_CPU",        "KVXFER_FABRIC_",
    "KVXFER_FUZZ_SECONDS", "KVXFER_GPU_RESULTS", "KVXFER_NIXL_",      "KVXFER_OTHER_UCX",
    "KVXFER_PYTHON",       "KVXFER_STANDIN_",    "KVXFER_STORM_SEED", "KVXFER_TEST_",
    "KVXFER_WAIT"};

bool IsReadElsewhere(std::string_view name) {
  return std::ranges::any_of(kReadElsewhere, [&](std::string_view one) {
    return one.ends_with('_') ? name.starts_with(one) : name == one;
  });
}

// Kubernetes sets such variables in every container if there is a Service named kvxfer or
// kvxfer-<name>, and Docker sets them for a linked container: KVXFER_SERVICE_HOST,
// KVXFER_SERVICE_PORT, KVXFER_SERVICE_PORT_<port's name>, KVXFER_PORT=tcp://10.0.0.1:7471,
// KVXFER_PORT_7471_TCP_ADDR. A KVXFER_PORT whose value is not a URL was set by a person.
bool IsOfAService(std::string_view name, std::string_view value) {
  if (name.ends_with("_SERVICE_HOST") || name.ends_with("_SERVICE_PORT")) return true;
  if (name.ends_with("_PORT") && value.find("://") != std::string_view::npos) return true;
  const std::vector<absl::string_view> words = absl::StrSplit(ToAbsl(name), '_');
  for (size_t i = 1; i + 1 < words.size(); ++i) {
    if (words[i] != "PORT") continue;
    const bool has_number = std::ranges::all_of(words[i + 1], absl::ascii_isdigit);
    if (words[i - 1] == "SERVICE" || (has_number && i + 2 < words.size())) return true;
  }
  return false;
}

std::vector<std::string> WithoutPrefix(std::vector<std::string> names) {
  for (std::string& name : names) name.erase(0, kPrefix.size());
  return names;
}

// A process has one environment and may create many agents from it, so each warning is logged once.
bool IsNews(const std::string& line) {
  static std::mutex mutex;
  static auto* const told = new std::set<std::string>();
  const std::lock_guard lock(mutex);
  return told->insert(line).second;
}

}  // namespace

std::vector<std::string> EnvironmentVariables() {
  Environment environment;
  AgentOptions options;
  (void)Read(environment, options);
  return environment.names();
}

std::vector<std::string> UnknownVariables() {
  const std::vector<std::string> known = EnvironmentVariables();
  std::vector<std::string> unknown;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    if (!name.starts_with(kPrefix) || name.size() + 1 >= text.size()) continue;
    if (std::ranges::find(known, name) != known.end()) continue;
    if (IsReadElsewhere(name) || IsOfAService(name, text.substr(name.size() + 1))) continue;
    const std::string nearest = NearestWord(name.substr(kPrefix.size()), WithoutPrefix(known));
    unknown.push_back(absl::StrCat(ToAbsl(name), " is set, and kvxfer has no such variable",
                                   nearest.empty() ? "" : "; did you mean ",
                                   nearest.empty() ? "" : ToAbsl(kPrefix), nearest,
                                   nearest.empty() ? "" : "?"));
  }
  return unknown;
}

absl::StatusOr<AgentOptions> OptionsFromEnvironment() {
  Environment environment;
  AgentOptions options;
  if (absl::Status status = Read(environment, options); !status.ok()) return status;
  for (const std::string& line : UnknownVariables()) {
    if (IsNews(line)) Log(LogLevel::kWarning, "environment: {}", line);
  }
  return options;
}

}  // namespace kvxfer
