// The initiators of `kvxfer bench` in one process, which run at the same time.
#ifndef KVXFER_CLI_BENCH_GROUP_H_
#define KVXFER_CLI_BENCH_GROUP_H_

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "src/cli/bench/case.h"
#include "src/cli/bench/initiator.h"
#include "src/cli/bench/kv_trace.h"
#include "src/cli/bench/loop.h"

namespace kvxfer::cli {

// Facts about a configuration that is set up and whose first round is verified. The times are the
// largest ones of all initiators.
struct Opened {
  std::string backend{};
  std::string path{};
  double register_ms = 0;
  double first_transfer_us = 0;

  void Merge(const Opened& other);
};

// The resources that one target process has used during a run.
struct ProcessUse {
  double cpu_before = 0;
  double cpu_after = 0;
  uint64_t rss_bytes = 0;
};

// The result of a run.
struct Ran {
  Tally all{};
  std::vector<Tally> peers{};  // by initiator or, if there is only one, by target
  LatencyHistogram times{};
  LatencyHistogram notified{};
  Timeline timeline{};
  double cpu_seconds = 0;  // of the initiators' processes, as is `rss_bytes`
  uint64_t rss_bytes = 0;
  std::map<std::string, ProcessUse> targets{};  // by process
  uint64_t tokens = 0;                          // prompt tokens of a trace
  uint64_t hit_tokens = 0;

  void Merge(const Ran& other);
};

Json ToJson(const Opened& opened);
absl::StatusOr<Opened> OpenedFromJson(const Json& json);
Json ToJson(const Ran& ran);
absl::StatusOr<Ran> RanFromJson(const Json& json);

// The share that initiator `index` of `total` has of a run's load.
LoopSpec ShareOf(const LoopSpec& whole, uint32_t index, uint32_t total);

// Thread-safety: one thread at a time.
class InitiatorGroup {
 public:
  // Sets up and verifies initiators `first` to `first + count` of a run.
  absl::StatusOr<Opened> Open(const BenchCase& bench, uint32_t first, uint32_t count);
  // `whole` is the load of all `total` initiators of the run. With `trace`, which one initiator
  // moves, the trace is the load. If `moved` is not null, it counts requests.
  absl::StatusOr<Ran> Run(const LoopSpec& whole, uint32_t total, const TraceSpec* trace,
                          std::atomic<uint64_t>* moved);
  void Close() { initiators_.clear(); }

 private:
  uint32_t first_ = 0;
  std::vector<std::unique_ptr<BenchInitiator>> initiators_;
};

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_BENCH_GROUP_H_
