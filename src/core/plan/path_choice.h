// Which of several paths (backends) to one peer a transfer takes: that of the best backend, in the
// order of the list, unless what was seen lately of another one is clearly better.
//
// Seen are two figures of a path:
// - speed: bytes that completed over the time they took, kSpeedSample bytes at a time, while the
// path
//   always had more to do. A sample in which it ran empty is dropped: single ops say how long one
//   takes, and would make a path that is used little look slow.
// - latency: from the first post of a transfer of at most kSmallTransfer bytes, to which the path
//   was left alone, to its end.
// Each new sample counts a quarter. What was seen longer than kLately ago is not known any more: a
// path that lost its place over a bad minute is tried again.
//
// A path passes one that is before it where its estimate for the transfer,
//   latency + bytes / speed,
// is below 1 / kClearly of the other's, out of the figures that are known of both; no such figure
// is no reason.
//
// Thread-safety: none; owned by the progress engine. No clock: the caller says what time it is.

#ifndef KVXFER_CORE_PLAN_PATH_CHOICE_H_
#define KVXFER_CORE_PLAN_PATH_CHOICE_H_

#include <cstdint>
#include <span>

#include "absl/container/inlined_vector.h"
#include "kvxfer/types.h"
#include "src/core/base/clock.h"

namespace kvxfer {

// 0: not known.
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
  // The op is over; `measured`: its bytes went all the way.
  void OnCompleted(uint64_t bytes, Time now, bool measured);
  // A transfer that was small and alone is done.
  void OnSmallDone(Duration took, Time now);

  // Nothing is on its way over the path.
  bool idle() const { return in_flight_ == 0; }
  PathFigures At(Time now) const;

 private:
  void StartSample(Time now);

  PathFigures figures_{};
  Time speed_at_{};
  Time latency_at_{};
  uint64_t in_flight_ = 0;  // bytes
  uint64_t sampled_ = 0;    // bytes
  Time since_{};            // the sample began
};

inline constexpr double kClearly = 1.5;

// Whether `other` is clearly faster than `path` for a transfer of `bytes`.
bool ClearlyFaster(const PathFigures& other, const PathFigures& path, uint64_t bytes);

// The indices of `paths`, which are in the order of the list, best first.
using PathOrder = absl::InlinedVector<uint8_t, 8>;
PathOrder OrderPaths(std::span<const PathFigures> paths, uint64_t bytes);

}  // namespace kvxfer

#endif  // KVXFER_CORE_PLAN_PATH_CHOICE_H_
