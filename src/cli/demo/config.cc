// The functions of DemoConfig and DemoMessage.

#include <algorithm>
#include <cstring>
#include <utility>

#include "kvxfer/notification.h"
#include "src/cli/common/cache_memory.h"
#include "src/cli/common/options.h"
#include "src/cli/common/units.h"
#include "src/cli/demo/demo.h"
#include "src/core/protocol/codec.h"

namespace kvxfer::cli {
namespace {

constexpr size_t kHeaderBytes = 9;  // kind, request, number of blocks
constexpr size_t kMaxErrorBytes = 1024;
constexpr uint64_t kMaxBlocks = (kMaxNotificationBytes - kHeaderBytes) / sizeof(uint32_t);

constexpr std::string_view kNextGpu = "cuda";

// The memory of each rank of a side. `before` ranks of the other side come first.
absl::StatusOr<std::vector<MemoryChoice>> ChoicesOf(std::string_view text, size_t ranks,
                                                    size_t before) {
  const absl::StatusOr<MemoryChoice> named = ParseMemoryChoice(text);
  if (!named.ok()) return named.status();
  std::vector<MemoryChoice> choices(ranks, *named);
  if (!named->cuda()) return choices;
  const absl::StatusOr<const cuda::Driver*> driver = DriverFor(named->device);
  if (!driver.ok()) return driver.status();
  if (text != kNextGpu) return choices;
  const size_t devices = (*driver)->devices().size();
  for (size_t i = 0; i < ranks; ++i) {
    choices[i].device = static_cast<int>((before + i) % devices);
  }
  return choices;
}

}  // namespace

absl::StatusOr<KvCacheShape> DemoCacheShape(const DemoConfig& config) {
  if (absl::Status s = FirstError({CheckRange("--requests", config.requests, 1, 1'000'000),
                                   CheckRange("--tokens", config.tokens, 1, 1u << 24),
                                   CheckRange("--block-tokens", config.block_tokens, 1, 4096),
                                   CheckRange("--tp", config.tp, 1, 1024),
                                   CheckTp(config.model, "--tp", config.tp),
                                   CheckRange("--gap", config.gap, 0, 1u << 20),
                                   CheckAboveZero("--timeout", config.timeout)});
      !s.ok())
    return s;
  if (config.blocks_per_request() > kMaxBlocks) {
    return Invalid("a block table of ", config.blocks_per_request(), " blocks exceeds the ",
                   kMaxBlocks,
                   " that fit a notification; use fewer --tokens or larger --block-tokens");
  }
  const absl::StatusOr<MemoryChoice> memory = ParseMemoryChoice(config.memory);
  if (!memory.ok()) return memory.status();
  KvCacheShape shape{.pieces = config.model.pieces(),
                     .block_bytes = config.block_bytes(),
                     .blocks = 1,
                     .gap = config.gap,
                     .memory = *memory};
  const uint64_t fit = config.cache_bytes / shape.bytes();
  if (fit < config.blocks_per_request()) {
    return Invalid("one request needs ", FormatBytes(shape.bytes() * config.blocks_per_request()),
                   ", the cache has ", FormatBytes(config.cache_bytes),
                   "; use fewer --tokens or a larger --cache-size");
  }
  const uint64_t useful = config.requests * config.blocks_per_request();
  shape.blocks = static_cast<uint32_t>(std::min<uint64_t>({fit, useful, 1u << 24}));
  return shape;
}

template <typename Io>
void Fields(Io& io, JsonRef<Io, KvModel> model) {
  io("name", model.name);
  io("layers", model.layers);
  io("kv_heads", model.kv_heads);
  io("head_size", model.head_size);
  io("element_bytes", model.element_bytes);
  io("fused", model.fused);
  io("fused_width", model.fused_width);
}

template <typename Io>
void Fields(Io& io, JsonRef<Io, DemoConfig> config) {
  io("model", config.model);
  io("backend", config.backend);
  io("memory", config.memory);
  io("memory_there", config.memory_there);
  io("requests", config.requests);
  io("tokens", config.tokens);
  io("block_tokens", config.block_tokens);
  io("tp", config.tp);
  io("seed", config.seed);
  io("gap", config.gap);
  io("cache_bytes", config.cache_bytes);
  io("timeout_ns", config.timeout);
}

Json ToJson(const DemoConfig& config) { return FieldsToJson(config); }

absl::StatusOr<DemoConfig> DemoConfigFromJson(const Json& json) {
  return FromJson<DemoConfig>(json);
}

absl::Status FromJson(const Json& json, DemoConfig& config) {
  JsonIn io(json);
  Fields(io, config);
  return io.Finish();
}

std::string DemoMessage::Encode() const {
  wire::Writer out;
  out.Int("kind", static_cast<uint8_t>(kind));
  out.Int("request", request);
  out.Int("blocks", static_cast<uint32_t>(blocks.size()));
  out.Put(blocks.data(), blocks.size() * sizeof(uint32_t));
  out.RestOfWords("error", error, kMaxErrorBytes);
  return out.Take();
}

absl::StatusOr<DemoMessage> DemoMessage::Decode(std::string_view payload) {
  wire::Reader in(std::as_bytes(std::span(payload)), "demo");
  uint8_t kind = 0;
  uint32_t count = 0;
  DemoMessage message;
  in.Int("kind", kind);
  in.Check("kind", kind >= 1 && kind <= 3, "unknown");
  in.Int("request", message.request);
  in.Int("blocks", count);
  const std::byte* const blocks = in.Take("blocks", size_t{count} * sizeof(uint32_t));
  // Without blocks there is no array that memcpy could be given.
  if (blocks != nullptr && count > 0) {
    message.blocks.resize(count);
    std::memcpy(message.blocks.data(), blocks, count * sizeof(uint32_t));
  }
  in.RestOfWords("error", message.error, kMaxErrorBytes);
  if (absl::Status s = in.Finish(); !s.ok()) return s;
  message.kind = static_cast<Kind>(kind);
  return message;
}

absl::StatusOr<DemoMemory> DemoMemoryOf(std::string_view text, size_t prefill, size_t decode) {
  const size_t comma = text.find(',');
  absl::StatusOr<std::vector<MemoryChoice>> here = ChoicesOf(text.substr(0, comma), prefill, 0);
  if (!here.ok()) return here.status();
  absl::StatusOr<std::vector<MemoryChoice>> there =
      ChoicesOf(comma == std::string_view::npos ? text : text.substr(comma + 1), decode, prefill);
  if (!there.ok()) return there.status();
  return DemoMemory{*std::move(here), *std::move(there)};
}

}  // namespace kvxfer::cli
