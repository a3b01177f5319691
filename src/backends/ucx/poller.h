// The backend's epoll set: the worker's descriptor, the processes of peers, and a timer. It is
// level-triggered: what a Poll leaves unread is reported again.
//
// Thread-safety: none; called by the agent's driver only.

#ifndef KVXFER_BACKENDS_UCX_POLLER_H_
#define KVXFER_BACKENDS_UCX_POLLER_H_

#include "absl/status/status.h"
#include "kvxfer/types.h"
#include "src/core/base/own_fd.h"

namespace kvxfer::ucx {

class Watcher {
 public:
  virtual ~Watcher() = default;
  virtual void OnReady() = 0;
};

class Poller {
 public:
  absl::Status Open();

  int fd() const { return epoll_.get(); }

  // Null `watcher`: the descriptor makes fd() readable, and nothing is called. A watcher stays
  // until Remove.
  absl::Status Add(int fd, Watcher* watcher);
  void Remove(int fd);

  // Calls OnReady for the watchers that are ready now; never blocks. Within OnReady a watcher may
  // remove itself, but no other.
  void Dispatch();

  // Makes fd() readable once, `delay` from now.
  void Nap(Duration delay);

 private:
  OwnFd epoll_;
  OwnFd timer_;
};

}  // namespace kvxfer::ucx

#endif  // KVXFER_BACKENDS_UCX_POLLER_H_
