#include "src/agent/engine/backend_list.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace kvxfer {
namespace {

bool LeavesOut(const std::string& name) { return name.starts_with('^'); }

// A peer looks up a backend's address and keys by its name, so a name must be unique.
absl::Status CheckOnce(std::span<const std::string> names) {
  for (auto it = names.begin(); it != names.end(); ++it) {
    if (std::find(names.begin(), it, *it) == it) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("backend ", *it, " is named twice in backends; name it once"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<BackendList> ChooseBackends(std::span<const std::string> asked,
                                           std::span<const std::string> defaults) {
  if (auto status = CheckOnce(asked); !status.ok()) return status;
  const auto out = std::ranges::count_if(asked, LeavesOut);
  if (!asked.empty() && out == 0) {
    return BackendList{.names = {asked.begin(), asked.end()}, .strict = true};
  }
  if (static_cast<size_t>(out) != asked.size()) {
    return absl::InvalidArgumentError(
        "backends both names some and leaves some out with ^; do one of the two");
  }
  for (const std::string& name : asked) {
    if (std::ranges::find(defaults, name.substr(1)) != defaults.end()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("\"", name, "\" in backends leaves out nothing; ", "taken by default are ",
                     absl::StrJoin(defaults, ", ")));
  }
  BackendList list;
  for (const std::string& name : defaults) {
    if (std::ranges::find(asked, "^" + name) == asked.end()) list.names.push_back(name);
  }
  if (list.names.empty()) return absl::InvalidArgumentError("backends leaves out every backend");
  return list;
}

}  // namespace kvxfer
