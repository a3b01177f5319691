#include "src/agent/engine/answer_hold.h"

namespace kvxfer {

bool AnswerHold::Holds(bool leaving, Time now) {
  const bool wanted = leaving && MayBegin();
  // Counted from the first one that was held back.
  if (!wanted || (since_ != Time{} && now - since_ > kAnswersWithin)) {
    OnSent(now);
    return false;
  }
  if (since_ == Time{}) since_ = now;
  return true;
}

bool AnswerHold::MayBegin() {
  if (eager_ == 0) return true;
  --eager_;
  return false;
}

void AnswerHold::OnSent(Time now) {
  if (since_ == Time{}) return;
  late_ = now - since_ > kAnswersWithin ? late_ + 1 : 0;
  if (late_ == kLate) eager_ = kEager;
  late_ %= kLate;
  since_ = Time{};
}

}  // namespace kvxfer
