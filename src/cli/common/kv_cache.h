// A paged KV cache as an inference engine holds it: for every layer one region of K blocks and one
// of V blocks (or one fused), each in memory of its own, with guard zones that nobody may write.
//
//   | guard | block 0 | gap | block 1 | gap | ... | guard |
//
// Thread-safety: none; the memory is written by peers between registration and the end.
#ifndef KVXFER_CLI_COMMON_KV_CACHE_H_
#define KVXFER_CLI_COMMON_KV_CACHE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/agent.h"
#include "src/cli/common/cache_memory.h"

namespace kvxfer::cli {

struct KvCacheShape {
  uint32_t pieces = 0;       // regions: layers, times two unless fused
  uint64_t block_bytes = 0;  // of one block in one region
  uint32_t blocks = 0;       // in each region
  uint64_t gap = 0;          // guarded bytes behind every block
  MemoryChoice memory{};

  uint64_t stride() const { return block_bytes + gap; }
  uint64_t bytes() const { return pieces * (blocks * stride()); }  // without the outer guards
};

// At both ends of a region.
inline constexpr uint64_t kOuterGuard = 4096;

class KvCache {
 public:
  KvCache() = default;
  static absl::StatusOr<KvCache> Create(const KvCacheShape& shape);

  // Every region, with `access` for peers; all or none.
  absl::StatusOr<std::vector<RegionId>> RegisterWith(Agent& agent, Access access) const;

  const KvCacheShape& shape() const { return shape_; }
  const std::vector<PagedRegion>& regions() const { return regions_; }
  // Of host memory only: no CPU touches a GPU's. What works on both is below; its errors are those
  // of the GPU's driver, unless it says others.
  std::span<std::byte> Block(uint32_t piece, uint32_t block) const;

  // Calls visit(number in `ids`, bytes of that block), in the order of addresses; CacheMemory says
  // how. No block twice.
  absl::Status ForEachBlock(uint32_t piece, std::span<const uint32_t> ids, Touch touch,
                            CacheMemory::Visit visit) const;
  // One block's pattern (pattern.h), and where it differs from that.
  absl::Status FillBlock(uint32_t piece, uint32_t block, uint64_t seed) const;
  absl::StatusOr<std::optional<size_t>> FindInBlock(uint32_t piece, uint32_t block,
                                                    uint64_t seed) const;
  // Makes one bit of a byte wrong.
  absl::Status Corrupt(uint32_t piece, uint32_t block, uint64_t offset) const;

  // Zeros every block; guards stay.
  absl::Status Clear() const;
  // Fills, and later compares, the content of one request: `ids` are its blocks in order.
  absl::Status FillRequest(uint32_t request, std::span<const uint32_t> ids, uint64_t seed) const;
  // DataLoss names the request, piece, block and offset of the first wrong byte.
  absl::Status CheckRequest(uint32_t request, std::span<const uint32_t> ids, uint64_t seed) const;
  // DataLoss names the region and address of the first guard byte that was written.
  absl::Status CheckGuards() const;

 private:
  Stretch StretchOf(uint32_t block) const;
  // Of each guard of a region, visit(its number, its bytes); there may be none behind a block.
  absl::Status ForEachGuard(uint32_t piece, Touch touch, CacheMemory::Visit visit) const;

  KvCacheShape shape_;
  std::vector<CacheMemory> memory_;
  std::vector<PagedRegion> regions_;
};

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_KV_CACHE_H_
