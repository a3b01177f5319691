#include "src/core/base/ready_list.h"

#include <algorithm>
#include <utility>

namespace kvxfer {

void ReadyList::Member::LeavePlace() {
  if (state_ == State::kMarked) list_->marked_[place_] = nullptr;
  if (state_ == State::kAgain) list_->again_[place_] = nullptr;
  state_ = State::kIdle;
}

void ReadyList::MarkAgain() {
  for (Member* const member : again_) {
    if (member == nullptr) continue;
    member->state_ = Member::State::kIdle;
    member->Mark();
  }
  again_.clear();
}

void ReadyList::Rotate() {
  const auto first = static_cast<std::ptrdiff_t>(random_() % marked_.size());
  std::rotate(marked_.begin(), marked_.begin() + first, marked_.end());
  for (size_t place = 0; place < marked_.size(); ++place) {
    if (marked_[place] != nullptr) marked_[place]->place_ = place;
  }
}

void ReadyList::Visit(Time now) {
  // It may grow meanwhile.
  size_t place = 0;
  while (place < marked_.size()) {
    Member* const member = std::exchange(marked_[place++], nullptr);
    if (member == nullptr) continue;
    member->state_ = Member::State::kVisited;
    member->user_->Pump(now);
    if (member->state_ == Member::State::kVisited) member->state_ = Member::State::kIdle;
  }
  marked_.clear();
}

}  // namespace kvxfer
