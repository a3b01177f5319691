// The prefill side of a case: ranks of prefill as agents of this process, and what they know of the
// decode instance in the other one.
//
// Thread-safety: Write, Post, WaitAll and the accessors from any thread; the rest, which asks the
// target, by one.
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
  // Case number `index`, on both sides: of prefill all ranks of SharesOf, or rank 0 where the mode
  // is `alone`. The arguments are borrowed.
  static absl::StatusOr<Source> Open(const Case& one, size_t index, Channel& channel,
                                     const Options& options);
  // Destroys the agents of both sides.
  absl::Status Close();

  const Case& one() const { return *one_; }
  // Of the ranks that there are.
  const std::vector<Share>& shares() const { return shares_; }
  const std::vector<Rank>& ranks() const { return ranks_; }
  SharePlan PlanOf(const Share& share) const;
  absl::StatusOr<Transfer> WritePlain(const Share& share, const PlainBlocks& blocks,
                                      const std::string& name) const;

  // All ranks of decode.
  const std::vector<std::string>& group() const { return group_; }
  // Tokens of the request, as WriteBlocks of any rank takes them.
  KvBlocks Blocks(uint64_t first_token, uint64_t tokens) const;

  // What every rank has of these layers, by WriteBlocks: each posts, then all are waited for.
  absl::Status Write(const std::string& request, uint32_t first_layer = 0,
                     uint32_t layers = kAllLayers) const;
  // The same without waiting: appends the transfers. `ready`: as in KvOptions.
  absl::Status Post(const std::string& request, uint32_t first_layer, uint32_t layers,
                    std::vector<Transfer>& posted,
                    const std::atomic<uint32_t>* ready = nullptr) const;
  // Until each has ended, also after the first error, which is returned; the others are cancelled
  // then.
  absl::Status WaitAll(const std::vector<Transfer>& posted) const;

  // A command to the target (target.h), with the answer; Tell comes back without it.
  absl::StatusOr<Json> Ask(const Json& command) const;
  absl::Status Tell(const Json& command) const;
  absl::StatusOr<Json> Answer() const;

  absl::Status Forget(const std::string& request) const;
  // That every share's content lies where it belongs in the target; then clears it.
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
  std::vector<Remote> remotes_;     // all ranks of decode
  std::vector<std::string> group_;  // their names
  std::vector<uint32_t> local_ids_;
  std::vector<uint32_t> remote_ids_;
};

}  // namespace kvxfer::cli::kv_bench

#endif  // KVXFER_CLI_BENCH_KV_SOURCE_H_
