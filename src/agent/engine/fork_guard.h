// Tells a forked child that what it sees belongs to its parent: a page that the kernel wipes in
// children (MADV_WIPEONFORK). Costs one load to ask.
//
// Thread-safety: ask from any thread.

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
  volatile uint64_t* page_ = nullptr;  // null where the kernel has no MADV_WIPEONFORK
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_ENGINE_FORK_GUARD_H_
