// The prefill side of `kvxfer demo`: makes each request's KV cache and writes it to the decode
// side.
#ifndef KVXFER_CLI_DEMO_PREFILL_H_
#define KVXFER_CLI_DEMO_PREFILL_H_

#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/agent.h"
#include "src/cli/common/scatter.h"
#include "src/cli/demo/demo.h"

namespace kvxfer::cli {

struct DemoResult {
  bool released = false;  // the decode side has answered
  std::string error{};    // what it found wrong; empty: every byte verified
  uint64_t runs = 0;      // contiguous on both sides
  TransferStats stats{};
};

// Thread-safety: one thread. The agent and cache outlive it.
class Prefill {
 public:
  Prefill(const DemoConfig& config, Agent& agent, const KvCache& cache, uint32_t cache_blocks,
          std::string peer, std::vector<PagedRegion> remote);

  // Returns when the decode side has answered for every request and every transfer has ended.
  // `alive` is asked at least every 100 ms whether to go on; `progress` is told how many requests
  // are through.
  absl::Status Run(const std::function<absl::Status()>& alive,
                   const std::function<void(size_t)>& progress);

  const std::vector<DemoResult>& results() const { return results_; }

 private:
  // A request on the way; its `blocks` are the allocator's again once the transfer has ended.
  struct Active {
    uint32_t request;
    std::vector<uint32_t> blocks;
    Transfer transfer;
  };

  absl::Status OnMessage(const Notification& notification);
  absl::Status StartAssigned();
  absl::Status Start(const DemoMessage& assigned, std::vector<uint32_t> blocks);
  absl::Status CollectEnded();

  const DemoConfig& config_;
  Agent& agent_;
  const KvCache& cache_;
  const std::string peer_;
  const std::vector<PagedRegion> remote_;
  BlockAllocator allocator_;
  std::deque<DemoMessage> assigned_;  // the decode side has blocks for them, this side not yet
  std::deque<Active> active_;         // in the order of posting
  std::vector<DemoResult> results_;   // by request
  size_t released_ = 0;               // of results_
};

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_DEMO_PREFILL_H_
