// Decides which rail of a connection carries a slice: the one that would finish it first. The
// estimate for a rail is
//   (bytes in flight + bytes of the slice) / speed × (1 + distance),
// with measured speed. A rail with a quarter of the speed gets about a quarter of the bytes. A rail
// that stalls keeps what it has in flight and gets no more.
//
// Speed is completed bytes divided by the time in which the rail had work, over kSample bytes at a
// time; each sample has a weight of a quarter. Small ops spend time on other things than bytes, so
// a rail that ran empty during a sample may be faster than it looks: such a sample only raises the
// estimate. Before its first sample a rail has its nominal speed, or, if that is unknown, the
// highest speed of the connection's rails, so that it gets its share and is measured.
//
// Thread-safety: none; used by the progress engine. No allocation, no clock: the caller passes the
// time.

#ifndef KVXFER_CORE_PLAN_RAIL_PICKER_H_
#define KVXFER_CORE_PLAN_RAIL_PICKER_H_

#include <cstdint>
#include <span>

#include "absl/container/inlined_vector.h"
#include "kvxfer/backend.h"
#include "src/core/base/clock.h"

namespace kvxfer {

inline constexpr uint32_t kNoRail = UINT32_MAX;

class RailPicker {
 public:
  static constexpr uint32_t kMaxRails = 64;  // rails beyond are not used
  static constexpr uint64_t kSample = 256 * 1024;

  explicit RailPicker(std::span<const RailInfo> rails);

  uint32_t size() const { return static_cast<uint32_t>(rails_.size()); }

  // The best rail for `bytes` more, among those whose bit in `usable` is 1; kNoRail if there is
  // none. `distances`: each rail's Endpoint::rail_distance; missing ones count as 0.
  uint32_t Pick(uint64_t bytes, uint64_t usable, std::span<const uint32_t> distances = {}) const;

  void OnPosted(uint32_t rail, uint64_t bytes, Time now);
  // An op has completed. `measured` false: not all of its bytes went over this rail, so the sample
  // restarts.
  void OnCompleted(uint32_t rail, uint64_t bytes, Time now, bool measured);

  uint64_t in_flight(uint32_t rail) const { return rails_[rail].in_flight; }
  // 0: not known.
  double bytes_per_second(uint32_t rail) const { return rails_[rail].speed; }

 private:
  struct Rail {
    double speed = 0;  // bytes per second; 0: neither measured nor nominal
    bool measured = false;
    uint64_t in_flight = 0;
    bool ran_empty = false;  // since the sample began
    uint64_t sampled = 0;    // bytes
    Duration busy{};         // time in which the sampled bytes completed
    Time since{};            // the last completion, or the post that ended an idle period
  };

  absl::InlinedVector<Rail, 2> rails_;
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_PLAN_RAIL_PICKER_H_
