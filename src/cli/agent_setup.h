// How the subcommands make their agents.
#ifndef KVXFER_CLI_AGENT_SETUP_H_
#define KVXFER_CLI_AGENT_SETUP_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kvxfer/agent.h"
#include "src/cli/channel.h"

namespace kvxfer::cli {

struct AgentSetup {
  std::string role{};       // first part of the agent's name
  std::string backends{};   // comma separated, best first; empty: the environment's, else all
  std::string listen{};     // empty: the environment's, else loopback
  std::string advertise{};  // empty: the environment's, else by AgentOptions' rule
  uint64_t fault_seed = 1;  // for "faulty:" backends
};

// Starts from OptionsFromEnvironment. Where backends are named, peers must be reached over one of
// them. "faulty:" backends reorder, delay by up to 1 ms and let messages overtake data.
absl::StatusOr<std::unique_ptr<Agent>> MakeAgent(const AgentSetup& setup);

// Tells the agent at the other end of `channel` of `agent` and makes it known here; returns its
// name. Again after registering memory: both sides' metadata is brought up to date.
absl::StatusOr<std::string> Introduce(Channel& channel, Agent& agent);

// The run is over and both sides close as agreed: from here on losing a peer is not worth a
// warning.
void ExpectPeersToLeave();

// The backend that carries transfers to `peer`, and what its path is: "tcp: 127.0.0.1:40001, 2
// streams".
std::string ChosenPath(const Agent& agent, const std::string& peer);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_AGENT_SETUP_H_
