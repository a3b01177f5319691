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

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "src/cli/common/kv_cache.h"
#include "src/cli/common/kv_model.h"
#include "src/cli/common/units.h"

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
absl::Status FromJson(const Json& json, DemoConfig& config);

// The block tables of some requests, one for each.
using DemoTables = std::vector<std::vector<uint32_t>>;

struct DemoMessage {
  enum class Kind : uint8_t { kAssign = 1, kArrived = 2, kReleased = 3 };
  Kind kind = Kind::kAssign;
  uint32_t request = 0;
  std::vector<uint32_t> blocks{};
  std::string error{};  // of kReleased; shortened to 1 KiB when it is sent

  std::string Encode() const;
  static absl::StatusOr<DemoMessage> Decode(std::string_view payload);
};

struct DemoMemory {
  std::vector<MemoryChoice> prefill{};  // by rank
  std::vector<MemoryChoice> decode{};
};

// Parses --memory as ParseMemorySides does, except that "cuda" gives each rank the next GPU,
// prefill ranks first; after the last GPU it continues with the first. Returns the error of
// DriverFor for a GPU that cannot be used, before a process is started for it.
absl::StatusOr<DemoMemory> DemoMemoryOf(std::string_view text, size_t prefill, size_t decode);

struct DemoResult {
  bool released = false;  // the decode side has answered
  std::string error{};    // what the decode side found wrong; empty: every byte verified
  uint64_t runs = 0;      // contiguous on both sides
  TransferStats stats{};
};

// The prefill side. Returns when the decode side has answered every request and every transfer has
// ended. Calls `alive` at least every 100 ms and ends with its error. Calls `progress` with the
// number of requests that are done.
absl::StatusOr<std::vector<DemoResult>> RunPrefill(const DemoConfig& config, Agent& agent,
                                                   const KvCache& cache, const std::string& peer,
                                                   std::vector<PagedRegion> remote,
                                                   const std::function<absl::Status()>& alive,
                                                   const std::function<void(size_t)>& progress);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_DEMO_DEMO_H_
