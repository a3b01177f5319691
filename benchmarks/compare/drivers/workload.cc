#include "benchmarks/compare/drivers/workload.h"

#include <cstring>
#include <numeric>
#include <utility>

namespace compare {
namespace {

constexpr uint64_t kOdd = 0x9E3779B97F4A7C15;

// splitmix64: the numbers of a seed are those of a counter, mixed.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

uint64_t Word(uint64_t number, uint64_t seed) { return (number + 1) * kOdd + seed; }

}  // namespace

std::vector<uint32_t> Permutation(uint32_t count, uint64_t seed) {
  std::vector<uint32_t> ids(count);
  std::iota(ids.begin(), ids.end(), 0u);
  uint64_t state = seed;
  for (size_t i = count; i > 1; --i) std::swap(ids[i - 1], ids[Mix(state += kOdd) % i]);
  return ids;
}

uint64_t Fingerprint(uint64_t block_bytes, std::span<const uint32_t> source_ids,
                     std::span<const uint32_t> target_ids) {
  uint64_t hash = block_bytes;
  for (size_t i = 0; i < source_ids.size(); ++i) {
    hash = (hash ^ (uint64_t{source_ids[i]} << 32 | target_ids[i])) * kOdd;
    hash ^= hash >> 32;
  }
  return hash;
}

void FillBlocks(std::span<std::byte> memory, uint64_t block_bytes, std::span<const uint32_t> ids,
                uint64_t seed) {
  const uint64_t words = block_bytes / sizeof(uint64_t);
  std::vector<uint64_t> content(words);
  for (size_t i = 0; i < ids.size(); ++i) {
    for (uint64_t w = 0; w < words; ++w) content[w] = Word(i * words + w, seed);
    std::memcpy(memory.data() + ids[i] * block_bytes, content.data(), block_bytes);
  }
}

std::string CheckBlocks(std::span<const std::byte> memory, uint64_t block_bytes,
                        std::span<const uint32_t> ids, uint64_t seed) {
  const uint64_t words = block_bytes / sizeof(uint64_t);
  std::vector<uint64_t> content(words);
  for (size_t i = 0; i < ids.size(); ++i) {
    std::memcpy(content.data(), memory.data() + ids[i] * block_bytes, block_bytes);
    for (uint64_t w = 0; w < words; ++w) {
      if (content[w] != Word(i * words + w, seed)) {
        return "block " + std::to_string(i) + " of " + std::to_string(ids.size()) +
               " is not what was sent, from byte " + std::to_string(w * sizeof(uint64_t));
      }
    }
  }
  return {};
}

}  // namespace compare
