#include "src/transport/host/copy_threads.h"

#include <algorithm>
#include <chrono>
#include <system_error>

#include "src/core/base/clock.h"
#include "src/core/base/log.h"

namespace kvxfer {
namespace {

// Longer than a caller's pause between two batches of one transfer.
constexpr Duration kSpin = std::chrono::microseconds(50);

// Waits until `state` is no longer `old`, and returns the new value: spins for kSpin, then sleeps.
template <typename T>
T Await(const std::atomic<T>& state, T old) {
  const Time end = Now() + kSpin;
  do {
    if (const T now = state.load(std::memory_order_acquire); now != old) return now;
    std::this_thread::yield();
  } while (Now() < end);
  state.wait(old, std::memory_order_acquire);
  return state.load(std::memory_order_acquire);
}

}  // namespace

CopyThreads::~CopyThreads() {
  for (Helper& helper : helpers_) {
    helper.state.store(State::kClosing, std::memory_order_release);
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
      helper.thread = std::thread([this, &helper, index] { Loop(helper, index); });
    }
  } catch (const std::system_error& error) {
    helpers_.pop_back();
    Log(LogLevel::kWarning,
        "copies have {} threads instead of {}: {}; raise the limit of threads (ulimit -u)",
        helpers_.size() + 1, threads_, error.what());
  }
}

void CopyThreads::Run(uint32_t parts, absl::FunctionRef<void(uint32_t)> part) {
  if (parts > 1 && !started_) Start();
  const auto helped = std::min<uint32_t>(parts - 1, static_cast<uint32_t>(helpers_.size()));
  // `part_` is published by the release store of kWorks; a thread reads it after its acquire load.
  part_ = &part;
  for (uint32_t i = 0; i < helped; ++i) {
    helpers_[i].state.store(State::kWorks, std::memory_order_release);
    helpers_[i].state.notify_one();
  }
  part(0);
  for (uint32_t i = helped + 1; i < parts; ++i) part(i);
  // The acquire load in Await makes everything that the parts did visible to the caller.
  for (uint32_t i = 0; i < helped; ++i) Await(helpers_[i].state, State::kWorks);
}

void CopyThreads::Loop(Helper& helper, uint32_t index) {
  while (Await(helper.state, State::kIdle) != State::kClosing) {
    (*part_)(index);
    helper.state.store(State::kIdle, std::memory_order_release);
    helper.state.notify_one();
  }
}

}  // namespace kvxfer
