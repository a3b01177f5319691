// GPU memory of this process that copies touch, and the check before they begin that it still
// exists: a kernel that touches freed memory breaks the context of the whole process. Copies that
// begin together, in one *round*, share the check.
//
// Thread-safety: none.

#ifndef KVXFER_CUDA_WATCHED_SPAN_H_
#define KVXFER_CUDA_WATCHED_SPAN_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "src/cuda/memory.h"

namespace kvxfer::cuda {

// The index of the part that contains `address`, which lies in one of them. Parts are in order and
// without gaps. `hint` is the index found last: consecutive look-ups are usually near each other.
template <typename Parts>
size_t PartAt(const Parts& parts, uint64_t address, size_t hint) {
  const auto holds = [&](size_t i) {
    return address >= parts[i].base && address - parts[i].base < parts[i].bytes;
  };
  if (hint < parts.size() && holds(hint)) return hint;
  if (hint + 1 < parts.size() && holds(hint + 1)) return hint + 1;
  size_t low = 0;
  for (size_t high = parts.size(); high - low > 1;) {
    const size_t middle = low + (high - low) / 2;
    (parts[middle].base <= address ? low : high) = middle;
  }
  return low;
}

class WatchedSpan {
 public:
  explicit WatchedSpan(DeviceSpan span) : span_(std::move(span)), asked_(span_.parts.size()) {
    touched_.device = span_.device;
  }

  const DeviceSpan& span() const { return span_; }

  // A copy of round `round` will touch [address, address + bytes), which lies within the span and
  // is not empty. A part that was touched in this round before is not checked again. Rounds are
  // numbered from 1.
  void Touch(uint64_t address, uint64_t bytes, uint64_t round) {
    hint_ = PartAt(span_.parts, address, hint_);
    for (size_t i = hint_; i < span_.parts.size() && span_.parts[i].base < address + bytes; ++i) {
      if (std::exchange(asked_[i], round) == round) continue;
      touched_.parts.push_back(span_.parts[i]);
      indices_.push_back(i);
    }
  }
  // True: something was touched since the last Check, and this is the first call since then.
  bool FirstTouched() { return !indices_.empty() && !std::exchange(listed_, true); }
  // Checks what was touched since the last Check.
  absl::Status Check(const Driver& driver) {
    listed_ = false;
    if (indices_.empty()) return absl::OkStatus();
    touched_.base = touched_.parts.front().base;
    touched_.bytes = 0;
    for (const Allocation& part : touched_.parts) touched_.bytes += part.bytes;
    absl::Status alive = CheckAlive(driver, touched_);
    // The check failed, so the same round must check these parts again.
    if (!alive.ok()) {
      for (const size_t i : indices_) asked_[i] = 0;
    }
    touched_.parts.clear();
    indices_.clear();
    return alive;
  }

 private:
  const DeviceSpan span_;
  std::vector<uint64_t> asked_;  // for each part: the round that touched it last
  DeviceSpan touched_;
  std::vector<size_t> indices_;  // for each part of touched_: its index in span_.parts
  size_t hint_ = 0;
  bool listed_ = false;
};

}  // namespace kvxfer::cuda

#endif  // KVXFER_CUDA_WATCHED_SPAN_H_
