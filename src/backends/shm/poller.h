// The backend's epoll set. Level-triggered, except for the bell: what one Poll leaves is shown to
// the next.

#ifndef KVXFER_BACKENDS_SHM_POLLER_H_
#define KVXFER_BACKENDS_SHM_POLLER_H_

#include <sys/epoll.h>

#include <array>
#include <cstdint>

#include "absl/status/statusor.h"
#include "src/backends/shm/handles.h"

namespace kvxfer::shm {

enum class Ready : uint8_t { kListener, kTimer, kBell, kSocket, kProcess };

class Watcher {
 public:
  virtual ~Watcher() = default;
  virtual void OnReady(Ready what) = 0;
};

// One watched descriptor. It must stay at its address while it is watched; if it is removed during
// Dispatch, until that Dispatch has returned.
struct Watch {
  Watcher* watcher = nullptr;
  Ready what = Ready::kSocket;
};

class Poller {
 public:
  static absl::StatusOr<Poller> Create() {
    UniqueFd fd = UniqueFd::Open([] { return epoll_create1(EPOLL_CLOEXEC); });
    if (!fd.valid()) return ErrnoStatus(errno, "shm: epoll_create1");
    Poller poller;
    poller.fd_ = std::move(fd);
    return poller;
  }

  int fd() const { return fd_.get(); }

  absl::Status Add(int fd, uint32_t events, Watch* watch) {
    if (Control(EPOLL_CTL_ADD, fd, events, watch) == 0) return absl::OkStatus();
    return ErrnoStatus(errno, "shm: epoll_ctl");
  }
  void Modify(int fd, uint32_t events, Watch* watch) { Control(EPOLL_CTL_MOD, fd, events, watch); }
  void Remove(int fd) { Control(EPOLL_CTL_DEL, fd, 0, nullptr); }

  // Calls OnReady for each descriptor that is ready now. Never blocks.
  void Dispatch() {
    std::array<epoll_event, 64> ready;
    const int n = epoll_wait(fd_.get(), ready.data(), static_cast<int>(ready.size()), 0);
    for (int i = 0; i < n; ++i) {
      auto* watch = static_cast<Watch*>(ready[static_cast<size_t>(i)].data.ptr);
      watch->watcher->OnReady(watch->what);
    }
  }

 private:
  int Control(int what, int fd, uint32_t events, Watch* watch) {
    epoll_event event{};
    event.events = events;
    event.data.ptr = watch;
    return epoll_ctl(fd_.get(), what, fd, &event);
  }

  UniqueFd fd_;
};

}  // namespace kvxfer::shm

#endif  // KVXFER_BACKENDS_SHM_POLLER_H_
