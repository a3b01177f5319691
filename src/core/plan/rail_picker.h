// Which rail of a connection a slice takes: the one that would be through with it first,
//   (bytes in flight + bytes of the slice) / speed × (1 + distance),
// where speed is measured. A rail at a quarter of the speed gets about a quarter of the bytes; one
// that stalls keeps what it has in flight and gets no more.
//
// Speed: bytes that completed over the time in which the rail had something to do, kSample bytes at
// a time, each counting a quarter. Small ops spend their time on other things than bytes, so a rail
// that ran empty meanwhile may have been faster than it looks: such a sample only raises the
// estimate. Before its first sample a rail has its nominal speed, or, where that is not known, the
// highest speed that any rail of the connection has: so it gets its share, and is measured.
//
// Thread-safety: none; owned by the progress engine. No allocation, no clock: the caller says what
// time it is.

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
  static constexpr uint32_t kMaxRails = 64;  // those beyond are not used
  static constexpr uint64_t kSample = 256 * 1024;

  // All of them down.
  explicit RailPicker(std::span<const RailInfo> rails);

  uint32_t size() const { return static_cast<uint32_t>(rails_.size()); }
  void SetUp(uint32_t rail, bool up) { rails_[rail].up = up; }
  bool up(uint32_t rail) const { return rails_[rail].up; }

  // The best for `bytes` more, of those that are up and whose bit in `tried` is 0. `distances`: of
  // each rail, as Endpoint::rail_distance; those that are left out are 0.
  uint32_t Pick(uint64_t bytes, uint64_t tried = 0, std::span<const uint32_t> distances = {}) const;

  void OnPosted(uint32_t rail, uint64_t bytes, Time now);
  // The op is over; `measured`: its bytes went all the way.
  void OnCompleted(uint32_t rail, uint64_t bytes, Time now, bool measured);

  uint64_t in_flight(uint32_t rail) const { return rails_[rail].in_flight; }
  // 0: not known.
  double bytes_per_second(uint32_t rail) const { return rails_[rail].speed; }

 private:
  struct Rail {
    double speed = 0;  // bytes a second; 0: neither measured nor nominal
    bool measured = false;
    uint64_t in_flight = 0;
    bool up = false;
    bool ran_empty = false;  // since the sample began
    uint64_t sampled = 0;    // bytes
    Duration busy{};         // time in which they completed
    Time since{};            // the last completion, or the post that ended an idle time
  };

  absl::InlinedVector<Rail, 2> rails_;
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_PLAN_RAIL_PICKER_H_
