#ifndef KVXFER_CORE_BASE_LEAKY_BUCKET_H_
#define KVXFER_CORE_BASE_LEAKY_BUCKET_H_

#include <algorithm>
#include <cstdint>

#include "src/core/base/clock.h"

namespace kvxfer {

// A limit of how often something happens: `burst` times at once, then once per `every`. (A leaky
// bucket, GCRA: what happens moves the time at which the bucket is empty by `every`.)
class LeakyBucket {
 public:
  constexpr LeakyBucket() = default;

  // False: not now, and that costs nothing. The same limit is given each time.
  bool Take(Time now, int64_t burst, Duration every) {
    const Time empty_at = std::max(empty_at_, now);
    if (empty_at - now > (burst - 1) * every) return false;
    empty_at_ = empty_at + every;
    return true;
  }

 private:
  Time empty_at_{};
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_BASE_LEAKY_BUCKET_H_
