#include "src/agent/engine/ack_hold.h"

namespace kvxfer {

bool AckHold::Holds(bool leaving, Time now) {
  const bool wanted = leaving && MayBegin();
  // Counted from the first acknowledgement that was held back.
  if (!wanted || (since_ != Time{} && now - since_ > kAnswersWithin)) {
    OnSent(now);
    return false;
  }
  if (since_ == Time{}) since_ = now;
  return true;
}

bool AckHold::MayBegin() {
  if (eager_ == 0) return true;
  --eager_;
  return false;
}

void AckHold::OnSent(Time now) {
  if (since_ == Time{}) return;
  late_ = now - since_ > kAnswersWithin ? late_ + 1 : 0;
  if (late_ == kLateAcks) eager_ = kEagerAcks;
  late_ %= kLateAcks;
  since_ = Time{};
}

}  // namespace kvxfer
