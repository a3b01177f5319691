// How the subcommands create their agents.
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
  std::string backends{};        // --backend; empty: as the environment says, else all
  std::string listen{};          // --listen; empty: as the environment says, else default_listen
  std::string default_listen{};  // if the user names no address; empty: loopback
  std::string advertise{};       // empty: as the environment says, else by the rule of AgentOptions
  bool own_port = false;         // listens on any free port, whatever the environment says
  bool gpu_memory = false;       // the caller will register GPU memory
  uint64_t fault_seed = 1;       // for "faulty:" backends
};

// Starts from OptionsFromEnvironment. If `backends` names some, peers must be reached over one of
// them. "faulty:" backends reorder, delay by up to 1 ms and let messages overtake data. An address
// to listen on without a port gets any free port. The agent's name is unique, so that processes
// with the same environment have different names.
//
// `own_port` is for the second process of a run: both processes have the same environment, and only
// one of them can have the port that it names.
//
// With `gpu_memory`, CUDA is initialised first: libfabric asks its providers for GPU memory only if
// the process uses CUDA by then.
//
// InvalidArgument, NotFound: an option is wrong. FailedPrecondition: this host lacks something.
absl::StatusOr<std::unique_ptr<Agent>> MakeAgent(const AgentSetup& setup);

// InvalidArgument unless `hello`, or the answer to a hello, names this version of kvxfer: messages
// and their meaning differ between versions. An error calls the sender `they` and this side `we`.
absl::Status CheckVersion(const Json& hello, const std::string& they, const std::string& we);

// Exchanges metadata with the agent at the other end of `channel` and returns the name of that
// agent. Call it again after registering memory: it updates the metadata of both sides.
absl::StatusOr<std::string> Introduce(Channel& channel, Agent& agent);

// Call it when a run is over and both sides close as agreed: from then on, losing a peer logs no
// warning.
void ExpectPeersToLeave();

// The backend that carries transfers to `peer` between such memory, and its path: "tcp:
// 127.0.0.1:40001, 2 streams; staged in host memory".
std::string ChosenPath(const Agent& agent, const std::string& peer, const MemorySides& memory);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_AGENT_SETUP_H_
