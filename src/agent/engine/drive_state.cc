#include "src/agent/engine/drive_state.h"

#include <algorithm>

namespace kvxfer {

DriveState::Step DriveState::Submit() {
  if (place_ == Place::kNobody) {
    place_ = Place::kSubmitter;
    return {.entered = true};
  }
  if (sleeping_ && !borrowed_) {
    borrowed_ = true;
    return {.entered = true};
  }
  pending_ = true;
  return {};
}

DriveState::Step DriveState::HandWork() {
  if (sleeping_ && !borrowed_) return {.kick = true};
  return Submit();
}

// The driver is awake and stops: a parked waiter becomes the driver, or nobody does.
DriveState::Step DriveState::Vacate() {
  Step step;
  if (!parked_.empty()) {
    place_ = Place::kDriver;
    driver_ = parked_.front();
    parked_.pop_front();
    step.unpark = driver_;
    return step;
  }
  place_ = Place::kNobody;
  driver_ = 0;
  step.wake_background = background_waits_;
  background_waits_ = false;
  return step;
}

DriveState::Step DriveState::LeaveSubmit(bool kick_sleeper) {
  if (pending_) {
    pending_ = false;
    return {.entered = true, .again = true};
  }
  if (!borrowed_) return Vacate();
  borrowed_ = false;
  Step step{.kick = kick_sleeper, .returned = true};
  // A waiter parked while the place was borrowed. It replaces the background thread, which is
  // kicked out of epoll and finds its place lost.
  if (place_ == Place::kBackground && !parked_.empty()) {
    sleeping_ = false;
    background_leaving_ = true;
    step.unpark = Vacate().unpark;
    step.kick = true;
  }
  return step;
}

DriveState::Step DriveState::EnterDriver(DriverId id) {
  // The background thread's place may be taken while it sleeps and no submitter is in it.
  const bool take = place_ == Place::kBackground && sleeping_ && !borrowed_;
  if (place_ != Place::kNobody && !take) {
    parked_.push_back(id);
    return {};
  }
  place_ = Place::kDriver;
  driver_ = id;
  sleeping_ = false;
  background_leaving_ |= take;
  return {.entered = true, .kick = take};
}

DriveState::Step DriveState::LeaveDriver() {
  if (pending_) {
    pending_ = false;
    return {.entered = true, .again = true};
  }
  return Vacate();
}

DriveState::Step DriveState::Unpark(DriverId id) {
  if (place_ == Place::kDriver && driver_ == id) return {.entered = true};
  std::erase(parked_, id);
  return {};
}

bool DriveState::BeginSleep() {
  if (pending_) {
    pending_ = false;
    return false;
  }
  sleeping_ = true;
  return true;
}

DriveState::Wakened DriveState::EndSleep(bool background) {
  if (background && place_ != Place::kBackground) {
    background_leaving_ = false;
    return Wakened::kLost;
  }
  if (borrowed_) return Wakened::kBorrowed;
  sleeping_ = false;
  return Wakened::kOwner;
}

DriveState::Step DriveState::BackgroundTake() {
  if (place_ != Place::kNobody) return {};
  place_ = Place::kBackground;
  return {.entered = true};
}

bool DriveState::BackgroundStandBy() {
  if (place_ == Place::kNobody) return false;
  background_waits_ = true;
  return true;
}

DriveState::Step DriveState::HandOver() { return parked_.empty() ? Step{} : Vacate(); }

DriveState::Step DriveState::LeaveBackground() {
  if (pending_) {
    pending_ = false;
    return {.entered = true, .again = true};
  }
  return Vacate();
}

}  // namespace kvxfer
