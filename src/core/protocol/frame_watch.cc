#include "src/core/protocol/frame_watch.h"

#include <utility>

namespace kvxfer {

FrameWatch::Step FrameWatch::Look(uint64_t oldest, Carrier carrier, Time now) {
  looked_ = now;
  if (std::exchange(waiting_, oldest) != oldest) {
    pinged_ = Time{};
    return Step::kNone;
  }
  if (pinged_ == Time{}) {
    pinged_ = now;
    return Step::kPing;
  }
  if (!carrier.owes) return Step::kSendAgain;
  const bool late = now - pinged_ >= kAnswersWithin;
  return late && !carrier.avoided ? Step::kAvoid : Step::kNone;
}

Time FrameWatch::NextLook(Carrier carrier) const {
  if (carrier.owes && carrier.avoided) return Time::max();
  const Time next = looked_ + 2 * kLook - Duration(1);
  return next - next.time_since_epoch() % kLook;
}

}  // namespace kvxfer
