// When single transfers of a run passed from stage to stage: `kvxfer bench --timeline`.
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

// The most transfers in one result: they are sent between processes in one message.
inline constexpr uint64_t kMaxTimeline = 4096;

// All times in nanoseconds since the common start of the run.
struct TransferTimes {
  uint32_t peer = 0;    // index into `peer_gb_per_s`
  uint32_t thread = 0;  // of that peer
  uint64_t bytes = 0;
  int64_t due_ns = 0;
  int64_t posted_ns = 0;
  int64_t first_slice_ns = 0;            // the backend got the first slice
  std::optional<int64_t> notified_ns{};  // the target's application was; needs a common clock
  int64_t ended_ns = 0;                  // at the initiator
};

using Timeline = std::vector<TransferTimes>;

// For other processes.
Json ToJson(const Timeline& timeline);
absl::StatusOr<Timeline> TimelineFromJson(const Json& json);

// When a target's application was notified: the number of a transfer, and nanoseconds since its
// posting.
using ArrivalTimes = std::vector<std::pair<uint64_t, uint64_t>>;

// Records the first transfers of a run, in the order of their posting.
// Thread-safety: any thread may call Begin and Put. Take: no other thread may use the object.
class TimelineRecorder {
 public:
  explicit TimelineRecorder(uint64_t most);
  // Call it before posting. Returns the number of the transfer, from 1, or 0 if it is not recorded.
  uint64_t Begin();
  // Stores the times of a transfer that has ended, by the clock of MonotonicNanoseconds. For the
  // thread that called Begin.
  void Put(uint64_t number, const TransferTimes& times) { kept_[number - 1] = times; }
  // The recorded transfers by number, with times since `start_ns`.
  Timeline Take(int64_t start_ns);

 private:
  Timeline kept_;
  std::atomic<uint64_t> begun_{0};
};

// Ignores numbers that are not in the timeline.
void AddArrivalTimes(const ArrivalTimes& arrivals, Timeline& timeline);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_BENCH_TIMELINE_H_
