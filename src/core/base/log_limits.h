// Limits how often each cause may be logged: kBurst lines at once, then one per kEvery. Lines
// beyond that are counted, and the cause's next line reports the count.
//
// The table has a fixed size. Causes beyond kCauses share entries, and so their limits, with
// others.
//
// Thread-safety: none; the caller locks.
#ifndef KVXFER_CORE_BASE_LOG_LIMITS_H_
#define KVXFER_CORE_BASE_LOG_LIMITS_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "src/core/base/clock.h"
#include "src/core/base/leaky_bucket.h"

namespace kvxfer {

class LogLimits {
 public:
  static constexpr size_t kCauses = 256;
  static constexpr int kBurst = 20;
  static constexpr Duration kEvery = std::chrono::milliseconds(500);

  struct Answer {
    bool admitted = false;
    uint64_t suppressed = 0;  // lines of this cause since the last admitted one
  };

  constexpr LogLimits() = default;

  // `cause`: a non-zero number that identifies the place in the code.
  Answer Ask(uint64_t cause, Time now);

 private:
  struct Place {
    uint64_t cause = 0;
    LeakyBucket limit{};
    uint64_t suppressed = 0;
  };

  Place& PlaceOf(uint64_t cause);

  std::array<Place, kCauses> places_{};
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_BASE_LOG_LIMITS_H_
