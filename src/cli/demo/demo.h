// What the two processes of `kvxfer demo` share: the parameters of the run, and their messages.
// Each message is a notification:
//
//   kAssign    decode → prefill: request, block table. The request gets these blocks of the decode
//              side.
//   kArrived   prefill → decode: request, block table. Attached to the write of the request.
//   kReleased  decode → prefill: request, error or "". The request was checked, its
//              blocks are free.
#ifndef KVXFER_CLI_DEMO_DEMO_H_
#define KVXFER_CLI_DEMO_DEMO_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "src/cli/common/channel.h"
#include "src/cli/common/kv_cache.h"
#include "src/cli/common/kv_model.h"

namespace kvxfer::cli {

struct DemoConfig {
  KvModel model;
  std::string backend{};
  std::string memory = "mapped";  // of this side, for ParseMemoryChoice
  std::string memory_there = "mapped";
  uint64_t requests = 16;
  uint64_t tokens = 2048;  // of each request
  uint64_t block_tokens = 16;
  uint64_t tp = 1;
  uint64_t seed = 1;
  uint64_t gap = 64;
  uint64_t cache_bytes = uint64_t{1} << 30;  // of each side
  Duration timeout = std::chrono::seconds(60);
  bool corrupt = false;  // changes one byte of one request before it is written

  MemorySides memories() const {
    return {ParseMemoryChoice(memory).value_or(MemoryChoice()),
            ParseMemoryChoice(memory_there).value_or(MemoryChoice())};
  }
  uint32_t blocks_per_request() const {
    return static_cast<uint32_t>((tokens + block_tokens - 1) / block_tokens);
  }
  uint64_t request_bytes() const { return model.pieces() * (blocks_per_request() * block_bytes()); }
  uint64_t block_bytes() const {
    return block_tokens * model.TokenBytes(static_cast<uint32_t>(tp));
  }
};

// The cache of either side: as many blocks as fit `cache_bytes`, but no more than the requests
// need. InvalidArgument: the parameters make no sense, or not even one request fits.
absl::StatusOr<KvCacheShape> DemoCacheShape(const DemoConfig& config);

// For the decode process.
Json ToJson(const DemoConfig& config);
absl::StatusOr<DemoConfig> DemoConfigFromJson(const Json& json);

struct DemoMessage {
  enum class Kind : uint8_t { kAssign = 1, kArrived = 2, kReleased = 3 };
  Kind kind = Kind::kAssign;
  uint32_t request = 0;
  std::vector<uint32_t> blocks{};
  std::string error{};  // of kReleased; shortened to 1 KiB when it is sent

  std::string Encode() const;
  static absl::StatusOr<DemoMessage> Decode(std::string_view payload);
};

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_DEMO_DEMO_H_
