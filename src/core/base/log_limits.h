// How often each cause may be logged: kBurst lines at once, from then on one every kEvery. What is
// more is counted, and the next line of the cause says how many there were.
//
// A fixed table: causes beyond kCauses share places, and so their limits, with others.
//
// Thread-safety: none.
#ifndef KVXFER_CORE_BASE_LOG_LIMITS_H_
#define KVXFER_CORE_BASE_LOG_LIMITS_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "src/core/base/clock.h"

namespace kvxfer {

class LogLimits {
 public:
  static constexpr size_t kCauses = 256;
  static constexpr int kBurst = 20;
  static constexpr Duration kEvery = std::chrono::milliseconds(500);

  struct Answer {
    bool admitted = false;
    uint64_t suppressed = 0;  // lines of this cause since the last that was admitted
  };

  constexpr LogLimits() = default;

  // `cause`: any number but 0 that tells it from others.
  Answer Ask(uint64_t cause, Time now);

 private:
  struct Place {
    uint64_t cause = 0;
    Time next{};  // ahead of the clock by kEvery for each line that was admitted of late
    uint64_t suppressed = 0;
  };

  Place& PlaceOf(uint64_t cause);

  std::array<Place, kCauses> places_{};
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_BASE_LOG_LIMITS_H_
