// The rank processes of `kvxfer demo --prefill-tp N --decode-tp N`, as their parent has them.
#ifndef KVXFER_CLI_DEMO_WORKERS_H_
#define KVXFER_CLI_DEMO_WORKERS_H_

#include <cstddef>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "src/cli/common/process.h"
#include "src/cli/demo/shard.h"

namespace kvxfer::cli {

// Thread-safety: one thread. Its end ends the processes.
//
// What a rank refuses or finds is returned at once, with the rank's name; where a process is lost
// that is what is returned, whatever others say of it. DeadlineExceeded names a rank that does not
// answer within the time-out of DemoConfig and some grace, in which it can say itself what it waits
// for.
class DemoWorkers {
 public:
  // Every prefill rank knows every decode rank, in their order, when it returns.
  static absl::StatusOr<DemoWorkers> Start(std::span<const DemoShard> prefill,
                                        std::span<const DemoShard> decode);

  size_t prefill() const { return prefill_; }
  size_t decode() const { return workers_.size() - prefill_; }

  // The same message to every rank of a side; null: none. The answers are in the order of ranks,
  // prefill before decode; null of those that were not asked.
  absl::StatusOr<std::vector<Json>> Call(const Json& to_prefill, const Json& to_decode);
  // All end by themselves.
  absl::Status Leave();

 private:
  DemoWorkers(size_t prefill, Duration timeout) : prefill_(prefill), timeout_(timeout) {}
  absl::StatusOr<std::vector<Json>> CallEach(const std::vector<Json>& messages);
  absl::StatusOr<std::vector<Json>> Collect(const std::vector<Json>& messages);

  size_t prefill_;
  Duration timeout_;
  std::vector<WorkerProcess> workers_;
};

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_DEMO_WORKERS_H_
