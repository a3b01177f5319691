// The process of a peer, held by a pidfd: a pidfd names one process for ever, so that a number used
// again is never taken for it.
//
// Thread-safety: none; used by the backend's owner.

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
  // The process `pid` that began at `start_time` (0: not known, and not checked). NotFound: it has
  // ended; Unavailable: there are no pidfds here, and why.
  static absl::StatusOr<std::unique_ptr<PeerProcess>> Open(net::Reactor* reactor,
                                                           const HostIdentity& self, uint32_t pid,
                                                           uint64_t start_time);
  ~PeerProcess() override;

  uint32_t pid() const { return pid_; }
  // Since the last Reactor::Collect. By then the kernel has closed all that the process had open,
  // its GPU contexts included.
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
