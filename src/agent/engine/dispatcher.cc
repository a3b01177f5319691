#include "src/agent/engine/dispatcher.h"

#include <system_error>
#include <utility>

#include "src/core/base/log.h"

namespace kvxfer {
namespace {
thread_local bool in_callback = false;
}

bool Dispatcher::InCallback() { return in_callback; }

void Dispatcher::Run(Callback callback) {
  std::lock_guard lock(state_->mu);
  if (state_->ended) return;
  // Not once Stop has begun: it has taken the thread to join it.
  if (!thread_.joinable() && !state_->stopping) {
    try {
      thread_ = std::thread([state = state_] { Loop(state); });
    } catch (const std::system_error& error) {
      Log(LogLevel::kError,
          "no thread for callbacks, which wait until one can be had: {}; raise the limit "
          "of threads (ulimit -u)",
          error.what());
    }
  }
  state_->queue.push_back(std::move(callback));
  state_->cv.notify_one();
}

void Dispatcher::Stop() {
  std::unique_lock lock(state_->mu);
  state_->stopping = true;
  std::thread thread = std::move(thread_);
  if (!thread.joinable()) {
    state_->ended = true;
    return;
  }
  // Stop runs inside a callback, so a join would wait for itself. The thread shares `state_` and
  // ends alone, after that callback.
  if (thread.get_id() == std::this_thread::get_id()) {
    RunQueued(*state_, lock);
    state_->ended = true;
    thread.detach();
    return;
  }
  state_->cv.notify_one();
  lock.unlock();
  thread.join();
}

void Dispatcher::Loop(const std::shared_ptr<State>& state) {
  pthread_setname_np(pthread_self(), "kvxfer-callback");
  pthread_sigmask(SIG_SETMASK, &state->signals, nullptr);
  std::unique_lock lock(state->mu);
  while (!state->ended) {
    RunQueued(*state, lock);
    if (state->stopping) {
      state->ended = true;
    } else {
      state->cv.wait(lock, [&] { return state->stopping || !state->queue.empty(); });
    }
  }
}

void Dispatcher::RunQueued(State& state, std::unique_lock<std::mutex>& lock) {
  while (!state.queue.empty()) {
    Callback callback = std::move(state.queue.front());
    state.queue.pop_front();
    lock.unlock();
    const bool outer = std::exchange(in_callback, true);
    callback();
    // Destroys what the callback captured before in_callback is reset and before the lock is taken
    // again: a destructor may end the last use of the agent, and then calls Stop.
    callback = nullptr;
    in_callback = outer;
    lock.lock();
  }
}

}  // namespace kvxfer
