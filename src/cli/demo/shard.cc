#include "src/cli/demo/shard.h"

#include <algorithm>

#include "src/core/base/strings.h"

namespace kvxfer::cli {
namespace {

constexpr uint32_t kSpareBlocks = 8;

KvElement ElementOf(uint32_t bytes) {
  return bytes == 4 ? KvElement::kFp32 : bytes == 2 ? KvElement::kBf16 : KvElement::kBytes;
}

uint32_t HeadsOfModel(const KvModel& model) { return model.fused ? 1 : model.kv_heads; }

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
    return absl::InvalidArgumentError(absl::StrCat("--gap must be whole elements of ",
                                                   config.model.element_bytes, " bytes, not ",
                                                   config.gap));
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
  const auto size = static_cast<uint32_t>(width);
  return KvLayout::FromTensors({.layers = model.layers,
                                .heads = HeadsOfModel(model),
                                .k_size = size,
                                .v_size = model.fused ? 0 : size,
                                .element = ElementOf(model.element_bytes)},
                               {.tp_rank = shard.rank,
                                .tp_size = static_cast<uint32_t>(shard.config.tp),
                                .layers = model.layers},
                               tensors);
}

Json ToJson(const DemoShard& shard) {
  Json json = ToJson(shard.config);
  json["side"] = shard.side;
  json["layout"] = shard.layout;
  json["rank"] = shard.rank;
  return json;
}

absl::StatusOr<DemoShard> DemoShardFromJson(const Json& json) {
  const absl::StatusOr<DemoConfig> config = DemoConfigFromJson(json);
  if (!config.ok()) return config.status();
  const absl::StatusOr<uint64_t> rank = GetUint(json, "rank");
  if (!rank.ok()) return rank.status();
  return DemoShard{.config = *config,
                   .side = GetString(json, "side"),
                   .layout = GetString(json, "layout"),
                   .rank = static_cast<uint32_t>(*rank)};
}

}  // namespace kvxfer::cli
