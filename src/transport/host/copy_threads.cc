#include "src/transport/host/copy_threads.h"

#include <algorithm>
#include <chrono>
#include <system_error>

#include "src/core/base/clock.h"
#include "src/core/base/log.h"
#include "src/core/base/thread.h"

namespace kvxfer {
namespace {

// Longer than a caller's pause between two batches of one transfer.
constexpr Duration kSpin = std::chrono::microseconds(50);

// Waits until it sees that `state` is not `old`, and returns that value: spins for kSpin, then
// sleeps.
template <typename T>
T Await(const std::atomic<T>& state, T old) {
  const Time end = Now() + kSpin;
  do {
    if (const T now = state.load(std::memory_order_acquire); now != old) return now;
    std::this_thread::yield();
  } while (Now() < end);
  for (;;) {
    state.wait(old, std::memory_order_acquire);
    // It may have become `old` again meanwhile.
    if (const T now = state.load(std::memory_order_acquire); now != old) return now;
  }
}

}  // namespace

CopyThreads::~CopyThreads() {
  for (Helper& helper : helpers_) {
    helper.state.store(State::kClosing);
    helper.state.notify_one();
    helper.thread.join();
  }
}

// Starts the threads. If the system has none left, the caller does the remaining parts itself.
void CopyThreads::Start() {
  started_ = true;
  try {
    for (uint32_t index = 1; index < threads_; ++index) {
      Helper& helper = helpers_.emplace_back();
      helper.thread = StartThread("kvxfer-copy", [this, &helper, index] { Loop(helper, index); });
    }
  } catch (const std::system_error& error) {
    helpers_.pop_back();
    Log(LogLevel::kWarning,
        "copies have {} threads instead of {}: {}; raise the limit of threads (ulimit -u)",
        helpers_.size() + 1, threads_, error.what());
  }
}

bool CopyThreads::Run(uint32_t parts, absl::FunctionRef<void(uint32_t)> part) {
  if (parts > 1 && !started_) Start();
  const auto helped = std::min<uint32_t>(parts - 1, static_cast<uint32_t>(helpers_.size()));
  // `part_` is published by the store of kOffered; a thread reads it after it has acquired that.
  part_ = &part;
  for (uint32_t i = 0; i < helped; ++i) {
    helpers_[i].state.store(State::kOffered);
    helpers_[i].state.notify_one();
  }
  const Time begun = Now();
  part(0);
  for (uint32_t i = helped + 1; i < parts; ++i) part(i);
  if (helped == 0) return true;
  const Time own_ended = Now();
  bool in_time = true;
  for (uint32_t i = 0; i < helped; ++i) {
    State state = State::kOffered;
    if (helpers_[i].state.compare_exchange_strong(state, State::kIdle, std::memory_order_acquire)) {
      in_time = false;
      part(i + 1);
    } else if (state == State::kWorks) {
      // The acquire load makes everything that the part did visible to the caller.
      Await(helpers_[i].state, State::kWorks);
    }
  }
  return in_time && Now() - own_ended < std::max<Duration>(own_ended - begun, kSpin);
}

void CopyThreads::Loop(Helper& helper, uint32_t index) {
  while (Await(helper.state, State::kIdle) != State::kClosing) {
    // From kOffered alone: the part may have been taken back since Await saw it.
    State offered = State::kOffered;
    if (!helper.state.compare_exchange_strong(offered, State::kWorks, std::memory_order_acquire)) {
      continue;
    }
    (*part_)(index);
    helper.state.store(State::kIdle);
    helper.state.notify_one();
  }
}

}  // namespace kvxfer
