// Decides which backends an agent makes, from AgentOptions::backends.
//
// Thread-safety: pure functions.
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
  // True: the application named each backend, and each of them must be usable. False: backends that
  // are not usable on this host are left out.
  bool strict = false;
};

// `asked` is empty (take all of `defaults`), or names the backends, or names those to leave out of
// `defaults`, each with "^" before it. InvalidArgument if it mixes both forms, names a backend
// twice, leaves out a backend that is not in `defaults`, or leaves none.
absl::StatusOr<BackendList> ChooseBackends(std::span<const std::string> asked,
                                           std::span<const std::string> defaults);

}  // namespace kvxfer

#endif  // KVXFER_AGENT_ENGINE_BACKEND_LIST_H_
