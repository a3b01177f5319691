// What is measured: a model's cache between a prefill and a decode instance of unlike tensor
// parallelism, and which ranks of the two have something to give each other.
//
// Thread-safety: plain values; pure functions.
#ifndef KVXFER_CLI_BENCH_KV_KV_CASE_H_
#define KVXFER_CLI_BENCH_KV_KV_CASE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/kv_layout.h"
#include "src/cli/bench/kv/modes.h"

namespace kvxfer::cli::kv_bench {

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
  kvxfer::KvModel kv{};
  Instance prefill{};
  Instance decode{};
  uint64_t tokens = 0;

  std::string Name() const;
  // What of it a result says, whatever was measured.
  Json ToJson() const;
  // A request has every block of a cache.
  uint32_t BlocksOf(const Instance& instance) const;
  std::vector<uint32_t> IdsOf(const Instance& instance) const;
  // One tensor a layer, [2, blocks, tokens, heads, size] or with heads before tokens; fused:
  // [blocks, tokens, size].
  absl::StatusOr<KvLayout> LayoutOf(const Instance& instance, uint32_t rank, uint32_t blocks) const;
  // Of all ranks that take part; `alone`: of prefill only rank 0. InvalidArgument: the model's
  // heads do not divide so.
  struct Bytes {
    uint64_t prefill = 0;
    uint64_t decode = 0;
  };
  absl::StatusOr<Bytes> CacheBytes(bool alone) const;
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

}  // namespace kvxfer::cli::kv_bench

#endif  // KVXFER_CLI_BENCH_KV_KV_CASE_H_
