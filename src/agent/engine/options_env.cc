// Reads the environment variables. Nothing else in kvxfer does. A variable that is set but empty
// counts as not set.

#include "src/agent/engine/options_env.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kvxfer/backend.h"
#include "kvxfer/options.h"
#include "src/core/base/log.h"
#include "src/core/base/nearest_word.h"
#include "src/core/base/strings.h"

namespace kvxfer {
namespace {

constexpr std::string_view kPrefix = "KVXFER_";
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
    auto names = SplitNames(value, separator);
    if (!names) {
      return Bad(variable, value,
                 separator == ','
                     ? "has an empty name; write names with commas, as in \"shm,tcp\""
                     : "has an empty folder; write folders with colons, as in \"/a:/b\"");
    }
    out = *std::move(names);
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
  std::string control(NameOf(options.control));
  environment.ReadText("KVXFER_CONTROL", control);
  if (const auto carrier = ParseControlCarrier(control); carrier.ok()) {
    options.control = *carrier;
  } else {
    status.Update(Bad("KVXFER_CONTROL", control, "must be auto, tcp, rdma or shm"));
  }
  status.Update(environment.ReadList("KVXFER_REQUIRE_BACKENDS", options.require_backends));
  status.Update(environment.ReadList("KVXFER_PLUGIN_PATH", options.plugin_path, ':'));
  status.Update(environment.ReadNumber("KVXFER_STAGING_BYTES", 0, AgentOptions::kMaxStagingBytes,
                                       options.staging_bytes));
  status.Update(
      environment.ReadNumber("KVXFER_COPY_SMS", 0, AgentOptions::kMaxCopySms, options.copy_sms));
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

// Calls `visit` for each variable that has the prefix, a value, and no reader of its own.
void ForEachOther(const std::vector<std::string>& known,
                  absl::FunctionRef<void(std::string_view name, std::string_view value)> visit) {
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    if (!name.starts_with(kPrefix) || name.size() + 1 >= text.size()) continue;
    if (std::ranges::find(known, name) != known.end()) continue;
    const std::string_view value = text.substr(name.size() + 1);
    if (!IsReadElsewhere(name) && !IsOfAService(name, value)) visit(name, value);
  }
}

// Backend and key of KVXFER_<BACKEND>_<KEY>, where there may be such a backend.
std::optional<std::pair<std::string, std::string>> OptionOf(
    std::string_view variable, const std::vector<std::string>& backends) {
  const std::string name = absl::AsciiStrToLower(ToAbsl(variable.substr(kPrefix.size())));
  for (const std::string& backend : backends) {
    if (!name.starts_with(backend + "_") || name.size() == backend.size() + 1) continue;
    return std::pair(backend, name.substr(backend.size() + 1));
  }
  return std::nullopt;
}

// Those that sections of AgentOptions::backend may be for.
std::vector<std::string> BackendsOf(const AgentOptions& options) {
  std::vector<std::string> names = KnownBackendNames();
  names.emplace_back("faulty");
  for (const std::string& name : options.backends) {
    names.push_back(name.substr(name.find(':') + 1));
  }
  return names;
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

absl::Status CheckCudaQueues() {
  static const bool one = [] {
    const char* const set = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    return set != nullptr && std::string_view(set) == "1";
  }();
  if (!one) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "CUDA_DEVICE_MAX_CONNECTIONS=1 gives all CUDA streams of this process one hardware queue, in "
      "which a stream that waits for a transfer holds up the transfer's own copies; let the host "
      "wait instead, or set it to 2 or more (8 is the driver's default)");
}

std::vector<std::string> EnvironmentVariables() {
  Environment environment;
  AgentOptions options;
  (void)Read(environment, options);
  return environment.names();
}

std::vector<std::string> UnknownVariables() {
  Environment environment;
  AgentOptions options;
  (void)Read(environment, options);
  const std::vector<std::string>& known = environment.names();
  const std::vector<std::string> backends = BackendsOf(options);
  std::vector<std::string> unknown;
  ForEachOther(known, [&](std::string_view name, std::string_view /*value*/) {
    if (OptionOf(name, backends)) return;
    const std::string nearest = NearestWord(name.substr(kPrefix.size()), WithoutPrefix(known));
    unknown.push_back(absl::StrCat(ToAbsl(name), " is set, and kvxfer has no such variable",
                                   nearest.empty() ? "" : "; did you mean ",
                                   nearest.empty() ? "" : ToAbsl(kPrefix), nearest,
                                   nearest.empty() ? "" : "?"));
  });
  return unknown;
}

absl::StatusOr<AgentOptions> OptionsFromEnvironment() {
  Environment environment;
  AgentOptions options;
  if (absl::Status status = Read(environment, options); !status.ok()) return status;
  const std::vector<std::string> backends = BackendsOf(options);
  ForEachOther(environment.names(), [&](std::string_view name, std::string_view value) {
    if (const auto option = OptionOf(name, backends)) {
      options.backend[option->first][option->second] = std::string(value);
    }
  });
  for (const std::string& line : UnknownVariables()) {
    if (IsNews(line)) Log(LogLevel::kWarning, "environment: {}", line);
  }
  return options;
}

}  // namespace kvxfer
