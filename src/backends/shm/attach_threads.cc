#include "src/backends/shm/attach_threads.h"

#include <algorithm>

namespace kvxfer::shm {
namespace {

// Less than this, about 50 us of copying, is not worth another thread.
constexpr uint64_t kMinShareBytes = 256 * 1024;
// Batches of up to kAttachedSliceBytes: 30 ms of copying at most.
constexpr uint32_t kMostAlone = 64;
// A thread that is late for less than this may only have been asleep.
constexpr uint64_t kLongShareBytes = 1024 * 1024;

}  // namespace

void AttachThreads::Begin(uint64_t waiting) {
  for (AttachBatch& share : shares_) share.Clear();
  filling_ = 0;
  const size_t most = alone_ > 0 ? 1 : shares_.size();
  alone_ -= alone_ > 0 ? 1 : 0;
  allowed_ = static_cast<size_t>(
      std::clamp<uint64_t>(waiting / kMinShareBytes, 1, static_cast<uint64_t>(most)));
  share_bytes_ = std::min<uint64_t>((waiting + allowed_ - 1) / allowed_, kAttachedSliceBytes);
}

uint64_t AttachThreads::Add(uint64_t local, uint64_t remote, uint64_t bytes) {
  for (;; ++filling_) {
    AttachBatch& share = shares_[filling_];
    const uint64_t taken = std::min(bytes, share_bytes_ - share.bytes());
    if (taken > 0 && share.Add(local, remote, taken)) return taken;
    if (filling_ + 1 == allowed_) return 0;
  }
}

absl::StatusOr<size_t> AttachThreads::Move(OpKind kind, uint32_t pid) {
  const size_t parts = filling_ + 1;
  moved_.assign(parts, size_t{0});
  const bool in_time = threads_.Run(static_cast<uint32_t>(parts),
                                    [&](uint32_t i) { moved_[i] = shares_[i].Move(kind, pid); });
  if (!in_time) {
    alone_ = next_alone_;
    if (share_bytes_ >= kLongShareBytes) next_alone_ = std::min(next_alone_ * 2, kMostAlone);
  } else if (parts > 1) {
    next_alone_ = 1;
  }
  size_t total = 0;
  for (size_t i = 0; i < parts; ++i) {
    if (!moved_[i].ok()) {
      if (i == 0) return moved_[i].status();
      break;  // the next batch begins with it
    }
    total += *moved_[i];
    if (*moved_[i] < shares_[i].bytes()) break;
  }
  return total;
}

}  // namespace kvxfer::shm
