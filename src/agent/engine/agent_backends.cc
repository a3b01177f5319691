#include "src/agent/engine/agent_backends.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/agent/engine/backend_list.h"
#include "src/agent/engine/check_options.h"
#include "src/core/base/log.h"
#include "src/core/base/strings.h"

namespace kvxfer {
namespace {

// Whether `status` says that the backend cannot work on this host, as opposed to one that is
// configured wrongly.
bool NotUsableHere(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsPermissionDenied(status) ||
         absl::IsUnimplemented(status);
}

// Options of a backend that the agent goes without are not ignored in silence.
void WarnOfUnusedSections(const AgentOptions& options, const AgentBackends& backends) {
  for (const auto& section : options.backend) {
    const std::string& name = section.first;
    const bool used = std::ranges::any_of(backends.usable, [&name](const auto& backend) {
      return Undecorated(backend->name()) == name ||
             backend->name().starts_with(absl::StrCat(name, ":"));
    });
    if (used || section.second.empty()) continue;
    Log(LogLevel::kWarning, "agent {}: options of backend {} are set, and it has no such backend",
        options.name, name);
  }
}

absl::Status CheckServesMetadata(const AgentOptions& options, const AgentBackends& backends) {
  const bool able = std::ranges::any_of(
      backends.usable, [](const auto& b) { return b->capabilities().serves_metadata; });
  if (able || !options.serve_metadata) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "`serve_metadata` (KVXFER_SERVE_METADATA) is set, but the agent has no backend tcp, whose "
      "port hands metadata out; add \"tcp\" to `backends` (KVXFER_BACKENDS)");
}

// Among the backends that are left there must be one, and one of require_backends if that is set.
absl::Status CheckSomeBackend(const AgentOptions& options, const AgentBackends& backends) {
  const auto& required = options.require_backends;
  const auto wanted = [&required](std::string_view name) {
    return required.empty() || std::ranges::find(required, name) != required.end();
  };
  std::string all;
  for (const PathExplanation& path : backends.unusable) {
    if (!wanted(path.backend)) continue;
    absl::StrAppend(&all, all.empty() ? "" : "; ", path.why);
  }
  const bool some = std::ranges::any_of(
      backends.usable, [&](const auto& backend) { return wanted(backend->name()); });
  if (some || all.empty()) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("no ", required.empty() ? "" : "required ", "backend is usable here: ", all));
}

absl::Status CheckCarrier(const AgentOptions& options, const AgentBackends& backends) {
  const ControlCarrier control = options.control;
  if (control == ControlCarrier::kAuto) return absl::OkStatus();
  std::string names;
  for (const auto& backend : backends.usable) {
    if (backend->capabilities().carrier == control) return absl::OkStatus();
    absl::StrAppend(&names, names.empty() ? "" : ", ", ToAbsl(backend->name()));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "`control` (KVXFER_CONTROL) is ", ToAbsl(NameOf(control)),
      ", and none of the agent's backends (", names,
      ") carries control frames so; name one that does in `backends` (KVXFER_BACKENDS)"));
}

}  // namespace

std::string AgentBackends::listen_address() const {
  std::string address;
  for (const auto& backend : usable) {
    const BackendInfo& info = backend->Describe();
    if (address.empty() || info.capabilities.serves_metadata) address = info.listen_address;
  }
  return address;
}

absl::StatusOr<AgentBackends> MakeAgentBackends(const BackendContext& context,
                                                internal::BackendMaker make) {
  const AgentOptions& options = context.options;
  auto list = ChooseBackends(options.backends, DefaultBackends());
  if (!list.ok()) return list.status();
  AgentBackends made;
  for (const std::string& name : list->names) {
    auto backend = make(name, context);
    if (backend.ok()) {
      made.usable.push_back(*std::move(backend));
      continue;
    }
    const absl::Status& why = backend.status();
    if (list->strict || !NotUsableHere(why)) {
      return WithMessage(why, absl::StrCat("backend ", WithName(why, name).message()));
    }
    made.unusable.push_back({.backend = name, .why = std::string(why.message())});
    // Missing hardware is normal and is logged at debug; hardware that is present but unusable is a
    // warning.
    Log(absl::IsUnimplemented(why) ? LogLevel::kDebug : LogLevel::kWarning,
        "agent {} goes without a backend: {}", options.name, made.unusable.back().why);
  }
  WarnOfUnusedSections(options, made);
  if (auto status = CheckServesMetadata(options, made); !status.ok()) return status;
  if (auto status = CheckSomeBackend(options, made); !status.ok()) return status;
  if (auto status = CheckCarrier(options, made); !status.ok()) return status;
  return made;
}

}  // namespace kvxfer
