#include "src/cli/common/scatter.h"

#include <cassert>
#include <numeric>
#include <utility>

namespace kvxfer::cli {

std::vector<uint32_t> Permutation(uint32_t count, uint64_t seed) {
  std::vector<uint32_t> ids(count);
  std::iota(ids.begin(), ids.end(), 0u);
  std::mt19937_64 random(seed);
  // The order of std::shuffle differs between standard libraries.
  for (size_t i = ids.size(); i > 1; --i) std::swap(ids[i - 1], ids[random() % i]);
  return ids;
}

uint64_t CountRuns(std::span<const uint32_t> local, std::span<const uint32_t> remote) {
  assert(local.size() == remote.size());
  uint64_t runs = local.empty() ? 0 : 1;
  for (size_t i = 1; i < local.size(); ++i) {
    const bool joined = local[i] == local[i - 1] + 1 && remote[i] == remote[i - 1] + 1;
    if (!joined) ++runs;
  }
  return runs;
}

BlockAllocator::BlockAllocator(uint32_t count, uint64_t seed)
    : random_(seed), free_(Permutation(count, seed)) {}

std::optional<std::vector<uint32_t>> BlockAllocator::Allocate(size_t count) {
  if (count > free_.size()) return std::nullopt;
  std::vector<uint32_t> blocks(free_.end() - static_cast<ptrdiff_t>(count), free_.end());
  free_.resize(free_.size() - count);
  return blocks;
}

void BlockAllocator::Free(std::span<const uint32_t> blocks) {
  for (uint32_t block : blocks) {
    free_.push_back(block);
    std::swap(free_.back(), free_[random_() % free_.size()]);
  }
}

}  // namespace kvxfer::cli
