#include "tests/support/pattern.h"

#include <xxhash.h>

#include <cstring>
#include <vector>

#include "tests/support/memory_view.h"

namespace kvxfer::testing {
namespace {

// Unseen by ThreadSanitizer, as a NIC's own writes are: what a fence has stopped is read with no
// completion to wait for. Volatile, or it would become memcpy, which is seen.
__attribute__((no_sanitize("thread"), noinline)) void CopyUnseen(const volatile std::byte* from,
                                                                 size_t bytes, std::byte* out) {
  for (size_t k = 0; k < bytes; ++k) out[k] = from[k];
}

}  // namespace

uint64_t Pattern::Word(uint64_t index) const {
  uint64_t x = (index + base_) * 0xbf58476d1ce4e5b9u;
  x ^= x >> 29;
  x *= 0x94d049bb133111ebu;
  x ^= x >> 32;
  return (x & 0x7f7f7f7f7f7f7f7fu) | 0x0101010101010101u;
}

std::byte Pattern::Byte(uint64_t offset) const {
  return static_cast<std::byte>(Word(offset / 8) >> (offset % 8 * 8));
}

void Pattern::Fill(std::span<std::byte> memory, uint64_t offset) const {
  WriteView view(memory);
  const std::span<std::byte> out = view.bytes();
  size_t k = 0;
  for (; k < out.size() && (offset + k) % 8 != 0; ++k) out[k] = Byte(offset + k);
  for (; k + 8 <= out.size(); k += 8) {
    const uint64_t word = Word((offset + k) / 8);
    std::memcpy(out.data() + k, &word, 8);
  }
  for (; k < out.size(); ++k) out[k] = Byte(offset + k);
}

size_t Pattern::Mismatch(std::span<const std::byte> memory, uint64_t offset) const {
  const ReadView view(memory);
  const std::span<const std::byte> in = view.bytes();
  size_t k = 0;
  for (; k < in.size() && (offset + k) % 8 != 0; ++k) {
    if (in[k] != Byte(offset + k)) return k;
  }
  for (; k + 8 <= in.size(); k += 8) {
    uint64_t word;
    std::memcpy(&word, in.data() + k, 8);
    if (word != Word((offset + k) / 8)) break;
  }
  for (; k < in.size(); ++k) {
    if (in[k] != Byte(offset + k)) return k;
  }
  return kNoMismatch;
}

void FillWith(std::span<std::byte> memory, std::byte value) {
  WriteView view(memory);
  std::memset(view.bytes().data(), static_cast<int>(value), memory.size());
}

size_t FirstNonZero(std::span<const std::byte> memory) {
  const ReadView view(memory);
  const std::span<const std::byte> in = view.bytes();
  // Each byte equals its neighbour and the first is zero: memcmp does it at full speed.
  if (in.empty()) return kNoMismatch;
  if (in[0] == std::byte{0} && std::memcmp(in.data(), in.data() + 1, in.size() - 1) == 0) {
    return kNoMismatch;
  }
  for (size_t k = 0; k < in.size(); ++k) {
    if (in[k] != std::byte{0}) return k;
  }
  return kNoMismatch;
}

bool Contains(std::span<const std::byte> memory, std::byte value) {
  const ReadView view(memory);
  return std::memchr(view.bytes().data(), static_cast<int>(value), memory.size()) != nullptr;
}

uint64_t Digest(std::span<const std::byte> memory) {
  const ReadView view(memory);
  std::vector<std::byte> copy(memory.size());
  CopyUnseen(view.bytes().data(), memory.size(), copy.data());
  return XXH3_64bits(copy.data(), copy.size());
}

}  // namespace kvxfer::testing
