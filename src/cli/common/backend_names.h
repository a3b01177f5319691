// Names of backends, as users type them.
//
// Thread-safety: functions without state.
#ifndef KVXFER_CLI_COMMON_BACKEND_NAMES_H_
#define KVXFER_CLI_COMMON_BACKEND_NAMES_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "src/backends/registry.h"

namespace kvxfer::cli {

// "tcp" for "faulty:tcp".
std::string WithoutDecorator(std::string_view name);

// InvalidArgument: none of `all` is called `name`; says which name was probably meant.
absl::Status UnknownBackend(std::string_view name, const std::vector<BackendOrigin>& all);

// OK if each of `names` is one of `all`, decorated ("faulty:tcp") or left out ("^tcp") or not.
absl::Status CheckBackendNames(const std::vector<std::string>& names,
                               const std::vector<BackendOrigin>& all);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_BACKEND_NAMES_H_
