// The processes of a `kvxfer bench` run: initiators and, without a server, targets. A single
// initiator runs in this process. Several initiators, like several targets, share at most four
// processes.
#ifndef KVXFER_CLI_BENCH_WORKERS_H_
#define KVXFER_CLI_BENCH_WORKERS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "src/cli/bench/group.h"
#include "src/cli/common/process.h"

namespace kvxfer::cli {

inline constexpr uint32_t kMaxWorkers = 4;  // for initiators, and for targets

// A process of initiators reports every kAliveEvery while it works. After kLongestSilence it is
// given up: a stopped process does not close its connection.
inline constexpr Duration kAliveEvery = std::chrono::milliseconds(250);
inline constexpr Duration kLongestSilence = std::chrono::seconds(10);

struct BenchWorkersSpec {
  std::vector<std::string> servers{};  // empty: worker processes are the targets
  uint32_t targets = 1;                // with servers, their number
  uint32_t initiators = 1;
  std::string backend{};
  uint64_t seed = 1;
  bool gpu_memory = false;     // sessions of the target processes use GPU memory
  uint64_t session_bytes = 0;  // the largest session that the target processes allow
};

// Thread-safety: one thread.
class BenchWorkers {
 public:
  static absl::StatusOr<std::unique_ptr<BenchWorkers>> Start(const BenchWorkersSpec& spec);

  // For BenchCase::targets.
  const std::vector<std::string>& targets() const { return targets_; }

  absl::StatusOr<Opened> Open(const BenchCase& bench);
  // All initiators begin at the same time. Calls `tick` about every 100 ms with the number of
  // requests moved so far.
  absl::StatusOr<Ran> Run(LoopSpec spec, const TraceSpec* trace,
                          const std::function<void(uint64_t)>& tick);
  absl::Status Close();

  // If one of the processes has ended and so caused `status`, says how it ended; else returns
  // `status`.
  absl::Status Explain(absl::Status status);

 private:
  explicit BenchWorkers(const BenchWorkersSpec& spec) : spec_(spec), targets_(spec.servers) {}
  absl::Status StartTargets();
  absl::Status StartInitiators();
  // Sends each worker process its message and collects the answers in any order. Aborted names a
  // process that was silent for kLongestSilence. `tick` may be null.
  absl::StatusOr<std::vector<Json>> CallAll(const std::vector<Json>& messages, Duration timeout,
                                            const std::function<void(uint64_t)>& tick);
  struct Awaited;
  absl::Status Hear(size_t worker, bool spoke, Duration passed, Awaited& awaited);

  const BenchWorkersSpec spec_;
  std::vector<std::string> targets_;
  std::vector<WorkerProcess> target_workers_;
  std::vector<WorkerProcess> initiator_workers_;
  InitiatorGroup here_;  // the single initiator; closed before the targets end
};

// What the worker processes do; the first message of their parent says which of the two.
absl::Status ServeTargets(Channel& parent, const Json& first);
absl::Status ServeInitiators(Channel& parent);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_BENCH_WORKERS_H_
