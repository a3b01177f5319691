#include "src/core/protocol/handshake_budget.h"

namespace kvxfer {

bool HandshakeBudget::Take(Time now) {
  return bucket_.Take(now, kBurst, Duration(std::chrono::seconds(1)) / kPerSecond);
}

}  // namespace kvxfer
