// One epoll set with a timer in it: the wait_fd of a backend.
//
// Every descriptor is watched edge-triggered, once, for both directions. The watchers keep
// readiness in flags, so no system call is needed to start or stop asking for "writable".
//
// Thread-safety: none; used by the agent's driving thread.

#ifndef KVXFER_TRANSPORT_SOCKETS_REACTOR_H_
#define KVXFER_TRANSPORT_SOCKETS_REACTOR_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "src/core/base/clock.h"
#include "src/transport/sockets/socket.h"

namespace kvxfer::net {

// Receives readiness. OnReady must only record it: no watcher may be created or destroyed during
// the call.
class Watcher {
 public:
  virtual ~Watcher() = default;
  virtual void OnReady(uint32_t events) = 0;
};

class Reactor {
 public:
  static absl::StatusOr<std::unique_ptr<Reactor>> Create();

  // Watches `fd`; `watcher` must live until Remove. After Add, treat the descriptor as readable and
  // writable until a call says otherwise.
  absl::Status Add(int fd, Watcher* watcher);
  // Hands a watched descriptor to another watcher.
  void Move(int fd, Watcher* watcher);
  // Call it before closing the descriptor. A forked child may keep the socket open, and then epoll
  // would still report it.
  void Remove(int fd);

  // Notifies the watchers of what became ready; never blocks.
  void Collect();

  // Makes fd() readable at `when`; nullopt: never.
  void SetTimer(std::optional<Time> when);

  int fd() const { return epoll_.get(); }

 private:
  Fd epoll_;
  Fd timer_;
  std::optional<Time> when_;
};

}  // namespace kvxfer::net

#endif  // KVXFER_TRANSPORT_SOCKETS_REACTOR_H_
