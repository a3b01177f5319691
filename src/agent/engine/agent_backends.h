// Makes the backends of an agent.
//
// Thread-safety: a function without state.

#ifndef KVXFER_AGENT_ENGINE_AGENT_BACKENDS_H_
#define KVXFER_AGENT_ENGINE_AGENT_BACKENDS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/backend.h"
#include "kvxfer/peer.h"
#include "src/agent/engine/agent_factory.h"

namespace kvxfer {

struct AgentBackends {
  std::vector<std::unique_ptr<Backend>> usable{};  // in order of preference
  // Those of the default list that this host cannot use, and why.
  std::vector<PathExplanation> unusable{};

  // The address of the backend that serves metadata, if there is one: AgentOptions::listen names
  // that one. Otherwise the address of a backend that listens for TCP connections too.
  std::string listen_address() const;
};

// Makes what the options in `context` name. A backend that was named must work; of the default list
// those that do not work here are left out. Unavailable: none is left, or none of
// AgentOptions::require_backends. InvalidArgument: metadata cannot be served as asked.
absl::StatusOr<AgentBackends> MakeAgentBackends(const BackendContext& context,
                                                internal::BackendMaker make);

}  // namespace kvxfer

#endif  // KVXFER_AGENT_ENGINE_AGENT_BACKENDS_H_
