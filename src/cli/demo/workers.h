// The rank processes of `kvxfer demo --prefill-tp N --decode-tp N`, seen from their parent.
#ifndef KVXFER_CLI_DEMO_WORKERS_H_
#define KVXFER_CLI_DEMO_WORKERS_H_

#include <cstddef>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "src/cli/common/process.h"
#include "src/cli/demo/shard.h"

namespace kvxfer::cli {

// Thread-safety: one thread. The destructor kills the processes.
//
// An error of a rank is returned at once, with the rank's name. If a process was lost, its loss is
// returned, whatever the others report about it. DeadlineExceeded names a rank that does not answer
// within the time-out of DemoConfig plus some grace, during which the rank can report its own
// time-out.
class DemoWorkers {
 public:
  // When this returns, every prefill rank knows every decode rank, in their order.
  static absl::StatusOr<DemoWorkers> Start(std::span<const DemoShard> prefill,
                                           std::span<const DemoShard> decode);

  size_t prefill() const { return prefill_; }
  size_t decode() const { return workers_.size() - prefill_; }

  // Sends one message to every rank of a side; null: none. The answers are in the order of ranks,
  // prefill before decode, and null for ranks that got no message.
  absl::StatusOr<std::vector<Json>> Call(const Json& to_prefill, const Json& to_decode);
  // Lets all processes end, and waits for that.
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
