#include "src/agent/engine/check_options.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kvxfer/backend.h"
#include "kvxfer/notification.h"
#include "src/agent/engine/backend_list.h"
#include "src/core/base/nearest_word.h"
#include "src/core/base/strings.h"
#include "src/core/protocol/wire_format.h"

namespace kvxfer {
namespace {

// Each section of AgentOptions::backend is that of a backend which may exist.
absl::Status CheckSections(const AgentOptions& options) {
  std::vector<std::string> known = KnownBackendNames();
  known.emplace_back("faulty");
  for (const std::string& name : options.backends) known.emplace_back(Undecorated(name));
  for (const auto& [name, section] : options.backend) {
    if (std::ranges::find(known, name) != known.end()) continue;
    const std::string nearest = NearestWord(name, known);
    return absl::InvalidArgumentError(
        absl::StrCat("there are options of a backend \"", name, "\", which does not exist",
                     nearest.empty() ? "" : "; did you mean ", nearest,
                     nearest.empty() ? "; a plugin must be named in `backends`" : "?"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string_view Undecorated(std::string_view backend) {
  return backend.substr(backend.find(':') + 1);
}

absl::Status CheckAgentOptions(const AgentOptions& options) {
  if (absl::Status named = CheckName("agent", options.name); !named.ok()) return named;
  if (options.heartbeat <= Duration::zero() || options.connect_timeout <= Duration::zero() ||
      options.suspect_after <= options.heartbeat || options.cancel_grace < Duration::zero() ||
      options.kv_request_timeout <= Duration::zero()) {
    return absl::InvalidArgumentError(
        "heartbeat, connect_timeout and kv_request_timeout must be positive, suspect_after longer "
        "than heartbeat, cancel_grace not negative");
  }
  for (const Duration duration : {options.heartbeat, options.suspect_after, options.connect_timeout,
                                  options.cancel_grace, options.kv_request_timeout, options.spin}) {
    if (duration <= kLongest) continue;
    return absl::InvalidArgumentError(
        "heartbeat, suspect_after, connect_timeout, cancel_grace, kv_request_timeout and spin "
        "may be at most a year");
  }
  if (options.staging_bytes > AgentOptions::kMaxStagingBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("staging_bytes must be at most 64 GiB, is ", options.staging_bytes));
  }
  if (options.copy_sms > AgentOptions::kMaxCopySms) {
    return absl::InvalidArgumentError(absl::StrCat(
        "copy_sms must be at most ", AgentOptions::kMaxCopySms, ", is ", options.copy_sms));
  }
  if (options.max_notifications == 0 || options.max_notification_bytes < kMaxNotificationBytes ||
      options.max_active_transfers == 0 || options.max_active_transfers > kMaxSessionTransfers) {
    return absl::InvalidArgumentError(
        "max_notifications must be positive, max_active_transfers 1 to 16384, "
        "max_notification_bytes at least 64 KiB");
  }
  if (absl::Status known = CheckSections(options); !known.ok()) return known;
  return ChooseBackends(options.backends, DefaultBackends()).status();
}

absl::Status CheckTransferOptions(const TransferOptions& options) {
  if (options.deadline <= Duration::zero() || options.deadline > kLongest) {
    return absl::InvalidArgumentError("the deadline must be positive and at most a year");
  }
  if (options.notification.has_value() && options.notification->size() > kMaxNotificationBytes) {
    return absl::InvalidArgumentError(absl::StrCat("notification of ", options.notification->size(),
                                                   " bytes is larger than 64 KiB"));
  }
  return absl::OkStatus();
}

}  // namespace kvxfer
