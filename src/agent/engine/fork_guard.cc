#include "src/agent/engine/fork_guard.h"

#include <sys/mman.h>

namespace kvxfer {
namespace {
constexpr size_t kPage = 4096;
}

ForkGuard::ForkGuard() {
  void* page = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return;
  if (madvise(page, kPage, MADV_WIPEONFORK) != 0) {
    munmap(page, kPage);
    return;
  }
  // The kernel replaces the page by zeroes in a child of fork.
  page_ = static_cast<volatile uint64_t*>(page);
  *page_ = 1;
}

ForkGuard::~ForkGuard() {
  if (page_ != nullptr) munmap(const_cast<uint64_t*>(page_), kPage);
}

absl::Status ForkGuard::Check() const {
  if (!InChild()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "this agent belongs to the parent process; create an agent after fork");
}

}  // namespace kvxfer
