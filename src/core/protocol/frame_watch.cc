#include "src/core/protocol/frame_watch.h"

#include <utility>

namespace kvxfer {
namespace {

Time OnGrid(Time time) { return time - time.time_since_epoch() % FrameWatch::kLook; }

}  // namespace

FrameWatch::Step FrameWatch::Look(uint64_t oldest, Carrier carrier, Time now) {
  next_ = OnGrid(now + 2 * kLook - Duration(1));
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

}  // namespace kvxfer
