// When single transfers of a run went from stage to stage: `kvxfer bench --timeline`.
#ifndef KVXFER_CLI_BENCH_TIMELINE_H_
#define KVXFER_CLI_BENCH_TIMELINE_H_

#include <atomic>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "src/cli/common/json_util.h"

namespace kvxfer::cli {

// Transfers of one result at most: they travel between processes in one message.
inline constexpr uint64_t kMaxTimeline = 4096;

// All times in nanoseconds since the common start of the run.
struct TransferTimes {
  uint32_t peer = 0;    // as `peer_gb_per_s` counts them
  uint32_t thread = 0;  // of that peer
  uint64_t bytes = 0;
  int64_t due_ns = 0;
  int64_t posted_ns = 0;
  int64_t first_slice_ns = 0;        // handed to the backend
  std::optional<int64_t> notified_ns{};  // the target's application; only where both have one clock
  int64_t ended_ns = 0;              // at the initiator
};

using Timeline = std::vector<TransferTimes>;

// Travels between processes.
Json ToJson(const Timeline& timeline);
absl::StatusOr<Timeline> TimelineFromJson(const Json& json);

// What a target's application was told: number of a transfer, nanoseconds since its posting.
using ArrivalTimes = std::vector<std::pair<uint64_t, uint64_t>>;

// Keeps the first transfers of a run, in the order of their posting.
// Thread-safety: Begin and Put any; the others when no thread is at it any more.
class TimelineRecorder {
 public:
  explicit TimelineRecorder(uint64_t most);
  // Of a transfer that is about to be posted: its number, from 1; 0: it is not kept.
  uint64_t Begin();
  // Its times, by the clock of MonotonicNanoseconds, once it has ended; by who has begun it.
  void Put(uint64_t number, const TransferTimes& times) { kept_[number - 1] = times; }
  // What was kept since `start_ns`, by number.
  Timeline Take(int64_t start_ns);

 private:
  Timeline kept_;
  std::atomic<uint64_t> begun_{0};
};

// Numbers that are in no timeline are ignored.
void AddArrivalTimes(const ArrivalTimes& arrivals, Timeline& timeline);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_BENCH_TIMELINE_H_
