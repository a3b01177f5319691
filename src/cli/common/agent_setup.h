// How the subcommands make their agents.
#ifndef KVXFER_CLI_COMMON_AGENT_SETUP_H_
#define KVXFER_CLI_COMMON_AGENT_SETUP_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kvxfer/agent.h"
#include "src/cli/common/channel.h"
#include "src/cli/common/memory_choice.h"

namespace kvxfer::cli {

struct AgentSetup {
  std::string role{};            // first part of the agent's name
  std::string backends{};        // comma separated, best first; empty: the environment's, else all
  std::string listen{};          // empty: the environment's, else default_listen
  std::string default_listen{};  // where the user says nothing; empty: loopback
  std::string advertise{};       // empty: the environment's, else by AgentOptions' rule
  bool own_port = false;         // any free port, whatever the environment says
  bool gpu_memory = false;       // some will be registered with it, if there are GPUs
  uint64_t fault_seed = 1;       // for "faulty:" backends
};

// Starts from OptionsFromEnvironment. Where backends are named, peers must be reached over one of
// them. "faulty:" backends reorder, delay by up to 1 ms and let messages overtake data. An address
// to listen on that has no port gets any free one. The name is made up, so that no two processes
// that share an environment share it.
//
// `own_port` is for the second process of a run: both processes have one environment, and there a
// port can be had only once.
//
// With `gpu_memory` CUDA is initialised first: libfabric asks its providers for GPU memory only
// where a process uses CUDA by then.
//
// InvalidArgument, NotFound: what the user gave; FailedPrecondition: this host cannot do it.
absl::StatusOr<std::unique_ptr<Agent>> MakeAgent(const AgentSetup& setup);

// InvalidArgument unless `hello`, or the answer to one, is of this version of kvxfer: messages and
// what they mean differ between versions. `they` sent it; what an error calls the two sides.
absl::Status CheckVersion(const Json& hello, const std::string& they, const std::string& we);

// Tells the agent at the other end of `channel` of `agent` and makes it known here; returns its
// name. Again after registering memory: both sides' metadata is brought up to date.
absl::StatusOr<std::string> Introduce(Channel& channel, Agent& agent);

// The run is over and both sides close as agreed: from here on losing a peer is not worth a
// warning.
void ExpectPeersToLeave();

// The backend that carries transfers to `peer` between such memory, and what its path is: "tcp:
// 127.0.0.1:40001, 2 streams; staged in host memory".
std::string ChosenPath(const Agent& agent, const std::string& peer, const MemorySides& memory);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_AGENT_SETUP_H_
