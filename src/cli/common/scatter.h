// Block ids as a used allocator hands them out: scattered, hardly ever adjacent.
#ifndef KVXFER_CLI_COMMON_SCATTER_H_
#define KVXFER_CLI_COMMON_SCATTER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <vector>

namespace kvxfer::cli {

// The numbers below `count` in an order drawn from `seed`; the same on every host.
std::vector<uint32_t> Permutation(uint32_t count, uint64_t seed);

// The two sides of a run draw their orders from one seed, yet differ.
constexpr uint64_t InitiatorSeed(uint64_t seed) { return 2 * seed; }
constexpr uint64_t TargetSeed(uint64_t seed) { return 2 * seed + 1; }

// Runs that remain when neighbours on both sides are joined, for blocks without gaps.
uint64_t CountRuns(std::span<const uint32_t> local, std::span<const uint32_t> remote);

// A paged cache's free list. It begins in random order, as after long use, and what comes back
// goes in at random places.
class BlockAllocator {
 public:
  BlockAllocator(uint32_t count, uint64_t seed);

  size_t available() const { return free_.size(); }
  // Nothing when fewer than `count` are free.
  std::optional<std::vector<uint32_t>> Allocate(size_t count);
  void Free(std::span<const uint32_t> blocks);

 private:
  std::mt19937_64 random_;
  std::vector<uint32_t> free_;
};

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_SCATTER_H_
