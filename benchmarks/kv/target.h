// The decode instance: all its ranks, in a process of their own. It does what the prefill process
// asks for, over a channel.
//
// Thread-safety: one thread at a time.
#ifndef KVXFER_BENCHMARKS_KV_TARGET_H_
#define KVXFER_BENCHMARKS_KV_TARGET_H_

#include <sys/types.h>

#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "benchmarks/kv/kv_case.h"
#include "src/cli/channel.h"

namespace kvxfer::kv_bench {

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
absl::Status ServeTarget(cli::Channel channel, const std::vector<Case>& cases,
                         const Options& options);

// ServeTarget in a child of this process, which must have no agents yet; or, for the backend
// loopback, which reaches only agents of one process, in a thread.
class TargetProcess {
 public:
  static absl::StatusOr<std::unique_ptr<TargetProcess>> Start(const std::vector<Case>& cases,
                                                              const Options& options);
  ~TargetProcess();
  cli::Channel& channel() { return channel_; }
  // Tells it to end, and waits for it.
  absl::Status End();

 private:
  TargetProcess() = default;
  absl::Status Reap(Duration timeout);

  cli::Channel channel_;
  pid_t pid_ = -1;
  std::thread thread_;
};

}  // namespace kvxfer::kv_bench

#endif  // KVXFER_BENCHMARKS_KV_TARGET_H_
