#include "src/cli/common/kv_cache.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/cli/common/pattern.h"

namespace kvxfer::cli {
namespace {

// Makes the content of guards different from that of all blocks.
constexpr uint64_t kGuardSalt = 0x6775617264;

uint64_t BlockSeed(uint64_t seed, uint32_t request, uint32_t piece, size_t index) {
  return PatternSeed({seed, request, piece, index});
}

uint64_t GuardSeed(uint32_t piece, size_t index) { return PatternSeed({kGuardSalt, piece, index}); }

}  // namespace

absl::StatusOr<KvCache> KvCache::Create(const KvCacheShape& shape) {
  KvCache cache;
  cache.shape_ = shape;
  for (uint32_t piece = 0; piece < shape.pieces; ++piece) {
    absl::StatusOr<CacheMemory> memory =
        CacheMemory::Allocate(shape.memory, 2 * kOuterGuard + shape.blocks * shape.stride());
    if (!memory.ok()) return memory.status();
    cache.regions_.push_back({.base = memory->base() + kOuterGuard,
                              .block_bytes = shape.block_bytes,
                              .stride = shape.stride(),
                              .count = shape.blocks});
    cache.memory_.push_back(std::move(*memory));
    // Guards hold a pattern, because zeros written over zeros would not be noticed.
    const auto fill = [piece](size_t i, std::span<std::byte> guard) {
      FillPattern(guard, GuardSeed(piece, i));
      return absl::OkStatus();
    };
    if (absl::Status s = cache.ForEachGuard(piece, Touch::kUpdate, fill); !s.ok()) return s;
  }
  return cache;
}

absl::StatusOr<std::vector<RegionId>> KvCache::RegisterWith(Agent& agent, Access access) const {
  std::vector<RegionId> regions;
  for (const CacheMemory& memory : memory_) {
    const absl::StatusOr<RegionId> region = agent.RegisterMemory(memory.span(), access);
    if (!region.ok()) {
      // No peer has metadata of these regions yet, so that they are not in use.
      for (RegionId id : regions) (void)agent.DeregisterMemory(id);
      return region.status();
    }
    regions.push_back(*region);
  }
  return regions;
}

Stretch KvCache::StretchOf(uint32_t block) const {
  return {.offset = kOuterGuard + block * shape_.stride(), .bytes = shape_.block_bytes};
}

std::span<std::byte> KvCache::Block(uint32_t piece, uint32_t block) const {
  const Stretch stretch = StretchOf(block);
  return memory_[piece].host_bytes().subspan(stretch.offset, stretch.bytes);
}

absl::Status KvCache::ForEachBlock(uint32_t piece, std::span<const uint32_t> ids, Touch touch,
                                   CacheMemory::Visit visit) const {
  std::vector<size_t> order(ids.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {}, [ids](size_t i) { return ids[i]; });
  std::vector<Stretch> stretches;
  stretches.reserve(ids.size());
  for (const size_t i : order) stretches.push_back(StretchOf(ids[i]));
  return memory_[piece].ForEach(stretches, touch, [&](size_t i, std::span<std::byte> bytes) {
    return visit(order[i], bytes);
  });
}

// Guard 0 precedes the first block, guard i follows block i - 1, and the last guard is at the end.
absl::Status KvCache::ForEachGuard(uint32_t piece, Touch touch, CacheMemory::Visit visit) const {
  std::vector<Stretch> stretches = {{.offset = 0, .bytes = kOuterGuard}};
  std::vector<size_t> numbers = {0};
  for (uint32_t block = 0; block < shape_.blocks && shape_.gap > 0; ++block) {
    stretches.push_back(
        {.offset = StretchOf(block).offset + shape_.block_bytes, .bytes = shape_.gap});
    numbers.push_back(block + 1);
  }
  stretches.push_back({.offset = memory_[piece].size() - kOuterGuard, .bytes = kOuterGuard});
  numbers.push_back(shape_.blocks + 1);
  return memory_[piece].ForEach(stretches, touch, [&](size_t i, std::span<std::byte> bytes) {
    return visit(numbers[i], bytes);
  });
}

absl::Status KvCache::FillBlock(uint32_t piece, uint32_t block, uint64_t seed) const {
  return ForEachBlock(piece, {&block, 1}, Touch::kWrite,
                      [seed](size_t, std::span<std::byte> bytes) {
                        FillPattern(bytes, seed);
                        return absl::OkStatus();
                      });
}

absl::StatusOr<std::optional<size_t>> KvCache::FindInBlock(uint32_t piece, uint32_t block,
                                                           uint64_t seed) const {
  std::optional<size_t> wrong;
  absl::Status status =
      ForEachBlock(piece, {&block, 1}, Touch::kRead, [&](size_t, std::span<std::byte> bytes) {
        wrong = FindMismatch(bytes, seed);
        return absl::OkStatus();
      });
  if (!status.ok()) return status;
  return wrong;
}

absl::Status KvCache::Corrupt(uint32_t piece, uint32_t block, uint64_t offset) const {
  return ForEachBlock(piece, {&block, 1}, Touch::kUpdate,
                      [offset](size_t, std::span<std::byte> bytes) {
                        bytes[offset] ^= std::byte{1};
                        return absl::OkStatus();
                      });
}

absl::Status KvCache::Clear() const {
  std::vector<uint32_t> ids(shape_.gap == 0 ? 0 : shape_.blocks);
  std::iota(ids.begin(), ids.end(), 0u);
  for (uint32_t piece = 0; piece < shape_.pieces; ++piece) {
    absl::Status status;
    if (shape_.gap == 0) {
      status =
          memory_[piece].Zero({.offset = kOuterGuard, .bytes = shape_.blocks * shape_.block_bytes});
    } else {
      status = ForEachBlock(piece, ids, Touch::kWrite, [](size_t, std::span<std::byte> bytes) {
        std::memset(bytes.data(), 0, bytes.size());
        return absl::OkStatus();
      });
    }
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status KvCache::FillRequest(uint32_t request, std::span<const uint32_t> ids,
                                  uint64_t seed) const {
  for (uint32_t piece = 0; piece < shape_.pieces; ++piece) {
    const auto fill = [&](size_t i, std::span<std::byte> bytes) {
      FillPattern(bytes, BlockSeed(seed, request, piece, i));
      return absl::OkStatus();
    };
    if (absl::Status s = ForEachBlock(piece, ids, Touch::kWrite, fill); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status KvCache::CheckRequest(uint32_t request, std::span<const uint32_t> ids,
                                   uint64_t seed) const {
  for (uint32_t piece = 0; piece < shape_.pieces; ++piece) {
    const auto check = [&](size_t i, std::span<const std::byte> bytes) -> absl::Status {
      const auto wrong = FindMismatch(bytes, BlockSeed(seed, request, piece, i));
      if (!wrong) return absl::OkStatus();
      return absl::DataLossError(absl::StrCat("request ", request, ": region ", piece, ", block ",
                                              ids[i], " (number ", i, " of the request): byte ",
                                              *wrong, " is not what was sent"));
    };
    if (absl::Status s = ForEachBlock(piece, ids, Touch::kRead, check); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status KvCache::CheckGuards() const {
  for (uint32_t piece = 0; piece < shape_.pieces; ++piece) {
    const auto check = [&](size_t i, std::span<const std::byte> bytes) -> absl::Status {
      const auto wrong = FindMismatch(bytes, GuardSeed(piece, i));
      if (!wrong) return absl::OkStatus();
      return absl::DataLossError(absl::StrCat("region ", piece, ": guard zone ", i, " of ",
                                              shape_.blocks + 2, " was written at byte ", *wrong));
    };
    if (absl::Status s = ForEachGuard(piece, Touch::kRead, check); !s.ok()) return s;
  }
  return absl::OkStatus();
}

}  // namespace kvxfer::cli
