// Creates agents with backends from elsewhere than the table of built-in ones. Benchmarks and tests
// use it to run a whole agent over a backend of their own.
//
// Thread-safety: as Agent::Create.

#ifndef KVXFER_AGENT_ENGINE_AGENT_FACTORY_H_
#define KVXFER_AGENT_ENGINE_AGENT_FACTORY_H_

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "kvxfer/agent.h"
#include "kvxfer/backend.h"

namespace kvxfer::internal {

// Makes the backend that AgentOptions::backends calls `name`; see MakeBackend.
using BackendMaker = absl::StatusOr<std::unique_ptr<Backend>> (*)(std::string_view name,
                                                                  const BackendContext& context);

class AgentFactory {
 public:
  static absl::StatusOr<std::unique_ptr<Agent>> Create(const AgentOptions& options,
                                                       BackendMaker make);
};

}  // namespace kvxfer::internal

#endif  // KVXFER_AGENT_ENGINE_AGENT_FACTORY_H_
