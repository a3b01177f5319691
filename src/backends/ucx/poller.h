// The backend's epoll: the worker's descriptor, the processes of peers, and a timer.
// Level-triggered: what a Poll leaves behind shows again.
//
// Thread-safety: none; used by the backend's owner.

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

  // Null watcher: it shows in fd() and nobody is told. Watchers stay until Remove.
  absl::Status Add(int fd, Watcher* watcher);
  void Remove(int fd);

  // Calls OnReady for what is ready now; never blocks. A watcher may remove itself meanwhile, and
  // no other.
  void Dispatch();

  // Makes fd() readable once, `delay` from now.
  void Nap(Duration delay);

 private:
  OwnFd epoll_;
  OwnFd timer_;
};

}  // namespace kvxfer::ucx

#endif  // KVXFER_BACKENDS_UCX_POLLER_H_
