// Decides which of several paths (backends) to a peer a transfer takes. It takes the first one in
// the configured order, unless recent measurements show that a later one is clearly faster.
//
// Two figures are measured for each path:
// - speed: completed bytes divided by the time that they took, over kSpeedSample bytes during which
//   the path always had more to do. A sample in which the path ran empty is dropped: it would
//   measure the latency of single ops and make a rarely used path look slow.
// - latency: from the first post to the end of a transfer of at most kSmallTransfer bytes that had
//   the path to itself.
// Each new sample has a weight of a quarter. A figure expires kLately after its last sample, so a
// path that lost its place during a bad minute is tried again.
//
// A path passes the one before it if its estimate for the transfer,
//   latency + bytes / speed,
// is less than 1 / kClearly of the other's. The estimate uses only figures that are known for both;
// if there are none, the order stays.
//
// Thread-safety: none; used by the progress engine. No clock: the caller passes the time.

#ifndef KVXFER_CORE_PLAN_PATH_CHOICE_H_
#define KVXFER_CORE_PLAN_PATH_CHOICE_H_

#include <cstdint>
#include <span>

#include "absl/container/inlined_vector.h"
#include "kvxfer/types.h"
#include "src/core/base/clock.h"

namespace kvxfer {

// The measured figures of a path; 0 means unknown.
struct PathFigures {
  double bytes_per_second = 0;
  Duration latency{};
};

class PathMeasure {
 public:
  static constexpr uint64_t kSpeedSample = 4 * 1024 * 1024;
  static constexpr uint64_t kSmallTransfer = 64 * 1024;
  static constexpr Duration kLately = std::chrono::seconds(60);

  void OnPosted(uint64_t bytes, Time now);
  // An op has completed. `measured` false: not all of its bytes went over this path, so the sample
  // restarts.
  void OnCompleted(uint64_t bytes, Time now, bool measured);
  // A transfer of at most kSmallTransfer bytes, alone on the path, is done.
  void OnSmallDone(Duration took, Time now);

  // True if nothing is in flight on the path.
  bool idle() const { return in_flight_ == 0; }
  PathFigures At(Time now) const;

 private:
  void StartSample(Time now);

  PathFigures figures_{};
  Time speed_at_{};
  Time latency_at_{};
  uint64_t in_flight_ = 0;  // bytes
  uint64_t sampled_ = 0;    // bytes
  Time since_{};            // when the sample began
};

// How many times faster a path must be to pass another one.
inline constexpr double kClearly = 1.5;

// Whether `other` is clearly faster than `path` for a transfer of `bytes`.
bool ClearlyFaster(const PathFigures& other, const PathFigures& path, uint64_t bytes);

// Returns the indices of `paths` (given in the configured order), best first.
using PathOrder = absl::InlinedVector<uint8_t, 8>;
PathOrder OrderPaths(std::span<const PathFigures> paths, uint64_t bytes);

}  // namespace kvxfer

#endif  // KVXFER_CORE_PLAN_PATH_CHOICE_H_
