#include "src/core/fence_book.h"

namespace kvxfer {

uint32_t FenceBook::Ask(uint64_t transfer) {
  const auto it = fences_.try_emplace(transfer).first;
  if (it->second.asked++ == 0) ++asked_;
  return EndIfWhole(it);
}

uint32_t FenceBook::OnMarker(uint64_t transfer, uint32_t rail) {
  const auto [it, first] = fences_.try_emplace(transfer);
  it->second.rails |= 1u << rail;
  if (it->second.asked > 0) return EndIfWhole(it);
  if (!first) return 0;
  early_.push_back(transfer);
  if (early_.size() > kMaxEarly) {
    const auto oldest = fences_.find(early_.front());
    if (oldest != fences_.end() && oldest->second.asked == 0) fences_.erase(oldest);
    early_.pop_front();
  }
  return 0;
}

uint32_t FenceBook::EndIfWhole(std::unordered_map<uint64_t, Fence>::iterator it) {
  if (it->second.rails != all_) return 0;
  const uint32_t answers = it->second.asked;
  fences_.erase(it);
  --asked_;
  return answers;
}

}  // namespace kvxfer
