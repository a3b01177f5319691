#include "src/core/protocol/send_end.h"

namespace kvxfer {
namespace {

// Of the time that a transfer had, what its end may take beyond its deadline; and at most so much.
constexpr int kLateShare = 20;
constexpr Duration kLateMost = std::chrono::milliseconds(50);

}  // namespace

Time EndBy(EndCause cause, Time posted, Time deadline, Duration grace, Time now) {
  switch (cause) {
    case EndCause::kStopped:
      return std::min(deadline, now + grace);
    case EndCause::kLate:
      return now + std::min<Duration>((deadline - posted) / kLateShare, kLateMost);
    case EndCause::kLost:
      break;
  }
  return now;
}

}  // namespace kvxfer
