#include "src/cli/common/pattern.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace kvxfer::cli {
namespace {

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

}  // namespace kvxfer::cli
