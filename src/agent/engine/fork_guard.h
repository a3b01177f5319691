// Tells whether the process is a forked child that sees its parent's agent. It uses a page that the
// kernel zeroes in children (MADV_WIPEONFORK). A check costs one load.
//
// Thread-safety: any thread.

#ifndef KVXFER_AGENT_ENGINE_FORK_GUARD_H_
#define KVXFER_AGENT_ENGINE_FORK_GUARD_H_

#include <cstdint>

#include "absl/status/status.h"

namespace kvxfer {

class ForkGuard {
 public:
  ForkGuard();
  ~ForkGuard();
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;

  bool InChild() const { return page_ != nullptr && *page_ == 0; }
  absl::Status Check() const;

 private:
  volatile uint64_t* page_ = nullptr;  // null if the kernel has no MADV_WIPEONFORK (Linux < 4.14)
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_ENGINE_FORK_GUARD_H_
