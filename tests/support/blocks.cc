#include "tests/support/blocks.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <sstream>

#include "tests/support/memory_view.h"

namespace kvxfer::testing {
namespace {

std::vector<uint32_t> Scatter(const Shape& shape, Side side) {
  std::vector<uint32_t> ids(shape.places());
  std::iota(ids.begin(), ids.end(), 0u);
  std::mt19937_64 random(shape.seed * 2 + (side == Side::kRemote ? 1 : 0));
  std::shuffle(ids.begin(), ids.end(), random);
  ids.resize(shape.ids);
  // Runs of neighbours, as a real allocator gives them, so that coalescing has work.
  if (side == Side::kLocal && shape.seed % 2 == 0) std::sort(ids.begin(), ids.end());
  return ids;
}

uint64_t LayerOffset(const Shape& shape, uint32_t layer) {
  return uint64_t{layer} * shape.places() * shape.stride();
}

}  // namespace

uint64_t Shape::memory_bytes() const {
  return std::max<uint64_t>(1, uint64_t{layers} * places() * stride());
}

std::string Shape::ToString() const {
  std::ostringstream text;
  text << block_bytes << ' ' << ids << ' ' << layers << ' ' << gap << ' ' << paged << ' ' << seed;
  return text.str();
}

Shape Shape::FromString(std::string_view text) {
  Shape shape;
  std::istringstream in{std::string(text)};
  in >> shape.block_bytes >> shape.ids >> shape.layers >> shape.gap >> shape.paged >> shape.seed;
  return shape;
}

BlockSet::BlockSet(const Shape& shape, uint64_t local_base, uint64_t remote_base)
    : shape_(shape),
      local_ids_(Scatter(shape, Side::kLocal)),
      remote_ids_(Scatter(shape, Side::kRemote)) {
  for (uint32_t layer = 0; layer < shape.layers; ++layer) {
    const uint64_t local = local_base + LayerOffset(shape, layer);
    const uint64_t remote = remote_base + LayerOffset(shape, layer);
    if (shape.paged) {
      PagedRegion region{.base = local,
                         .block_bytes = shape.block_bytes,
                         .stride = shape.stride(),
                         .count = shape.places()};
      local_regions_.push_back(region);
      region.base = remote;
      remote_regions_.push_back(region);
      continue;
    }
    for (uint32_t i = 0; i < shape.ids; ++i) {
      local_.push_back({local + local_ids_[i] * shape.stride(), shape.block_bytes});
      remote_.push_back({remote + remote_ids_[i] * shape.stride(), shape.block_bytes});
    }
  }
}

PagedBlocks BlockSet::paged() const {
  return {.local = local_regions_,
          .remote = remote_regions_,
          .local_ids = local_ids_,
          .remote_ids = remote_ids_};
}

DescriptorBlocks BlockSet::descriptors() const { return {.local = local_, .remote = remote_}; }

absl::StatusOr<Transfer> BlockSet::Write(Agent& agent, std::string_view peer,
                                         const TransferOptions& options) const {
  return shape_.paged ? agent.Write(peer, paged(), options)
                      : agent.Write(peer, descriptors(), options);
}

absl::StatusOr<Transfer> BlockSet::Read(Agent& agent, std::string_view peer,
                                        const TransferOptions& options) const {
  return shape_.paged ? agent.Read(peer, paged(), options)
                      : agent.Read(peer, descriptors(), options);
}

::testing::AssertionResult AllArrived(const Shape& shape, Side side, uint64_t pattern_seed,
                                      std::span<const std::byte> memory) {
  const std::vector<uint32_t> mine = Scatter(shape, side);
  const std::vector<uint32_t> theirs =
      Scatter(shape, side == Side::kLocal ? Side::kRemote : Side::kLocal);
  std::vector<uint32_t> source_of(shape.places(), UINT32_MAX);
  for (uint32_t i = 0; i < shape.ids; ++i) source_of[mine[i]] = theirs[i];

  const ReadView view(memory);  // once, not for each block
  const std::span<const std::byte> bytes = view.bytes();
  const Pattern pattern(pattern_seed);
  uint64_t at = 0;
  const auto zero_until = [&](uint64_t end) {
    const size_t wrong = FirstNonZero(bytes.subspan(at, end - at));
    if (wrong == kNoMismatch) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure()
           << "byte " << at + wrong << " outside of every block was written (" << shape.ToString()
           << ")";
  };
  for (uint32_t layer = 0; layer < shape.layers; ++layer) {
    for (uint32_t place = 0; place < shape.places(); ++place) {
      if (source_of[place] == UINT32_MAX) continue;
      const uint64_t begin = LayerOffset(shape, layer) + place * shape.stride();
      if (auto result = zero_until(begin); !result) return result;
      const uint64_t source = LayerOffset(shape, layer) + source_of[place] * shape.stride();
      const size_t wrong = pattern.Mismatch(bytes.subspan(begin, shape.block_bytes), source);
      if (wrong != kNoMismatch) {
        return ::testing::AssertionFailure()
               << "layer " << layer << " place " << place << " is wrong from byte " << wrong
               << " on (" << shape.ToString() << ")";
      }
      at = begin + shape.block_bytes;
    }
  }
  return zero_until(bytes.size());
}

}  // namespace kvxfer::testing
