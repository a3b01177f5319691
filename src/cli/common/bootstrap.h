// Where clients of `kvxfer serve` come in: a TCP port that speaks channel messages, so that agents
// can exchange metadata before they can reach each other.
//
// It trusts nobody: what is no message closes that connection and no other; the number of clients
// and the size of a message are bounded; whoever says nothing is let go.
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

  // InvalidArgument: the host does not resolve; FailedPrecondition, with the remedy: the address
  // cannot be had here.
  static absl::StatusOr<BootstrapServer> Listen(const HostPort& address);

  // The port in use, also when 0 was asked for.
  const HostPort& address() const { return address_; }

  // Calls `serve` once for each client, each on a thread of its own, until `stop_fd` is readable;
  // then closes every channel and returns when all calls have.
  void Run(int stop_fd, const std::function<void(Channel&)>& serve);

 private:
  // `thread` has a reference to `channel`, so a client stays where it is in the list until it is
  // joined. `done` is set by the thread as its last act.
  struct Client {
    Channel channel;
    std::thread thread;
    bool done = false;
  };
  // The running threads; `mutex` guards the list and each `done`. Held by pointer so that the
  // server can be moved before Run.
  struct Clients {
    std::mutex mutex;
    std::list<Client> list;
  };

  BootstrapServer(UniqueFd listener, HostPort address)
      : listener_(std::move(listener)),
        address_(std::move(address)),
        clients_(std::make_unique<Clients>()) {}
  void Accept(const std::function<void(Channel&)>& serve);
  // Joins the threads that are done, or waits for all.
  void JoinEnded(bool all);

  UniqueFd listener_;
  HostPort address_;
  std::unique_ptr<Clients> clients_;
};

// Unavailable, with the remedy, when nobody answers there within `timeout`.
absl::StatusOr<Channel> ConnectTo(const HostPort& address, Duration timeout);

// The address of this host that `channel` comes from, without a port: the other side has a route
// to it, which it need not have to any other. Empty where the channel is no TCP connection.
std::string LocalHost(const Channel& channel);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_BOOTSTRAP_H_
