#include "src/core/base/timer_heap.h"

#include <utility>

namespace kvxfer {

void TimerHeap::Timer::Set(Time due) {
  if (std::exchange(falls_due_, false)) heap_->due_[std::exchange(at_, kNowhere)] = nullptr;
  if (due == due_) return;
  const bool earlier = due < due_;
  due_ = due;
  if (at_ == kNowhere) {
    at_ = heap_->timers_.size();
    heap_->timers_.push_back(this);
  } else if (due == Time::max()) {
    return heap_->Take(*this);
  }
  if (earlier) {
    heap_->Rise(this, at_);
  } else {
    heap_->Sink(this, at_);
  }
}

void TimerHeap::Rise(Timer* timer, size_t at) {
  while (at > 0) {
    const size_t above = (at - 1) / 2;
    if (timers_[above]->due_ <= timer->due_) break;
    Place(timers_[above], at);
    at = above;
  }
  Place(timer, at);
}

void TimerHeap::Sink(Timer* timer, size_t at) {
  for (size_t below = 2 * at + 1; below < timers_.size(); below = 2 * at + 1) {
    const bool second =
        below + 1 < timers_.size() && timers_[below + 1]->due_ < timers_[below]->due_;
    below += second ? 1 : 0;
    if (timer->due_ <= timers_[below]->due_) break;
    Place(timers_[below], at);
    at = below;
  }
  Place(timer, at);
}

void TimerHeap::Take(Timer& timer) {
  const size_t at = std::exchange(timer.at_, Timer::kNowhere);
  Timer* const last = timers_.back();
  timers_.pop_back();
  if (last == &timer) return;
  last->at_ = at;
  Rise(last, at);
  Sink(last, last->at_);
}

void TimerHeap::Run(Time now) {
  while (next() <= now) {
    Timer& timer = *timers_.front();
    Take(timer);
    timer.due_ = Time::max();
    timer.falls_due_ = true;
    timer.at_ = due_.size();
    due_.push_back(&timer);
  }
  for (Timer*& due : due_) {
    Timer* const timer = std::exchange(due, nullptr);
    if (timer == nullptr) continue;
    timer->falls_due_ = false;
    timer->at_ = Timer::kNowhere;
    timer->user_->OnTimer(now);
  }
  due_.clear();
}

}  // namespace kvxfer
