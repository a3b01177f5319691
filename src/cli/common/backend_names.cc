#include "src/cli/common/backend_names.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "src/cli/common/did_you_mean.h"
#include "src/core/base/strings.h"

namespace kvxfer::cli {

std::string WithoutDecorator(std::string_view name) {
  constexpr std::string_view kFaulty = "faulty:";
  if (name.starts_with(kFaulty)) name.remove_prefix(kFaulty.size());
  return std::string(name);
}

absl::Status UnknownBackend(std::string_view name, const std::vector<BackendOrigin>& all) {
  std::vector<std::string> known;
  known.reserve(all.size());
  for (const BackendOrigin& origin : all) known.push_back(origin.name);
  return absl::InvalidArgumentError(
      absl::StrCat("no backend '", ToAbsl(name), "'", DidYouMeanOrChoose(name, known)));
}

absl::Status CheckBackendNames(const std::vector<std::string>& names,
                               const std::vector<BackendOrigin>& all) {
  for (const std::string& name : names) {
    const std::string_view typed = name;
    const std::string plain = WithoutDecorator(typed.substr(typed.starts_with('^') ? 1 : 0));
    if (std::ranges::find(all, plain, &BackendOrigin::name) == all.end()) {
      return UnknownBackend(plain, all);
    }
  }
  return absl::OkStatus();
}

}  // namespace kvxfer::cli
