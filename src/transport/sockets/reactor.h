// One epoll set with a timer in it: what wait_fd of the backend is.
//
// Everything is watched edge-triggered, once, for both directions: readiness is kept as flags by
// the watchers, and no system call is needed to ask for "writable" or to stop asking.
//
// Thread-safety: none; used by the backend's owner.

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

// Told of readiness. Must only note it: watchers are neither made nor destroyed meanwhile.
class Watcher {
 public:
  virtual ~Watcher() = default;
  virtual void OnReady(uint32_t events) = 0;
};

class Reactor {
 public:
  static absl::StatusOr<std::unique_ptr<Reactor>> Create();

  // `watcher` stays until Remove. Whoever is added must take its descriptor for readable and
  // writable until it has tried.
  absl::Status Add(int fd, Watcher* watcher);
  // Hands a watched descriptor to another watcher.
  void Move(int fd, Watcher* watcher);
  // Before the descriptor is closed: a forked child may keep the socket open.
  void Remove(int fd);

  // Tells the watchers what became ready; never blocks.
  void Collect();

  // Makes fd() readable at `when`; nothing: never.
  void SetTimer(std::optional<Time> when);

  int fd() const { return epoll_.get(); }

 private:
  Fd epoll_;
  Fd timer_;
  std::optional<Time> when_;
};

}  // namespace kvxfer::net

#endif  // KVXFER_TRANSPORT_SOCKETS_REACTOR_H_
