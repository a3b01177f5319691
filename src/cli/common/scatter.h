// Block ids as an allocator hands them out after long use: scattered, hardly ever adjacent.
#ifndef KVXFER_CLI_COMMON_SCATTER_H_
#define KVXFER_CLI_COMMON_SCATTER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <vector>

namespace kvxfer::cli {

// The numbers below `count` in a random order, which `seed` determines on every host.
std::vector<uint32_t> Permutation(uint32_t count, uint64_t seed);

// Different seeds for the two sides of a run, from the one seed of the run.
constexpr uint64_t InitiatorSeed(uint64_t seed) { return 2 * seed; }
constexpr uint64_t TargetSeed(uint64_t seed) { return 2 * seed + 1; }

// The number of runs that are contiguous on both sides, for blocks without gaps.
uint64_t CountRuns(std::span<const uint32_t> local, std::span<const uint32_t> remote);

// The free list of a paged cache. It begins in random order, as after long use; freed blocks return
// to random places.
class BlockAllocator {
 public:
  BlockAllocator(uint32_t count, uint64_t seed);

  size_t available() const { return free_.size(); }
  // Nothing if fewer than `count` blocks are free.
  std::optional<std::vector<uint32_t>> Allocate(size_t count);
  void Free(std::span<const uint32_t> blocks);

 private:
  std::mt19937_64 random_;
  std::vector<uint32_t> free_;
};

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_SCATTER_H_
