// Runs application callbacks on one thread of its own, in the order they were handed in, never
// under ownership of the progress engine. The thread starts with the first callback.
//
// Thread-safety: Run from any thread.

#ifndef KVXFER_AGENT_DISPATCHER_H_
#define KVXFER_AGENT_DISPATCHER_H_

#include <condition_variable>
#include <deque>
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
  // Runs what was handed in before, then ends the thread. From a callback: returns at once, and
  // the thread ends after it.
  void Stop();
  // True on any dispatcher thread, while it runs a callback.
  static bool InCallback();

 private:
  void Loop();

  std::mutex mu_;
  std::condition_variable cv_;
  std::deque<Callback> queue_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_DISPATCHER_H_
