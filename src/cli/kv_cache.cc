#include "src/cli/kv_cache.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/cli/pattern.h"

namespace kvxfer::cli {
namespace {

// Keeps a guard's content apart from that of any block.
constexpr uint64_t kGuardSalt = 0x6775617264;

uint64_t BlockSeed(uint64_t seed, uint32_t request, uint32_t piece, size_t index) {
  return PatternSeed({seed, request, piece, index});
}

}  // namespace

absl::StatusOr<KvCache> KvCache::Create(const KvCacheShape& shape) {
  KvCache cache;
  cache.shape_ = shape;
  for (uint32_t piece = 0; piece < shape.pieces; ++piece) {
    absl::StatusOr<HostMemory> memory =
        HostMemory::Allocate(shape.memory, 2 * kOuterGuard + shape.blocks * shape.stride());
    if (!memory.ok()) return memory.status();
    const auto base = reinterpret_cast<uint64_t>(memory->bytes().data()) + kOuterGuard;
    cache.memory_.push_back(std::move(*memory));
    cache.regions_.push_back({.base = base,
                              .block_bytes = shape.block_bytes,
                              .stride = shape.stride(),
                              .count = shape.blocks});
    // A guard has content of its own: zeros written over zeros would not be seen.
    for (uint32_t i = 0; i < shape.blocks + 2; ++i) {
      FillPattern(cache.Guard(piece, i), PatternSeed({kGuardSalt, piece, i}));
    }
  }
  return cache;
}

absl::StatusOr<std::vector<RegionId>> KvCache::RegisterWith(Agent& agent, Access access) const {
  std::vector<RegionId> regions;
  for (const HostMemory& memory : memory_) {
    const absl::StatusOr<RegionId> region = agent.RegisterMemory(memory.span(), access);
    if (!region.ok()) {
      // Metadata with them has not been given out, so nothing is in use.
      for (RegionId id : regions) (void)agent.DeregisterMemory(id);
      return region.status();
    }
    regions.push_back(*region);
  }
  return regions;
}

std::span<std::byte> KvCache::Block(uint32_t piece, uint32_t block) const {
  const uint64_t offset = kOuterGuard + block * shape_.stride();
  return memory_[piece].bytes().subspan(offset, shape_.block_bytes);
}

// Guard 0 is in front of the first block, guard i behind block i - 1, and the last at the end.
std::span<std::byte> KvCache::Guard(uint32_t piece, uint32_t index) const {
  const std::span<std::byte> all = memory_[piece].bytes();
  if (index == 0) return all.first(kOuterGuard);
  if (index == shape_.blocks + 1) return all.last(kOuterGuard);
  const uint64_t offset = kOuterGuard + (index - 1) * shape_.stride() + shape_.block_bytes;
  return all.subspan(offset, shape_.gap);
}

void KvCache::Clear() const {
  for (uint32_t piece = 0; piece < shape_.pieces; ++piece) {
    if (shape_.gap == 0) {
      const std::span<std::byte> all = memory_[piece].bytes();
      std::memset(all.data() + kOuterGuard, 0, shape_.blocks * shape_.block_bytes);
      continue;
    }
    for (uint32_t i = 0; i < shape_.blocks; ++i) {
      std::memset(Block(piece, i).data(), 0, shape_.block_bytes);
    }
  }
}

void KvCache::FillRequest(uint32_t request, std::span<const uint32_t> ids, uint64_t seed) const {
  for (uint32_t piece = 0; piece < shape_.pieces; ++piece) {
    for (size_t i = 0; i < ids.size(); ++i) {
      FillPattern(Block(piece, ids[i]), BlockSeed(seed, request, piece, i));
    }
  }
}

absl::Status KvCache::CheckRequest(uint32_t request, std::span<const uint32_t> ids,
                                   uint64_t seed) const {
  for (uint32_t piece = 0; piece < shape_.pieces; ++piece) {
    for (size_t i = 0; i < ids.size(); ++i) {
      const auto wrong = FindMismatch(Block(piece, ids[i]), BlockSeed(seed, request, piece, i));
      if (!wrong) continue;
      return absl::DataLossError(absl::StrCat("request ", request, ": region ", piece, ", block ",
                                              ids[i], " (number ", i, " of the request): byte ",
                                              *wrong, " is not what was sent"));
    }
  }
  return absl::OkStatus();
}

absl::Status KvCache::CheckGuards() const {
  for (uint32_t piece = 0; piece < shape_.pieces; ++piece) {
    for (uint32_t i = 0; i < shape_.blocks + 2; ++i) {
      const auto wrong = FindMismatch(Guard(piece, i), PatternSeed({kGuardSalt, piece, i}));
      if (!wrong) continue;
      return absl::DataLossError(absl::StrCat("region ", piece, ": guard zone ", i, " of ",
                                              shape_.blocks + 2, " was written at byte ", *wrong));
    }
  }
  return absl::OkStatus();
}

}  // namespace kvxfer::cli
