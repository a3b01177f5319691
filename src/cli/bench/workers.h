// The processes of a `kvxfer bench` run: targets, where the user names no server, and initiators. A
// single initiator is in this process; several are spread over at most four, as are several
// targets.
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

inline constexpr uint32_t kMaxWorkers = 4;  // processes of initiators, and of targets

// A process of initiators speaks so often while it works; one that is silent for so long is given
// up, for a stopped process closes no connection.
inline constexpr Duration kAliveEvery = std::chrono::milliseconds(250);
inline constexpr Duration kLongestSilence = std::chrono::seconds(10);

struct BenchWorkersSpec {
  std::vector<std::string> servers{};  // empty: processes of our own
  uint32_t targets = 1;                // where servers are named: as many
  uint32_t initiators = 1;
  std::string backend{};
  uint64_t seed = 1;
  bool gpu_memory = false;     // our targets' sessions are of it
  uint64_t session_bytes = 0;  // the largest session that our targets grant
};

// Thread-safety: one thread.
class BenchWorkers {
 public:
  static absl::StatusOr<std::unique_ptr<BenchWorkers>> Start(const BenchWorkersSpec& spec);

  // For BenchCase::targets.
  const std::vector<std::string>& targets() const { return targets_; }

  absl::StatusOr<Opened> Open(const BenchCase& bench);
  // All initiators begin at one moment. `tick` is called every 100 ms or so with the number of
  // requests moved.
  absl::StatusOr<Ran> Run(LoopSpec spec, const TraceSpec* trace,
                          const std::function<void(uint64_t)>& tick);
  absl::Status Close();

  // What `status` comes from where that is the end of one of our processes, else `status`.
  absl::Status Explain(absl::Status status);

 private:
  explicit BenchWorkers(const BenchWorkersSpec& spec) : spec_(spec), targets_(spec.servers) {}
  absl::Status StartTargets();
  absl::Status StartInitiators();
  // Sends each worker a message made for it and collects the answers, in whatever order they come.
  // Aborted names one that has not said for kLongestSilence that it lives. `tick` may be null.
  absl::StatusOr<std::vector<Json>> CallAll(const std::vector<Json>& messages, Duration timeout,
                                            const std::function<void(uint64_t)>& tick);
  struct Awaited;
  absl::Status Hear(size_t worker, bool spoke, Duration passed, Awaited& awaited);

  const BenchWorkersSpec spec_;
  std::vector<std::string> targets_;
  std::vector<WorkerProcess> target_workers_;
  std::vector<WorkerProcess> initiator_workers_;
  InitiatorGroup here_;  // where there is one initiator; closed before the targets end
};

// What the worker processes of a crew do, by the first message of their parent.
absl::Status ServeTargets(Channel& parent, const Json& first);
absl::Status ServeInitiators(Channel& parent);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_BENCH_WORKERS_H_
