// One epoll set with a timer in it: the wait_fd of a backend.
//
// Unless it asks for other events, a descriptor is watched edge-triggered, once, for both
// directions: its watcher keeps readiness in flags, so no system call is needed to start or stop
// asking for "writable".
//
// Thread-safety: none, except Wait; used by one thread, the agent's driving thread or a data
// thread.

#ifndef KVXFER_TRANSPORT_SOCKETS_REACTOR_H_
#define KVXFER_TRANSPORT_SOCKETS_REACTOR_H_

#include <sys/epoll.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "src/core/base/clock.h"
#include "src/transport/sockets/socket.h"

namespace kvxfer::net {

// Receives readiness. OnReady may add and remove watchers, but must destroy none: one that is
// removed during Collect may still be called until Collect has returned.
class Watcher {
 public:
  virtual ~Watcher() = default;
  virtual void OnReady(uint32_t events) = 0;
};

class Reactor {
 public:
  // RDHUP: a half-closed peer is noticed without a read.
  static constexpr uint32_t kEdges = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;

  static absl::StatusOr<std::unique_ptr<Reactor>> Create();

  // Watches `fd` for `events`, flags of epoll; `watcher` must live until Remove. If it is null, the
  // descriptor makes fd() readable, and nothing is called. With kEdges, treat the descriptor as
  // readable and writable from now on until a call says otherwise.
  absl::Status Add(int fd, Watcher* watcher, uint32_t events = kEdges);
  // Hands a watched descriptor to another watcher, or watches it for other events.
  void Change(int fd, Watcher* watcher, uint32_t events = kEdges);
  // Call it before closing the descriptor. A forked child may keep the socket open, and then epoll
  // would still report it.
  void Remove(int fd);

  // Notifies the watchers of what became ready; never blocks.
  void Collect();

  // The two halves of Collect, for a thread that sleeps. Wait returns when something is ready, or
  // for a signal; others may call Remove meanwhile. Dispatch notifies all watchers but `gone`: name
  // those that were removed since Wait began.
  struct Ready {
    std::array<epoll_event, 64> events;
    int count = 0;
  };
  void Wait(Ready& out) const { WaitFor(out, /*timeout_ms=*/-1); }
  static void Dispatch(const Ready& ready, std::span<const Watcher* const> gone);

  // Makes fd() readable at `when`; nullopt: never.
  void SetTimer(std::optional<Time> when);

  int fd() const { return epoll_.get(); }

 private:
  void WaitFor(Ready& out, int timeout_ms) const;

  Fd epoll_;
  Fd timer_;
  std::optional<Time> when_;
};

}  // namespace kvxfer::net

#endif  // KVXFER_TRANSPORT_SOCKETS_REACTOR_H_
