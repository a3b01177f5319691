#include "src/core/base/ready_list.h"

#include <iterator>

namespace kvxfer {

ReadyList::Member::Member(ReadyList* list, User* user)
    : list_(list), user_(user), place_(list->idle_.insert(list->idle_.end(), this)) {}

ReadyList::Member::~Member() { list_->ListOf(state_).erase(place_); }

void ReadyList::Member::Mark() {
  if (state_ == State::kIdle || state_ == State::kAgain) MoveTo(State::kMarked);
}

void ReadyList::Member::Again() {
  if (state_ == State::kIdle || state_ == State::kVisited) MoveTo(State::kAgain);
}

void ReadyList::Member::MoveTo(State state) {
  std::list<Member*>& to = list_->ListOf(state);
  to.splice(to.end(), list_->ListOf(state_), place_);
  state_ = state;
}

std::list<ReadyList::Member*>& ReadyList::ListOf(Member::State state) {
  switch (state) {
    case Member::State::kMarked:
      return marked_;
    case Member::State::kAgain:
      return again_;
    case Member::State::kIdle:
    case Member::State::kVisited:
      break;
  }
  return idle_;
}

void ReadyList::BeginPass() {
  while (!again_.empty()) again_.front()->MoveTo(Member::State::kMarked);
  if (marked_.size() < 2) return;
  const auto first = static_cast<std::ptrdiff_t>(random_() % marked_.size());
  marked_.splice(marked_.end(), marked_, marked_.begin(), std::next(marked_.begin(), first));
}

void ReadyList::Visit(Time now) {
  while (!marked_.empty()) {
    Member& member = *marked_.front();
    member.MoveTo(Member::State::kVisited);
    member.user_->Pump(now);
    if (member.state_ == Member::State::kVisited) member.state_ = Member::State::kIdle;
  }
}

}  // namespace kvxfer
