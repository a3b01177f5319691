// A rank of `kvxfer demo --prefill-tp N --decode-tp N`, in a process of its own: its part of the
// KV cache, its agent, and what the parent has it do, round by round. A round is some requests that
// are under way at the same time.
//
// parent → rank  meet     metadata: of a decode rank, to a prefill rank
//                prepare  first, tables: the requests from `first` on and their blocks here;
//                prefill
//                         makes their content, decode looks that nobody wrote there
//                write    tables: their blocks at the decode side; ends when all has arrived there
//                await    ends when the agent has told of each request that it is whole
//                check    decode looks at every byte, and clears the blocks
//                finish   the last look, and paths; then leave
#ifndef KVXFER_CLI_DEMO_RANK_H_
#define KVXFER_CLI_DEMO_RANK_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/agent.h"
#include "src/cli/common/kv_cache.h"
#include "src/cli/demo/content.h"
#include "src/cli/demo/shard.h"

namespace kvxfer::cli {

// A block table for each request of a round.
using DemoTables = std::vector<std::vector<uint32_t>>;
absl::StatusOr<DemoTables> GetTables(const Json& object, const char* field);

// Thread-safety: one thread.
class DemoRank {
 public:
  static absl::StatusOr<std::unique_ptr<DemoRank>> Create(const DemoShard& shard);

  absl::StatusOr<std::string> Metadata() const { return agent_->Metadata(); }
  // To one message; "leave" is not for it.
  absl::StatusOr<Json> Answer(const Json& message);

 private:
  DemoRank(const DemoShard& shard, KvCache cache)
      : shard_(shard), cache_(std::move(cache)), content_(cache_, shard_) {}
  absl::Status Register();
  absl::Status Meet(const Json& message);
  absl::Status Prepare(const Json& message);
  absl::Status Write(const Json& message);
  absl::StatusOr<Json> Await();
  absl::StatusOr<Json> Check();
  Json Finish();
  std::vector<uint32_t> AllBlocks() const;
  bool prefill() const { return shard_.side == "prefill"; }

  // In the order of lifetimes.
  const DemoShard shard_;
  const KvCache cache_;
  const DemoContent content_;
  std::unique_ptr<Agent> agent_;

  std::vector<std::string> group_;  // prefill: every decode rank's agent
  uint32_t first_ = 0;              // request of the round
  DemoTables tables_;               // of the round
};

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_DEMO_RANK_H_
