// The decode instance: all of its ranks in one process. It obeys commands of the prefill process,
// which come over a channel.
//
// Thread-safety: one thread at a time.
#ifndef KVXFER_CLI_BENCH_KV_TARGET_H_
#define KVXFER_CLI_BENCH_KV_TARGET_H_

#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "src/cli/bench/kv/kv_case.h"
#include "src/cli/common/channel.h"
#include "src/cli/common/process.h"

namespace kvxfer::cli::kv_bench {

// The longest wait for one answer or transfer.
inline constexpr Duration kPatience = std::chrono::minutes(1);

// Runs until the command "end". Commands are objects with a field "do":
//   open{case, prefill}      creates the ranks of case number `case` and adds the agents with the
//                            metadata in the list `prefill`; answers with `ranks`, a list of
//                            {name, metadata, base}
//   clear                    zeros the caches
//   check{rank, first, heads}  compares the content of these heads in a rank's cache
//   wait{request, layers}    waits until the first `layers` layers of the request have arrived at
//                            every rank that takes part; answers with `at`, the time of the
//                            steady clock in nanoseconds
//   forget{request}          drops the request, its notifications and its events
//   memory                   answers with MemoryJson (statistics.h)
//   close                    destroys the ranks
absl::Status ServeTarget(Channel channel, const std::vector<Case>& cases, const Options& options);

// Runs ServeTarget in a fork of this process, which must not have threads or agents yet, or in a
// thread for the backend loopback. The arguments of Start must outlive it.
class TargetProcess {
 public:
  static absl::StatusOr<std::unique_ptr<TargetProcess>> Start(const std::vector<Case>& cases,
                                                              const Options& options);
  ~TargetProcess();
  TargetProcess(const TargetProcess&) = delete;
  TargetProcess& operator=(const TargetProcess&) = delete;

  Channel& channel() { return process_ ? process_->channel() : channel_; }
  // Sends "end" and waits for the end.
  absl::Status End();
  // If the process was lost, says how; else returns `status`.
  absl::Status Explain(const absl::Status& status);

 private:
  TargetProcess() = default;

  std::optional<WorkerProcess> process_;
  Channel channel_;  // to the thread
  std::jthread thread_;
};

}  // namespace kvxfer::cli::kv_bench

#endif  // KVXFER_CLI_BENCH_KV_TARGET_H_
