// Threads of the library's own.

#ifndef KVXFER_CORE_BASE_THREAD_H_
#define KVXFER_CORE_BASE_THREAD_H_

#include <csignal>
#include <thread>

#include "absl/functional/any_invocable.h"

namespace kvxfer {

// While one lives, the calling thread, and threads that it starts, take none of the
// application's signals: the application decides which of its own threads handle SIGTERM and the
// like. Signals that report a fault of the thread itself, and SIGPROF, by which profilers count its
// time, still reach their handler.
class SignalsBlocked {
 public:
  SignalsBlocked();
  ~SignalsBlocked();
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

// Starts a thread in which signals are blocked. `name`, at most 15 characters, is what top and gdb
// show; it outlives the thread. Throws std::system_error where std::thread does.
std::thread StartThread(const char* name, absl::AnyInvocable<void()> work);

}  // namespace kvxfer

#endif  // KVXFER_CORE_BASE_THREAD_H_
