#include "src/core/protocol/handshake_budget.h"

#include <algorithm>

namespace kvxfer {

bool HandshakeBudget::Take(Time now) {
  constexpr Duration kEach = Duration(std::chrono::seconds(1)) / kPerSecond;
  const Time full_at = std::max(full_at_, now) + kEach;
  if (full_at > now + kBurst * kEach) return false;
  full_at_ = full_at;
  return true;
}

}  // namespace kvxfer
