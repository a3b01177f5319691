// The port for clients of `kvxfer serve`: TCP with channel messages, over which agents exchange
// metadata before they can reach each other.
//
// It does not trust clients: anything that is not a message closes its own connection and no other;
// the number of clients and the size of a message are bounded; silent clients are disconnected.
#ifndef KVXFER_CLI_COMMON_BOOTSTRAP_H_
#define KVXFER_CLI_COMMON_BOOTSTRAP_H_

#include <functional>
#include <list>
#include <mutex>
#include <thread>

#include "absl/status/statusor.h"
#include "src/cli/common/channel.h"
#include "src/cli/common/host_port.h"

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

// The local address of `channel`, without a port: the other side has a route to it, and may have no
// route to other addresses of this host. Empty if the channel is not a TCP connection.
std::string LocalHost(const Channel& channel);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_BOOTSTRAP_H_
