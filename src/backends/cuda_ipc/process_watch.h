// Notices the end of a peer's process.
//
// Thread-safety: none; called by the agent's driver only.

#ifndef KVXFER_BACKENDS_CUDA_IPC_PROCESS_WATCH_H_
#define KVXFER_BACKENDS_CUDA_IPC_PROCESS_WATCH_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "src/transport/host/peer_process.h"
#include "src/transport/sockets/reactor.h"

namespace kvxfer::cuda_ipc {

class ProcessWatch final : private net::Watcher {
 public:
  static absl::StatusOr<std::unique_ptr<ProcessWatch>> Begin(net::Reactor* reactor,
                                                             PeerProcess process) {
    std::unique_ptr<ProcessWatch> watch(new ProcessWatch(reactor, std::move(process)));
    absl::Status added = reactor->Add(watch->process_.pidfd(), watch.get());
    if (!added.ok()) return added;
    watch->watched_ = true;
    return watch;
  }
  ~ProcessWatch() override {
    if (watched_) reactor_->Remove(process_.pidfd());
  }

  uint32_t pid() const { return process_.pid(); }
  // As of the last Reactor::Collect. When the pidfd shows the exit, the kernel has closed
  // everything that the process had open, including its GPU contexts.
  bool exited() const { return exited_; }

 private:
  ProcessWatch(net::Reactor* reactor, PeerProcess process)
      : reactor_(reactor), process_(std::move(process)) {}
  void OnReady(uint32_t /*events*/) override { exited_ = exited_ || process_.Exited(); }

  net::Reactor* const reactor_;
  const PeerProcess process_;
  bool watched_ = false;
  bool exited_ = false;
};

}  // namespace kvxfer::cuda_ipc

#endif  // KVXFER_BACKENDS_CUDA_IPC_PROCESS_WATCH_H_
