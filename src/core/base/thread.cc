#include "src/core/base/thread.h"

#include <pthread.h>

#include <utility>

namespace kvxfer {

SignalsBlocked::SignalsBlocked() {
  sigset_t blocked;
  sigfillset(&blocked);
  for (const int other : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS, SIGPROF}) {
    sigdelset(&blocked, other);
  }
  pthread_sigmask(SIG_BLOCK, &blocked, &before_);
}

SignalsBlocked::~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

std::thread StartThread(const char* name, absl::AnyInvocable<void()> work) {
  const SignalsBlocked inherited;
  return std::thread([name, work = std::move(work)]() mutable {
    pthread_setname_np(pthread_self(), name);
    work();
  });
}

}  // namespace kvxfer
