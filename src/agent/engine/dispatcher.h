// Runs application callbacks on one thread of its own, in the order they were handed in, never
// under ownership of the progress engine. The thread starts with the first callback.
//
// Thread-safety: Run from any thread; Stop from one.

#ifndef KVXFER_AGENT_ENGINE_DISPATCHER_H_
#define KVXFER_AGENT_ENGINE_DISPATCHER_H_

#include <condition_variable>
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

  // Dropped, without running, after Stop.
  void Run(Callback callback);
  // Runs what was handed in before (and what those callbacks hand in), then ends the thread. From
  // a callback: runs the rest inside it, and the thread ends after it, without this object.
  void Stop();
  // True on any dispatcher thread, while it runs a callback.
  static bool InCallback();

 private:
  struct State {
    std::mutex mu;
    std::condition_variable cv;
    std::deque<Callback> queue;
    bool stopping = false;
    bool ended = false;  // nothing runs any more
  };
  static void Loop(const std::shared_ptr<State>& state);
  static void RunQueued(State& state, std::unique_lock<std::mutex>& lock);

  // Shared with the thread: it is still in its callback when that has destroyed the dispatcher.
  const std::shared_ptr<State> state_ = std::make_shared<State>();
  std::thread thread_;  // under state_->mu
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_ENGINE_DISPATCHER_H_
