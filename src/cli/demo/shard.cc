#include "src/cli/demo/shard.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "src/core/base/strings.h"
#include "src/core/kv/reshard.h"

namespace kvxfer::cli {
namespace {

constexpr uint32_t kSpareBlocks = 8;

uint32_t HeadsOfModel(const KvModel& model) { return model.fused ? 1 : model.kv_heads; }

absl::StatusOr<KvLayout> LayoutOf(const DemoShard& shard) {
  const absl::StatusOr<KvCacheShape> shape = CacheShapeOf(shard);
  if (!shape.ok()) return shape.status();
  return LayoutOf(shard, *shape);
}

// The copies between two blocks are the same in every layer.
void AddRuns(const Reshard& reshard, const DemoShard& from, const DemoShard& to, DemoShare& share) {
  std::map<uint64_t, uint64_t> runs;  // number of runs by length
  KvPieces pieces(static_cast<uint32_t>(from.config.block_tokens), 0,
                  static_cast<uint32_t>(to.config.block_tokens), 0, from.config.tokens);
  std::vector<StridedCopy> copies;
  while (!pieces.done()) {
    copies.clear();
    reshard.Copies(0, 1, pieces.Next(), copies);
    for (const StridedCopy& copy : copies) runs[copy.bytes] += copy.runs();
  }
  uint64_t most = 0;
  for (const auto& [bytes, count] : runs) {
    share.runs += count * from.config.model.layers;
    if (count * bytes < most) continue;
    most = count * bytes;
    share.run_bytes = bytes;
  }
}

// The request number for blocks that no request uses.
constexpr uint64_t kNoRequest = UINT64_MAX;

}  // namespace

// These two do not use the library, which the demo shows: the checks of content depend on them.
uint32_t DemoShard::first_head() const {
  return static_cast<uint32_t>(uint64_t{rank} * HeadsOfModel(config.model) / config.tp);
}

uint32_t DemoShard::heads() const {
  return std::max(1u, HeadsOfModel(config.model) / static_cast<uint32_t>(config.tp));
}

uint64_t DemoShard::head_bytes() const {
  const KvModel& model = config.model;
  return uint64_t{model.fused ? model.fused_width : model.head_size} * model.element_bytes;
}

uint64_t DemoShard::request_bytes() const {
  return config.model.pieces() * config.tokens * heads() * head_bytes();
}

absl::StatusOr<std::vector<DemoShard>> ShardsOf(const DemoConfig& config, const KvSide& side) {
  DemoShard shard{.config = config, .side = side.name, .layout = side.layout};
  const std::string option = absl::StrCat("--", side.name, "-tp");
  if (auto s = CheckTp(config.model, option, side.tp); !s.ok()) return s;
  shard.config.tp = side.tp;
  shard.config.cache_bytes = config.cache_bytes / side.tp;
  if (side.block_tokens) shard.config.block_tokens = *side.block_tokens;
  if (config.gap % config.model.element_bytes != 0) {
    return Invalid("--gap must be whole elements of ", config.model.element_bytes, " bytes, not ",
                   config.gap);
  }
  const absl::StatusOr<KvCacheShape> shape = CacheShapeOf(shard);
  if (!shape.ok()) return shape.status();
  if (auto layout = LayoutOf(shard, *shape); !layout.ok()) return layout.status();
  std::vector<DemoShard> shards;
  for (; shard.rank < side.tp; ++shard.rank) shards.push_back(shard);
  return shards;
}

absl::StatusOr<KvCacheShape> CacheShapeOf(const DemoShard& shard) {
  absl::StatusOr<KvCacheShape> shape = DemoCacheShape(shard.config);
  if (!shape.ok()) return Annotate(shape.status(), absl::StrCat("each ", shard.side, " rank"));
  shape->blocks += kSpareBlocks;
  return shape;
}

absl::StatusOr<KvLayout> LayoutOf(const DemoShard& shard, const KvCacheShape& shape) {
  const KvModel& model = shard.config.model;
  const uint64_t width = shard.head_bytes() / model.element_bytes;
  const uint64_t heads = shard.heads();
  const uint64_t tokens = shard.config.block_tokens;
  const uint64_t block = shape.stride() / model.element_bytes;
  const std::string element = model.fused ? "C" : "D";
  const KvTensor tensor = shard.head_by_head()
                              ? KvTensor{.axes = "BHN" + element,
                                         .shape = {shape.blocks, heads, tokens, width},
                                         .strides = {block, tokens * width, width, 1}}
                              : KvTensor{.axes = "BNH" + element,
                                         .shape = {shape.blocks, tokens, heads, width},
                                         .strides = {block, heads * width, width, 1}};
  const std::vector<KvTensor> tensors(model.fused ? 1 : 2, tensor);
  return KvLayout::FromTensors(LibraryModel(model),
                               {.tp_rank = shard.rank,
                                .tp_size = static_cast<uint32_t>(shard.config.tp),
                                .layers = model.layers},
                               tensors);
}

template <typename Io>
void Fields(Io& io, JsonRef<Io, DemoShard> shard) {
  io("config", shard.config);
  io("side", shard.side);
  io("layout", shard.layout);
  io("rank", shard.rank);
}

Json ToJson(const DemoShard& shard) { return FieldsToJson(shard); }

absl::StatusOr<DemoShard> DemoShardFromJson(const Json& json) { return FromJson<DemoShard>(json); }

absl::StatusOr<std::vector<DemoShare>> SharesOf(std::span<const DemoShard> prefill,
                                                std::span<const DemoShard> decode) {
  std::vector<DemoShare> shares;
  for (const DemoShard& to : decode) {
    const absl::StatusOr<KvLayout> theirs = LayoutOf(to);
    if (!theirs.ok()) return theirs.status();
    const auto sources = SourcesOf(theirs->model(), static_cast<uint32_t>(prefill.size()), to.rank,
                                   static_cast<uint32_t>(decode.size()));
    if (!sources.ok()) return sources.status();
    for (const KvSource& source : *sources) {
      const DemoShard& from = prefill[source.tp_rank];
      const absl::StatusOr<KvLayout> ours = LayoutOf(from);
      if (!ours.ok()) return ours.status();
      const absl::StatusOr<Reshard> reshard = Reshard::Between(*ours, *theirs, source.heads);
      if (!reshard.ok()) return reshard.status();
      DemoShare share{.prefill = from.rank, .decode = to.rank, .heads = source.heads};
      AddRuns(*reshard, from, to, share);
      shares.push_back(share);
    }
  }
  return shares;
}

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
