// How many handshakes an agent takes up: a signature and a verification take its driver some 150
// µs, and anybody may ask for them. Up to kBurst at once, and kPerSecond over time: a flood costs a
// seventh of one core, and peers that are refused in it try again.
//
// Thread-safety: none; used by the driver. No clock: the caller passes the time.

#ifndef KVXFER_CORE_PROTOCOL_HANDSHAKE_BUDGET_H_
#define KVXFER_CORE_PROTOCOL_HANDSHAKE_BUDGET_H_

#include <cstdint>

#include "src/core/base/clock.h"
#include "src/core/base/leaky_bucket.h"

namespace kvxfer {

class HandshakeBudget {
 public:
  static constexpr int64_t kBurst = 256;
  static constexpr int64_t kPerSecond = 1000;

  // False: none may begin now.
  bool Take(Time now);

 private:
  LeakyBucket bucket_;
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_PROTOCOL_HANDSHAKE_BUDGET_H_
