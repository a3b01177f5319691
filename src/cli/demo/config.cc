// The functions of DemoConfig and DemoMessage.

#include <algorithm>
#include <array>
#include <utility>

#include "kvxfer/notification.h"
#include "src/cli/common/options.h"
#include "src/cli/common/units.h"
#include "src/cli/demo/demo.h"
#include "src/core/base/strings.h"

namespace kvxfer::cli {
namespace {

constexpr size_t kHeaderBytes = 9;  // kind, request, number of blocks
constexpr size_t kMaxErrorBytes = 1024;
constexpr uint64_t kMaxBlocks = (kMaxNotificationBytes - kHeaderBytes) / sizeof(uint32_t);

void Append(std::string& out, uint32_t value) {
  for (unsigned shift = 0; shift < 32; shift += 8) {
    out += static_cast<char>(static_cast<uint8_t>(value >> shift));
  }
}

uint32_t ReadAt(std::string_view bytes, size_t offset) {
  uint32_t value = 0;
  for (size_t i = 4; i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[offset + i]);
  return value;
}

// The numbers of DemoConfig that are sent to the decode process, with their names.
template <typename Config>
auto Numbers(Config& c) {
  return std::array{std::pair{"requests", &c.requests},
                    std::pair{"tokens", &c.tokens},
                    std::pair{"block_tokens", &c.block_tokens},
                    std::pair{"tp", &c.tp},
                    std::pair{"seed", &c.seed},
                    std::pair{"gap", &c.gap},
                    std::pair{"cache_bytes", &c.cache_bytes}};
}

template <typename Model>
auto ModelNumbers(Model& m) {
  return std::array{std::pair{"layers", &m.layers}, std::pair{"kv_heads", &m.kv_heads},
                    std::pair{"head_size", &m.head_size},
                    std::pair{"element_bytes", &m.element_bytes},
                    std::pair{"fused_width", &m.fused_width}};
}

}  // namespace

absl::StatusOr<KvCacheShape> DemoCacheShape(const DemoConfig& config) {
  for (const absl::Status& status :
       {CheckRange("--requests", config.requests, 1, 1'000'000),
        CheckRange("--tokens", config.tokens, 1, 1u << 24),
        CheckRange("--block-tokens", config.block_tokens, 1, 4096),
        CheckRange("--tp", config.tp, 1, 1024), CheckTp(config.model, "--tp", config.tp),
        CheckRange("--gap", config.gap, 0, 1u << 20),
        CheckAboveZero("--timeout", config.timeout)}) {
    if (!status.ok()) return status;
  }
  if (config.blocks_per_request() > kMaxBlocks) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a block table of ", config.blocks_per_request(), " blocks exceeds the ", kMaxBlocks,
        " that fit a notification; use fewer --tokens or larger --block-tokens"));
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
    return absl::InvalidArgumentError(
        absl::StrCat("one request needs ", FormatBytes(shape.bytes() * config.blocks_per_request()),
                     ", the cache has ", FormatBytes(config.cache_bytes),
                     "; use fewer --tokens or a larger --cache-size"));
  }
  const uint64_t useful = config.requests * config.blocks_per_request();
  shape.blocks = static_cast<uint32_t>(std::min<uint64_t>({fit, useful, 1u << 24}));
  return shape;
}

Json ToJson(const DemoConfig& config) {
  Json json = {{"name", config.model.name},
               {"fused", config.model.fused},
               {"backend", config.backend},
               {"memory", config.memory},
               {"memory_there", config.memory_there},
               {"timeout_ns", static_cast<uint64_t>(config.timeout.count())}};
  for (const auto& [name, value] : Numbers(config)) json[name] = *value;
  for (const auto& [name, value] : ModelNumbers(config.model)) json[name] = *value;
  return json;
}

absl::StatusOr<DemoConfig> DemoConfigFromJson(const Json& json) {
  DemoConfig config;
  config.model.name = GetString(json, "name");
  config.backend = GetString(json, "backend");
  config.memory = GetString(json, "memory");
  config.memory_there = GetString(json, "memory_there");
  const auto fused = json.find("fused");
  config.model.fused = fused != json.end() && *fused == true;
  const absl::StatusOr<uint64_t> timeout = GetUint(json, "timeout_ns");
  if (!timeout.ok()) return timeout.status();
  config.timeout = Duration(static_cast<int64_t>(*timeout));
  for (const auto& [name, value] : Numbers(config)) {
    const absl::StatusOr<uint64_t> number = GetUint(json, name);
    if (!number.ok()) return number.status();
    *value = *number;
  }
  for (const auto& [name, value] : ModelNumbers(config.model)) {
    const absl::StatusOr<uint64_t> number = GetUint(json, name);
    if (!number.ok()) return number.status();
    *value = static_cast<uint32_t>(*number);
  }
  return config;
}

std::string DemoMessage::Encode() const {
  std::string payload(1, static_cast<char>(kind));
  Append(payload, request);
  Append(payload, static_cast<uint32_t>(blocks.size()));
  for (uint32_t block : blocks) Append(payload, block);
  return payload.append(error, 0, kMaxErrorBytes);
}

absl::StatusOr<DemoMessage> DemoMessage::Decode(std::string_view payload) {
  const auto bad = [] {
    return absl::InvalidArgumentError("a notification that is not from the demo");
  };
  if (payload.size() < kHeaderBytes || payload[0] < 1 || payload[0] > 3) return bad();
  DemoMessage message{.kind = static_cast<Kind>(payload[0]), .request = ReadAt(payload, 1)};
  const size_t count = ReadAt(payload, 5);
  if (count > (payload.size() - kHeaderBytes) / sizeof(uint32_t)) return bad();
  for (size_t i = 0; i < count; ++i) {
    message.blocks.push_back(ReadAt(payload, kHeaderBytes + i * sizeof(uint32_t)));
  }
  message.error = payload.substr(kHeaderBytes + count * sizeof(uint32_t));
  return message;
}

}  // namespace kvxfer::cli
