// Content that tells where it came from: byte i of a pattern depends on its seed and i. No byte is
// zero (fresh memory) and none is above 0x7f (kPoison), so both can be told from it. What is read
// and written here may be any memory of a test (memory_view.h).
#ifndef KVXFER_TESTS_SUPPORT_PATTERN_H_
#define KVXFER_TESTS_SUPPORT_PATTERN_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvxfer::testing {

inline constexpr std::byte kPoison{0xff};
inline constexpr size_t kNoMismatch = SIZE_MAX;

class Pattern {
 public:
  explicit Pattern(uint64_t seed) : base_((seed + 1) * 0x9e3779b97f4a7c15u) {}

  // memory[k] becomes byte `offset` + k of the pattern.
  void Fill(std::span<std::byte> memory, uint64_t offset = 0) const;
  // The first k where memory[k] is not byte `offset` + k, or kNoMismatch.
  size_t Mismatch(std::span<const std::byte> memory, uint64_t offset = 0) const;

 private:
  uint64_t Word(uint64_t index) const;
  std::byte Byte(uint64_t offset) const;
  uint64_t base_;
};

// One write, also to ThreadSanitizer: what a loop over bytes does is seen byte by byte.
void FillWith(std::span<std::byte> memory, std::byte value);

// The first k where memory[k] is not zero, or kNoMismatch.
size_t FirstNonZero(std::span<const std::byte> memory);

bool Contains(std::span<const std::byte> memory, std::byte value);

uint64_t Digest(std::span<const std::byte> memory);

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_SUPPORT_PATTERN_H_
