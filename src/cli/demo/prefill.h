// The prefill side of `kvxfer demo`: makes the KV cache of each request and writes it to the decode
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
  std::string error{};    // what the decode side found wrong; empty: every byte verified
  uint64_t runs = 0;      // contiguous on both sides
  TransferStats stats{};
};

// Thread-safety: one thread. The agent and the cache must outlive it.
class Prefill {
 public:
  Prefill(const DemoConfig& config, Agent& agent, const KvCache& cache, uint32_t cache_blocks,
          std::string peer, std::vector<PagedRegion> remote);

  // Returns when the decode side has answered every request and every transfer has ended. Calls
  // `alive` at least every 100 ms and ends with its error. Calls `progress` with the number of
  // requests that are done.
  absl::Status Run(const std::function<absl::Status()>& alive,
                   const std::function<void(size_t)>& progress);

  const std::vector<DemoResult>& results() const { return results_; }

 private:
  // A request in flight. Its `blocks` return to the allocator when the transfer has ended.
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
  std::deque<DemoMessage> assigned_;  // requests with blocks on the decode side, but not yet here
  std::deque<Active> active_;         // in the order of posting
  std::vector<DemoResult> results_;   // by request
  size_t released_ = 0;               // of results_
};

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_DEMO_PREFILL_H_
