// A rank of `kvxfer demo --prefill-tp N --decode-tp N`, in its own process: its part of the KV
// cache, its agent, and the commands of the parent, round by round. A round consists of requests
// that move at the same time.
//
// parent → rank  meet     metadata: that of a decode rank, for a prefill rank
//                prepare  first, tables: the requests from `first` on and their blocks on this
//                         rank; prefill makes the content, decode checks that the blocks are unused
//                write    tables: their blocks on the decode side; ends when all data has arrived
//                await    ends when the agent was notified that each request is complete
//                check    decode checks every byte and marks the blocks as unused
//                finish   checks guards and unused blocks, returns the paths
//                leave    ends the process
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

// The block tables of a round, one for each request.
using DemoTables = std::vector<std::vector<uint32_t>>;
absl::StatusOr<DemoTables> GetTables(const Json& object, const char* field);

// Thread-safety: one thread.
class DemoRank {
 public:
  static absl::StatusOr<std::unique_ptr<DemoRank>> Create(const DemoShard& shard);

  absl::StatusOr<std::string> Metadata() const { return agent_->Metadata(); }
  // Executes one command, except "leave", and returns its answer.
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
