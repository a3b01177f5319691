// A peer's process, held by a pidfd. A pidfd refers to one process for ever, so a process that
// reuses the number is never mistaken for it.
//
// Thread-safety: none; called by the agent's driver only.

#ifndef KVXFER_BACKENDS_CUDA_IPC_PROCESS_H_
#define KVXFER_BACKENDS_CUDA_IPC_PROCESS_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "kvxfer/backend.h"
#include "src/transport/sockets/reactor.h"
#include "src/transport/sockets/socket.h"

namespace kvxfer::cuda_ipc {

class PeerProcess final : public net::Watcher {
 public:
  // The process `pid` that started at `start_time` (0: unknown, not checked). NotFound: it has
  // ended. Unavailable: no pidfds here, and why.
  static absl::StatusOr<std::unique_ptr<PeerProcess>> Open(net::Reactor* reactor,
                                                           const HostIdentity& self, uint32_t pid,
                                                           uint64_t start_time);
  ~PeerProcess() override;

  uint32_t pid() const { return pid_; }
  // As of the last Reactor::Collect. When the pidfd shows the exit, the kernel has closed
  // everything that the process had open, including its GPU contexts.
  bool exited() const { return exited_; }

  void OnReady(uint32_t events) override;

 private:
  PeerProcess(net::Reactor* reactor, uint32_t pid, net::Fd pidfd)
      : reactor_(reactor), pid_(pid), pidfd_(std::move(pidfd)) {}

  net::Reactor* const reactor_;
  const uint32_t pid_;
  net::Fd pidfd_;
  bool watched_ = false;
  bool exited_ = false;
};

}  // namespace kvxfer::cuda_ipc

#endif  // KVXFER_BACKENDS_CUDA_IPC_PROCESS_H_
