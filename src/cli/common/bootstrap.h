// The port for clients of `kvxfer serve`: TCP with channel messages, over which agents exchange
// metadata before they can reach each other.
//
// It does not trust clients: anything that is not a message closes its own connection and no other;
// the number of clients and the size of a message are bounded; silent clients are disconnected.

#ifndef KVXFER_CLI_COMMON_BOOTSTRAP_H_
#define KVXFER_CLI_COMMON_BOOTSTRAP_H_

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "kvxfer/agent.h"
#include "src/cli/common/channel.h"
#include "src/cli/common/units.h"

namespace kvxfer::cli {

class BootstrapServer {
 public:
  static constexpr size_t kMaxClients = 256;

  // InvalidArgument: the host does not resolve. FailedPrecondition: this host cannot listen on the
  // address; the message says what to do.
  static absl::StatusOr<BootstrapServer> Listen(const HostPort& address);

  // With the port in use, also if port 0 was requested.
  const HostPort& address() const { return address_; }

  // Calls `serve` once for each client, on a thread of its own, until `stop_fd` is readable. Then
  // closes every channel and returns when all calls have returned.
  void Run(int stop_fd, const std::function<void(Channel&)>& serve);

 private:
  // `thread` refers to `channel`, so a client keeps its place in the list until its thread is
  // joined. The thread sets `done` last.
  struct Client {
    Channel channel;
    std::thread thread;
    bool done = false;
  };
  // `mutex` guards the list and each `done`. A pointer holds this, so that the server can be moved
  // before Run.
  struct Clients {
    std::mutex mutex;
    std::list<Client> list;
  };

  BootstrapServer(UniqueFd listener, HostPort address)
      : listener_(std::move(listener)),
        address_(std::move(address)),
        clients_(std::make_unique<Clients>()) {}
  void Accept(const std::function<void(Channel&)>& serve);
  // Joins the threads that are done, or all threads.
  void JoinEnded(bool all);

  UniqueFd listener_;
  HostPort address_;
  std::unique_ptr<Clients> clients_;
};

// Unavailable if nothing answers there within `timeout`; the message says what to do.
absl::StatusOr<Channel> ConnectTo(const HostPort& address, Duration timeout);
// The same for "HOST[:PORT]", within two seconds.
absl::StatusOr<Channel> ConnectToServer(const std::string& server);

// The local address of `channel`, without a port: the other side has a route to it, and may have no
// route to other addresses of this host. Empty if the channel is not a TCP connection.
std::string LocalHost(const Channel& channel);

// --- How the subcommands create their agents.

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

// Adds the peer whose metadata a message has, and returns its name.
absl::StatusOr<std::string> AddPeerOf(const Json& message, Agent& agent);

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

#endif  // KVXFER_CLI_COMMON_BOOTSTRAP_H_
