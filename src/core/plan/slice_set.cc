#include "src/core/plan/slice_set.h"

#include <algorithm>
#include <bit>

namespace kvxfer {
namespace {

constexpr uint32_t kWordBits = 64;

// Bit i of the result is set if bit 2i or 2i + 1 of `word` is set.
uint64_t Halve(uint64_t word) {
  uint64_t half = 0;
  for (uint32_t i = 0; i < kWordBits / 2; ++i) {
    if ((word >> (2 * i) & 3) != 0) half |= uint64_t{1} << i;
  }
  return half;
}

}  // namespace

void SliceSet::Add(uint32_t slice) {
  while ((slice >> shift_) >= kExact) Coarsen();
  const uint32_t bit = slice >> shift_;
  Widen(bit / kWordBits + 1);
  word(bit / kWordBits) |= uint64_t{1} << (bit % kWordBits);
}

void SliceSet::Add(const SliceSet& other) {
  // Both sets need the same group size. Making groups coarser only adds slices.
  if (other.shift_ < shift_) {
    SliceSet coarse = other;
    while (coarse.shift_ < shift_) coarse.Coarsen();
    return Add(coarse);
  }
  while (shift_ < other.shift_) Coarsen();
  Widen(other.words());
  for (size_t i = 0; i < other.words(); ++i) word(i) |= other.word(i);
}

void SliceSet::RemoveBelow(uint32_t slice) {
  const uint32_t bit = slice >> shift_;
  const size_t cut = bit / kWordBits;
  for (size_t i = 0; i < std::min(cut, words()); ++i) word(i) = 0;
  if (cut < words()) word(cut) &= ~uint64_t{0} << (bit % kWordBits);
}

uint32_t SliceSet::Next(uint32_t from) const {
  const uint32_t bit = from >> shift_;
  uint64_t mask = ~uint64_t{0} << (bit % kWordBits);
  for (size_t i = bit / kWordBits; i < words(); ++i) {
    const uint64_t left = word(i) & mask;
    mask = ~uint64_t{0};
    if (left == 0) continue;
    const auto found =
        static_cast<uint32_t>(i * kWordBits) + static_cast<uint32_t>(std::countr_zero(left));
    return std::max(found << shift_, from);
  }
  return kNoSlice;
}

void SliceSet::Coarsen() {
  ++shift_;
  // The word at i / 2 was already read when it is overwritten, because i / 2 <= i.
  for (size_t i = 0; i < words(); ++i) {
    const uint64_t half = Halve(word(i)) << (i % 2 * (kWordBits / 2));
    word(i / 2) = i % 2 == 0 ? half : word(i / 2) | half;
  }
  rest_.resize((words() + 1) / 2 - 1);
}

void SliceQueue::Add(const SliceSet& slices) {
  slices_.RemoveBelow(from_);
  slices_.Add(slices);
  if (slices_.Next(0) < from_) from_ = 0;
}

const SliceSet& SliceQueue::slices() {
  slices_.RemoveBelow(from_);
  return slices_;
}

}  // namespace kvxfer
