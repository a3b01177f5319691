#include "src/cli/demo_content.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "src/cli/pattern.h"

namespace kvxfer::cli {
namespace {

// Stands for a request where there is none.
constexpr uint64_t kNobody = UINT64_MAX;

}  // namespace

template <typename Visit>
bool DemoContent::Walk(std::span<const uint32_t> ids, const Visit& visit) const {
  const bool head_by_head = shard_.head_by_head();
  const uint64_t slots = shard_.config.block_tokens;
  const uint64_t heads = shard_.heads();
  const uint64_t inner = head_by_head ? slots : heads;
  for (uint32_t piece = 0; piece < cache_.shape().pieces; ++piece) {
    for (size_t index = 0; index < ids.size(); ++index) {
      Place place{.piece = piece, .id = ids[index], .index = index, .slot = 0, .head = 0};
      for (uint64_t i = 0; i < slots * heads; ++i) {
        place.slot = head_by_head ? i % inner : i / inner;
        place.head = static_cast<uint32_t>(head_by_head ? i / inner : i % inner);
        if (!visit(place)) return false;
      }
    }
  }
  return true;
}

std::span<std::byte> DemoContent::Bytes(const Place& place) const {
  const uint64_t width = shard_.head_bytes();
  const uint64_t number = shard_.head_by_head()
                              ? place.head * shard_.config.block_tokens + place.slot
                              : place.slot * shard_.heads() + place.head;
  return cache_.Block(place.piece, place.id).subspan(number * width, width);
}

uint64_t DemoContent::TokenOf(const Place& place) const {
  return place.index * shard_.config.block_tokens + place.slot;
}

uint64_t DemoContent::ClearSeed(const Place& place) const {
  return PatternSeed({shard_.config.seed, kNobody, place.piece, place.id, place.slot, place.head});
}

// A piece is a layer's K or V: the same on every rank, whatever its part of the heads.
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

void DemoContent::Clear(std::span<const uint32_t> ids) const {
  Walk(ids, [this](const Place& place) {
    FillPattern(Bytes(place), ClearSeed(place));
    return true;
  });
}

absl::Status DemoContent::CheckClear(std::span<const uint32_t> ids) const {
  absl::Status status;
  Walk(ids, [&](const Place& place) {
    const std::optional<size_t> wrong = FindMismatch(Bytes(place), ClearSeed(place));
    if (!wrong) return true;
    status = absl::DataLossError(absl::StrCat(Describe(place), ": byte ", *wrong,
                                              " was written, and the block is of no request"));
    return false;
  });
  return status;
}

void DemoContent::Fill(uint32_t request, std::span<const uint32_t> ids) const {
  Walk(ids, [&](const Place& place) {
    if (TokenOf(place) < shard_.config.tokens) {
      FillPattern(Bytes(place), RequestSeed(request, place));
    }
    return true;
  });
}

absl::Status DemoContent::Check(uint32_t request, std::span<const uint32_t> ids) const {
  absl::Status status;
  Walk(ids, [&](const Place& place) {
    const bool within = TokenOf(place) < shard_.config.tokens;
    const std::optional<size_t> wrong =
        FindMismatch(Bytes(place), within ? RequestSeed(request, place) : ClearSeed(place));
    if (!wrong) return true;
    status = absl::DataLossError(
        absl::StrCat("request ", request, ": ", Describe(place), ": byte ", *wrong,
                     within ? " is not what was sent" : ", behind its last token, was written"));
    return false;
  });
  return status;
}

}  // namespace kvxfer::cli
