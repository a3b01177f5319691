#include "src/cli/demo/content.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "src/cli/common/pattern.h"

namespace kvxfer::cli {
namespace {

// The request number for blocks that no request uses.
constexpr uint64_t kNoRequest = UINT64_MAX;

}  // namespace

// `place` identifies the block.
template <typename Visit>
absl::Status DemoContent::WalkBlock(Place place, std::span<std::byte> block,
                                    const Visit& visit) const {
  const bool head_by_head = shard_.head_by_head();
  const uint64_t slots = shard_.config.block_tokens;
  const uint64_t heads = shard_.heads();
  const uint64_t width = shard_.head_bytes();
  const uint64_t inner = head_by_head ? slots : heads;
  for (uint64_t i = 0; i < slots * heads; ++i) {
    place.slot = head_by_head ? i % inner : i / inner;
    place.head = static_cast<uint32_t>(head_by_head ? i / inner : i % inner);
    if (absl::Status s = visit(place, block.subspan(i * width, width)); !s.ok()) return s;
  }
  return absl::OkStatus();
}

template <typename Visit>
absl::Status DemoContent::Walk(std::span<const uint32_t> ids, Touch touch,
                               const Visit& visit) const {
  for (uint32_t piece = 0; piece < cache_.shape().pieces; ++piece) {
    const auto in_block = [&](size_t index, std::span<std::byte> block) {
      return WalkBlock({.piece = piece, .id = ids[index], .index = index, .slot = 0, .head = 0},
                       block, visit);
    };
    if (absl::Status s = cache_.ForEachBlock(piece, ids, touch, in_block); !s.ok()) return s;
  }
  return absl::OkStatus();
}

uint64_t DemoContent::TokenOf(const Place& place) const {
  return place.index * shard_.config.block_tokens + place.slot;
}

uint64_t DemoContent::ClearSeed(const Place& place) const {
  return PatternSeed(
      {shard_.config.seed, kNoRequest, place.piece, place.id, place.slot, place.head});
}

// A piece, which is K or V of a layer, has the same number on every rank, whatever heads the rank
// has.
uint64_t DemoContent::RequestSeed(uint32_t request, const Place& place) const {
  return PatternSeed({shard_.config.seed, request, place.piece, TokenOf(place), 0,
                      uint64_t{shard_.first_head()} + place.head});
}

std::string DemoContent::Describe(const Place& place) const {
  const bool fused = shard_.config.model.fused;
  return absl::StrCat("layer ", fused ? place.piece : place.piece / 2,
                      fused                  ? ""
                      : place.piece % 2 == 0 ? ", K"
                                             : ", V",
                      ", block ", place.id, ", its token ", place.slot, ", head ",
                      shard_.first_head() + place.head);
}

absl::Status DemoContent::Clear(std::span<const uint32_t> ids) const {
  return Walk(ids, Touch::kWrite, [this](const Place& place, std::span<std::byte> bytes) {
    FillPattern(bytes, ClearSeed(place));
    return absl::OkStatus();
  });
}

absl::Status DemoContent::CheckClear(std::span<const uint32_t> ids) const {
  return Walk(
      ids, Touch::kRead, [&](const Place& place, std::span<const std::byte> bytes) -> absl::Status {
        const std::optional<size_t> wrong = FindMismatch(bytes, ClearSeed(place));
        if (!wrong) return absl::OkStatus();
        return absl::DataLossError(absl::StrCat(Describe(place), ": byte ", *wrong,
                                                " was written, but no request uses the block"));
      });
}

absl::Status DemoContent::Fill(uint32_t request, std::span<const uint32_t> ids) const {
  return Walk(ids, Touch::kWrite, [&](const Place& place, std::span<std::byte> bytes) {
    const bool within = TokenOf(place) < shard_.config.tokens;
    FillPattern(bytes, within ? RequestSeed(request, place) : ClearSeed(place));
    return absl::OkStatus();
  });
}

absl::Status DemoContent::Check(uint32_t request, std::span<const uint32_t> ids) const {
  return Walk(
      ids, Touch::kRead, [&](const Place& place, std::span<const std::byte> bytes) -> absl::Status {
        const bool within = TokenOf(place) < shard_.config.tokens;
        const std::optional<size_t> wrong =
            FindMismatch(bytes, within ? RequestSeed(request, place) : ClearSeed(place));
        if (!wrong) return absl::OkStatus();
        return absl::DataLossError(
            absl::StrCat("request ", request, ": ", Describe(place), ": byte ", *wrong,
                         within ? " is not what was sent" : ", after its last token, was written"));
      });
}

}  // namespace kvxfer::cli
