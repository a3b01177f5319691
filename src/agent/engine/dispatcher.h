// Runs the application's callbacks on one thread, in the order in which they were handed in, never
// on the driver. The thread starts with the first callback.
//
// Thread-safety: Run from any thread; Stop from one.

#ifndef KVXFER_AGENT_ENGINE_DISPATCHER_H_
#define KVXFER_AGENT_ENGINE_DISPATCHER_H_

#include <pthread.h>

#include <condition_variable>
#include <csignal>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "absl/functional/any_invocable.h"

namespace kvxfer {

class Dispatcher {
 public:
  using Callback = absl::AnyInvocable<void()>;

  ~Dispatcher() { Stop(); }

  // After Stop, `callback` is dropped without running.
  void Run(Callback callback);
  // Runs the callbacks that were handed in before, and those that they hand in, and then ends the
  // thread. When called from a callback, Stop runs the rest inside itself; the thread ends once
  // that callback has returned, and does not touch this object again.
  void Stop();
  // True on any dispatcher thread, while it runs a callback.
  static bool InCallback();

 private:
  struct State {
    State() { pthread_sigmask(SIG_SETMASK, nullptr, &signals); }

    // Blocked where the agent was made. Callbacks have the same blocked, and not what the thread
    // has that happens to start theirs: what they start inherits it.
    sigset_t signals{};
    std::mutex mu;
    std::condition_variable cv;
    std::deque<Callback> queue;
    bool stopping = false;
    bool ended = false;  // no callback runs from now on
  };
  static void Loop(const std::shared_ptr<State>& state);
  static void RunQueued(State& state, std::unique_lock<std::mutex>& lock);

  // Shared with the thread, because a callback may destroy the dispatcher and the thread is still
  // inside that callback then.
  const std::shared_ptr<State> state_ = std::make_shared<State>();
  std::thread thread_;  // under state_->mu
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_ENGINE_DISPATCHER_H_
