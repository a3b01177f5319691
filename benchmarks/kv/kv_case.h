// What is measured: a model's cache between a prefill and a decode instance of unlike tensor
// parallelism, and which ranks of the two have something to give each other.
//
// Thread-safety: plain values; pure functions.
#ifndef KVXFER_BENCHMARKS_KV_KV_CASE_H_
#define KVXFER_BENCHMARKS_KV_KV_CASE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/kv_layout.h"
#include "src/cli/host_memory.h"

namespace kvxfer::kv_bench {

enum class Mode { kThroughput, kStreaming, kMigration, kMemory };

struct Options {
  Mode mode = Mode::kThroughput;
  std::string model{};  // empty: all that are known
  // Of prefill and decode; none: 4 to 2, and 8 to 4.
  std::optional<uint32_t> prefill_tp{};
  std::optional<uint32_t> decode_tp{};
  uint32_t prefill_block = 16;  // tokens
  uint32_t decode_block = 16;
  std::string layout_src = "HND";
  std::string layout_dst = "HND";
  uint64_t tokens = 2048;
  std::string backend = "shm";
  cli::MemorySource memory = cli::MemorySource::kMapped;
  double seconds = 2;         // of a case
  uint32_t layer_us = 1000;   // of computing a layer, or in the mode kMigration a token
  uint32_t rounds = 30;       // of kStreaming and kMigration
  uint32_t transfers = 1000;  // in the mode kMemory
  std::string json{};
};

// One of the two sides.
struct Instance {
  std::string role{};  // "prefill" or "decode"
  uint32_t tp = 1;
  uint32_t block_tokens = 16;
  std::string order{};  // "NHD" or "HND"
  uint64_t seed = 0;    // of the order in which a request has its blocks
};

struct Case {
  std::string model{};
  KvModel kv{};
  Instance prefill{};
  Instance decode{};
  uint64_t tokens = 0;

  std::string Name() const;
  // A request has every block of a cache.
  uint32_t BlocksOf(const Instance& instance) const;
  std::vector<uint32_t> IdsOf(const Instance& instance) const;
  // One tensor a layer, [2, blocks, tokens, heads, size] or with heads before tokens; fused:
  // [blocks, tokens, size].
  absl::StatusOr<KvLayout> LayoutOf(const Instance& instance, uint32_t rank, uint32_t blocks) const;
};

// InvalidArgument, NotFound: what the user gave.
absl::StatusOr<std::vector<Case>> CasesOf(const Options& options);

// What goes between one rank of prefill and one of decode.
struct Share {
  uint32_t prefill = 0;
  uint32_t decode = 0;
  KvHeads heads{};
};

// All shares that make the caches whole which rank 0 of prefill gives something to; its own come
// first.
absl::StatusOr<std::vector<Share>> SharesOf(const Case& one);

// Those of rank 0 of prefill.
std::vector<Share> OwnShares(const std::vector<Share>& shares);
// The ranks of prefill, and of decode, that they name; ascending, each once.
std::vector<uint32_t> PrefillRanks(const std::vector<Share>& shares);
std::vector<uint32_t> DecodeRanks(const std::vector<Share>& shares);

}  // namespace kvxfer::kv_bench

#endif  // KVXFER_BENCHMARKS_KV_KV_CASE_H_
