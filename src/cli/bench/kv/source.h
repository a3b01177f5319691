// The prefill side of a case: prefill ranks as agents of this process, and what they know about the
// decode instance in the other process.
//
// Thread-safety: any thread may call Write, Post, WaitAll and the accessors. The other functions
// use the channel to the target: one thread.
#ifndef KVXFER_CLI_BENCH_KV_SOURCE_H_
#define KVXFER_CLI_BENCH_KV_SOURCE_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "src/cli/bench/kv/kv_case.h"
#include "src/cli/bench/kv/rank.h"
#include "src/cli/bench/kv/share_plan.h"
#include "src/cli/common/channel.h"

namespace kvxfer::cli::kv_bench {

class Source {
 public:
  // Sets up case number `index` on both sides. The prefill ranks are all of SharesOf, or rank 0 if
  // the mode is `alone`. The arguments must outlive the source.
  static absl::StatusOr<Source> Open(const Case& one, size_t index, Channel& channel,
                                     const Options& options);
  // Destroys the agents of both sides.
  absl::Status Close();

  const Case& one() const { return *one_; }
  // The shares of the ranks of this source.
  const std::vector<Share>& shares() const { return shares_; }
  const std::vector<Rank>& ranks() const { return ranks_; }
  SharePlan PlanOf(const Share& share) const;
  absl::StatusOr<Transfer> WritePlain(const Share& share, const PlainBlocks& blocks,
                                      const std::string& name) const;

  // The agents of all decode ranks.
  const std::vector<std::string>& group() const { return group_; }
  // These tokens of the request, for WriteBlocks of any rank.
  KvBlocks Blocks(uint64_t first_token, uint64_t tokens) const;

  // Each rank writes its part of these layers with WriteBlocks; waits for all of them.
  absl::Status Write(const std::string& request, uint32_t first_layer = 0,
                     uint32_t layers = kAllLayers) const;
  // The same without waiting: appends the transfers to `posted`. `ready` is KvOptions::ready.
  absl::Status Post(const std::string& request, uint32_t first_layer, uint32_t layers,
                    std::vector<Transfer>& posted,
                    const std::atomic<uint32_t>* ready = nullptr) const;
  // Waits until each transfer has ended. After the first error, which it returns, it cancels the
  // others.
  absl::Status WaitAll(const std::vector<Transfer>& posted) const;

  // Ask sends a command to the target (target.h) and returns its answer. Tell does not wait for it.
  absl::StatusOr<Json> Ask(const Json& command) const;
  absl::Status Tell(const Json& command) const;
  absl::StatusOr<Json> Answer() const;

  absl::Status Forget(const std::string& request) const;
  // Checks the content of every share in the target, and then clears the target.
  absl::Status CheckTarget() const;

 private:
  struct Remote {
    std::string name;
    uint64_t base = 0;
  };

  Source() = default;
  absl::Status MakeRanks(const Options& options);
  absl::Status Meet(size_t index);
  const Rank& RankOf(const Share& share) const;

  const Case* one_ = nullptr;
  Channel* channel_ = nullptr;
  std::vector<Share> shares_;
  std::vector<Rank> ranks_;
  std::vector<uint32_t> rank_numbers_;
  std::vector<Remote> remotes_;     // all decode ranks
  std::vector<std::string> group_;  // their names
  std::vector<uint32_t> local_ids_;
  std::vector<uint32_t> remote_ids_;
};

}  // namespace kvxfer::cli::kv_bench

#endif  // KVXFER_CLI_BENCH_KV_SOURCE_H_
