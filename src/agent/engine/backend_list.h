// Which backends an agent makes, out of AgentOptions::backends.
#ifndef KVXFER_AGENT_ENGINE_BACKEND_LIST_H_
#define KVXFER_AGENT_ENGINE_BACKEND_LIST_H_

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace kvxfer {

struct BackendList {
  std::vector<std::string> names{};  // best first
  // Named one by one: none may be left out. Else those that are not usable here are.
  bool strict = false;
};

// `asked` is empty (all of `defaults`), or names backends, or names those to leave out of
// `defaults`, each with "^" before it. InvalidArgument where it does both, names one twice, leaves
// out what is no default, or leaves nothing.
absl::StatusOr<BackendList> ChooseBackends(std::span<const std::string> asked,
                                           std::span<const std::string> defaults);

}  // namespace kvxfer

#endif  // KVXFER_AGENT_ENGINE_BACKEND_LIST_H_
