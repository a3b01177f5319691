// A point in a stream of the application that transfers wait for.
//
// No thread waits: whoever has a point asks for it again and again, seldom enough to cost little.
//
// In a forked child, whose driver is dead, the points of the parent are left alone.

#ifndef KVXFER_CUDA_STREAM_ORDER_H_
#define KVXFER_CUDA_STREAM_ORDER_H_

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/types.h"
#include "src/core/base/clock.h"
#include "src/cuda/driver.h"

namespace kvxfer::cuda {

// What was in a stream at some time, or before an event of the application's, or both.
//
// Lifetime: its own event is let go of once it was passed, or at its end, on whichever thread.
// Thread-safety: one owner at a time; Take from any thread.
class StreamPoint {
 public:
  // Where `stream` is at the moment of the call, and `event`, a CUevent that was recorded already
  // and is valid until this is passed or gone; 0: none. Null: neither is given.
  // InvalidArgument: no stream, or event, that kvxfer can use, and why.
  // Shared, for the members of a group wait for the same one, whichever ends last.
  static absl::StatusOr<std::shared_ptr<StreamPoint>> Take(const std::optional<CudaStream>& stream,
                                                           uint64_t event);
  ~StreamPoint();
  StreamPoint(const StreamPoint&) = delete;
  StreamPoint& operator=(const StreamPoint&) = delete;

  bool passed() const { return own_ == nullptr && other_ == nullptr; }

 private:
  friend class PointPoll;
  StreamPoint(const Driver& driver, int device) : driver_(driver), device_(device) {}
  static absl::StatusOr<std::shared_ptr<StreamPoint>> Record(const CudaStream& stream);
  static absl::StatusOr<std::shared_ptr<StreamPoint>> InUse();
  absl::Status Adopt(uint64_t event);
  absl::Status Ask();
  void DestroyOwn();

  const Driver& driver_;
  const int device_;  // in whose context the events are asked for
  const pid_t process_ = getpid();
  const Time made_ = Now();
  Time ask_again_{};
  // Points of one stream are passed in the order of their numbers; 0: not known of which.
  uint64_t stream_ = 0;
  uint64_t number_ = 0;
  api::CUevent own_ = nullptr;    // until it is over
  api::CUevent other_ = nullptr;  // the application's, until it is over
};

// Asks for many points, as seldom as it can: of those in one stream only the first, and one that
// takes long less often.
//
// Thread-safety: none.
class PointPoll {
 public:
  // It is known so soon that a point was passed, plus a sixteenth of the time that it took, ...
  static constexpr Duration kOften = std::chrono::microseconds(20);
  // ... and so soon at the latest.
  static constexpr Duration kSeldom = std::chrono::microseconds(100);

  // In a round all are asked for that anybody waits for.
  void BeginRound(Time now);
  // Whether it is known that `point` was passed. An error: it never will be, as the context is
  // broken or the event is none.
  absl::StatusOr<bool> Passed(StreamPoint& point);
  // When the next round is due; Time::max(): nobody waits.
  Time next() const { return next_; }

 private:
  struct Front {
    int device = 0;  // a default stream has the same key on each
    uint64_t stream = 0;
    uint64_t number = 0;
  };
  Time now_{};
  Time next_ = Time::max();
  std::vector<Front> fronts_;  // points that were not passed: nothing behind them was
};

}  // namespace kvxfer::cuda

#endif  // KVXFER_CUDA_STREAM_ORDER_H_
