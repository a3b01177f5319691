// The decode instance: all its ranks, in a process of their own. It does what the prefill process
// asks for, over a channel.
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

// The longest that anybody waits for one answer or transfer.
inline constexpr Duration kPatience = std::chrono::minutes(1);

// Runs until it is told "end". Commands are objects with a field "do":
//   open{case, prefill}      makes the ranks of case number `case`, which know the agents with the
//                            metadata in the list `prefill`; answers with `ranks`, a list of
//                            {name, metadata, base}
//   clear                    zeros the caches
//   check{rank, first, heads}  compares what these heads of a rank's cache have
//   wait{request, layers}    answers with `at`, when the first layers of the request were there at
//                            every rank that takes part, in nanoseconds of the steady clock
//   forget{request}          gives up what came of it, and drops what the application was told
//   memory                   answers as MemoryJson (statistics.h)
//   close                    destroys the ranks
absl::Status ServeTarget(Channel channel, const std::vector<Case>& cases, const Options& options);

// ServeTarget in a copy of this process, which must have neither threads nor agents yet; or, for
// the backend loopback, in a thread. The arguments are borrowed.
class TargetProcess {
 public:
  static absl::StatusOr<std::unique_ptr<TargetProcess>> Start(const std::vector<Case>& cases,
                                                              const Options& options);
  ~TargetProcess();
  TargetProcess(const TargetProcess&) = delete;
  TargetProcess& operator=(const TargetProcess&) = delete;

  Channel& channel() { return process_ ? process_->channel() : channel_; }
  // Tells it to end, and waits for it.
  absl::Status End();
  // What ended a run, from what it saw of it: how the process was lost, if it was.
  absl::Status Explain(const absl::Status& status);

 private:
  TargetProcess() = default;

  std::optional<WorkerProcess> process_;
  Channel channel_;  // of the thread
  std::jthread thread_;
};

}  // namespace kvxfer::cli::kv_bench

#endif  // KVXFER_CLI_BENCH_KV_TARGET_H_
