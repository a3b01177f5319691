// A paged KV cache as an inference engine holds it: each layer has one region of K blocks and one
// of V blocks, or one fused region. Each region has its own memory, with guard zones that no
// transfer may write.
//
//   | guard | block 0 | gap | block 1 | gap | ... | guard |
//
// Its content is a pattern that identifies its place: each block has a seed made from its
// coordinates, and its words count up from that seed. A block in a wrong place, a shifted block and
// a stale block differ in every word. Filling and comparing run at memory speed, so that every byte
// of every transfer can be checked.
//
// Thread-safety: none. Peers write the memory while it is registered.

#ifndef KVXFER_CLI_COMMON_KV_CACHE_H_
#define KVXFER_CLI_COMMON_KV_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/agent.h"
#include "src/cli/common/cache_memory.h"

namespace kvxfer::cli {

// The seed for a block with these coordinates, whose order matters.
uint64_t PatternSeed(std::initializer_list<uint64_t> coordinates);

// `bytes` may have any alignment and length.
void FillPattern(std::span<std::byte> bytes, uint64_t seed);

// The offset of the first byte that differs from the pattern; nothing if none does.
std::optional<size_t> FindMismatch(std::span<const std::byte> bytes, uint64_t seed);

struct KvCacheShape {
  uint32_t pieces = 0;       // regions: number of layers, times two unless K and V are fused
  uint64_t block_bytes = 0;  // bytes of one block in one region
  uint32_t blocks = 0;       // in each region
  uint64_t gap = 0;          // guarded bytes behind every block
  MemoryChoice memory{};

  uint64_t stride() const { return block_bytes + gap; }
  uint64_t bytes() const { return pieces * (blocks * stride()); }  // without the outer guards
};

// Bytes of the guard zone at each end of a region.
inline constexpr uint64_t kOuterGuard = 4096;

class KvCache {
 public:
  KvCache() = default;
  static absl::StatusOr<KvCache> Create(const KvCacheShape& shape);

  // Registers every region with `access` for peers, or none if one fails.
  absl::StatusOr<std::vector<RegionId>> RegisterWith(Agent& agent, Access access) const;

  const KvCacheShape& shape() const { return shape_; }
  const std::vector<PagedRegion>& regions() const { return regions_; }
  // For host memory only. The functions below work on GPU memory too; unless they state other
  // errors, they return errors of the CUDA driver.
  std::span<std::byte> Block(uint32_t piece, uint32_t block) const;

  // Calls visit(index into `ids`, bytes of that block) in the order of addresses, as
  // CacheMemory::ForEach does. `ids` has no block twice.
  absl::Status ForEachBlock(uint32_t piece, std::span<const uint32_t> ids, Touch touch,
                            CacheMemory::Visit visit) const;
  // FillBlock writes the pattern of `seed` into one block. FindInBlock returns the
  // first offset that differs from it.
  absl::Status FillBlock(uint32_t piece, uint32_t block, uint64_t seed) const;
  absl::StatusOr<std::optional<size_t>> FindInBlock(uint32_t piece, uint32_t block,
                                                    uint64_t seed) const;
  // Flips one bit of a byte.
  absl::Status Corrupt(uint32_t piece, uint32_t block, uint64_t offset) const;

  // Zeros every block, but not the guards.
  absl::Status Clear() const;
  // FillRequest writes the content of one request, and CheckRequest compares it. `ids` are the
  // request's blocks in order.
  absl::Status FillRequest(uint32_t request, std::span<const uint32_t> ids, uint64_t seed) const;
  // DataLoss names the request, piece, block and offset of the first wrong byte.
  absl::Status CheckRequest(uint32_t request, std::span<const uint32_t> ids, uint64_t seed) const;
  // The same for several requests, numbered from `request` on, whose blocks follow each other in
  // `ids`.
  absl::Status FillOrCheck(bool fill, uint32_t request, uint64_t requests,
                           std::span<const uint32_t> ids, uint64_t seed) const;
  // DataLoss names the region and address of the first guard byte that was written.
  absl::Status CheckGuards() const;

 private:
  Stretch StretchOf(uint32_t block) const;
  // Calls visit(number, bytes) for each guard zone of a region. Without a gap, blocks have none.
  absl::Status ForEachGuard(uint32_t piece, Touch touch, CacheMemory::Visit visit) const;

  KvCacheShape shape_;
  std::vector<CacheMemory> memory_;
  std::vector<PagedRegion> regions_;
};

// --- Block ids as an allocator hands them out after long use: scattered, hardly ever adjacent.

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

#endif  // KVXFER_CLI_COMMON_KV_CACHE_H_
