// A few threads that share one piece of work with the calling thread, which waits for them. The
// work is a sequence of copies of some hundred microseconds each. Between two copies the threads
// spin for a moment, so that a large transfer wakes them once; then they sleep. A thread that has
// not begun its part when the caller is done with its own, because other processes have the CPUs,
// is not waited for: the caller does that part too.
//
// Thread-safety: one caller at a time. Everything that the parts did is visible when Run returns.

#ifndef KVXFER_TRANSPORT_HOST_COPY_THREADS_H_
#define KVXFER_TRANSPORT_HOST_COPY_THREADS_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <thread>

#include "absl/functional/function_ref.h"

namespace kvxfer {

class CopyThreads {
 public:
  // The thread that calls Run counts as one of `threads`. The first Run starts the others.
  explicit CopyThreads(uint32_t threads) : threads_(threads) {}
  ~CopyThreads();
  CopyThreads(const CopyThreads&) = delete;
  CopyThreads& operator=(const CopyThreads&) = delete;

  uint32_t threads() const { return threads_; }

  // Calls part(0) on this thread and part(1) to part(parts - 1) on the others, or on this one where
  // they come too late, and returns when all have ended. 1 <= parts <= threads(). False: the others
  // were late, or took twice as long as this thread, which would have been about as fast alone.
  bool Run(uint32_t parts, absl::FunctionRef<void(uint32_t)> part);

 private:
  // kIdle -> kOffered -> kWorks -> kIdle; the caller takes back what is still kOffered.
  enum class State : uint32_t { kIdle, kOffered, kWorks, kClosing };
  struct Helper {
    std::atomic<State> state{State::kIdle};
    std::thread thread;
  };

  void Start();
  void Loop(Helper& helper, uint32_t index);

  const uint32_t threads_;
  bool started_ = false;
  std::deque<Helper> helpers_;  // helper i - 1 runs part i
  // Written before a helper's state becomes kOffered, and read after that.
  const absl::FunctionRef<void(uint32_t)>* part_ = nullptr;
};

}  // namespace kvxfer

#endif  // KVXFER_TRANSPORT_HOST_COPY_THREADS_H_
