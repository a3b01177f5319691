#include "src/cli/common/kv_cache.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvxfer::cli {
namespace {

// Makes the content of guards different from that of all blocks.
constexpr uint64_t kGuardSalt = 0x6775617264;

uint64_t BlockSeed(uint64_t seed, uint32_t request, uint32_t piece, size_t index) {
  return PatternSeed({seed, request, piece, index});
}

uint64_t GuardSeed(uint32_t piece, size_t index) { return PatternSeed({kGuardSalt, piece, index}); }

// Odd, with well mixed bits: consecutive words differ in about half of their bits.
constexpr uint64_t kStep = 0x9E3779B97F4A7C15;
constexpr size_t kWordsPerVector = 4;
constexpr size_t kVectorsPerStep = 4;
constexpr size_t kStepBytes = kWordsPerVector * kVectorsPerStep * sizeof(uint64_t);

// The vector extension of GCC and clang compiles to the widest registers of the target.
using Vector = uint64_t __attribute__((vector_size(kWordsPerVector * sizeof(uint64_t))));
using Block = std::array<Vector, kVectorsPerStep>;

Block FirstBlock(uint64_t seed) {
  Block block;
  for (uint64_t i = 0; i < kVectorsPerStep * kWordsPerVector; ++i) {
    block[i / kWordsPerVector][i % kWordsPerVector] = seed + i * kStep;
  }
  return block;
}

void Advance(Block& block) {
  constexpr uint64_t kBy = kStep * kWordsPerVector * kVectorsPerStep;
  for (Vector& vector : block) vector += kBy;
}

uint64_t Mix(uint64_t x) {  // splitmix64's finisher
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

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

absl::Status KvCache::FillOrCheck(bool fill, uint32_t request, uint64_t requests,
                                  std::span<const uint32_t> ids, uint64_t seed) const {
  const uint64_t each = ids.size() / requests;
  for (uint64_t i = 0; i < requests; ++i, ++request) {
    const auto part = ids.subspan(i * each, each);
    absl::Status status =
        fill ? FillRequest(request, part, seed) : CheckRequest(request, part, seed);
    if (!status.ok()) return status;
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

uint64_t PatternSeed(std::initializer_list<uint64_t> coordinates) {
  uint64_t seed = 0;
  for (uint64_t coordinate : coordinates) seed = Mix(seed + kStep + coordinate) + kStep;
  return Mix(seed);
}

void FillPattern(std::span<std::byte> bytes, uint64_t seed) {
  Block block = FirstBlock(seed);
  while (bytes.size() >= kStepBytes) {
    std::memcpy(bytes.data(), block.data(), kStepBytes);
    Advance(block);
    bytes = bytes.subspan(kStepBytes);
  }
  if (!bytes.empty()) std::memcpy(bytes.data(), block.data(), bytes.size());
}

std::optional<size_t> FindMismatch(std::span<const std::byte> bytes, uint64_t seed) {
  Block block = FirstBlock(seed);
  size_t offset = 0;
  for (; offset + kStepBytes <= bytes.size(); offset += kStepBytes) {
    Block found;
    std::memcpy(found.data(), bytes.data() + offset, kStepBytes);
    Vector difference{};
    for (size_t i = 0; i < kVectorsPerStep; ++i) difference |= found[i] ^ block[i];
    if ((difference[0] | difference[1] | difference[2] | difference[3]) != 0) break;
    Advance(block);
  }
  const size_t rest = std::min(bytes.size() - offset, kStepBytes);
  std::array<std::byte, kStepBytes> expected;
  std::memcpy(expected.data(), block.data(), kStepBytes);
  for (size_t i = 0; i < rest; ++i) {
    if (bytes[offset + i] != expected[i]) return offset + i;
  }
  return std::nullopt;
}

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
