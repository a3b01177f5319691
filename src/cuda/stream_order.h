// A point in a CUDA stream of the application that transfers wait for.
//
// No thread waits. The holder of a point queries it repeatedly, rarely enough to cost little. In a
// forked child, where the CUDA driver does not work, the parent's points are left alone.

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

// The work that was in a CUDA stream at some time, or before an event of the application, or both.
//
// Lifetime: its own event is free for another point once it is passed or with the point, on any
// thread.
// Thread-safety: used by one thread at a time; Take from any thread.
class StreamPoint {
 public:
  // Records where `stream` is now, and adopts `event`: a CUevent that was recorded already and
  // stays valid until the point is passed or destroyed; 0: none. Null: neither is given.
  // InvalidArgument, with the reason: kvxfer cannot use this CUDA stream or event. Shared, because
  // the members of a group wait for the same point and any of them may end last.
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
  void ReturnOwn();

  const Driver& driver_;
  const int device_;  // the device in whose context the events are queried
  const pid_t process_ = getpid();
  const Time made_ = Now();
  Time ask_again_{};
  // Points of one CUDA stream are passed in the order of their numbers. 0: unknown stream.
  uint64_t stream_ = 0;
  uint64_t number_ = 0;
  api::CUevent own_ = nullptr;    // null once it is over
  api::CUevent other_ = nullptr;  // the application's event; null once it is over
};

// Queries many points as rarely as possible: in each CUDA stream only the first one, and one that
// takes long less often.
//
// Thread-safety: none.
class PointPoll {
 public:
  // A point is known to be passed within this time plus a sixteenth of the time that it took, ...
  static constexpr Duration kOften = std::chrono::microseconds(20);
  // ... and at the latest within this time.
  static constexpr Duration kSeldom = std::chrono::microseconds(100);

  // A round: Passed is called for every point that somebody waits for.
  void BeginRound(Time now);
  // Whether `point` is known to be passed. An error: it never will be, because the context is
  // broken or the event is invalid.
  absl::StatusOr<bool> Passed(StreamPoint& point);
  // When the next round is due; Time::max(): nobody waits.
  Time next() const { return next_; }

 private:
  struct Front {
    int device = 0;  // a default stream has the same key on every device
    uint64_t stream = 0;
    uint64_t number = 0;
  };
  Time now_{};
  Time next_ = Time::max();
  // Points not passed yet; no later point of their streams is either.
  std::vector<Front> fronts_;
};

}  // namespace kvxfer::cuda

#endif  // KVXFER_CUDA_STREAM_ORDER_H_
