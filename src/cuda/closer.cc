#include "src/cuda/closer.h"

#include <unistd.h>

#include <deque>
#include <mutex>
#include <system_error>
#include <utility>

#include "src/core/base/thread.h"

namespace kvxfer::cuda {
namespace {

struct Closer {
  const pid_t process = getpid();
  std::mutex mu;                                   // guards all below
  std::deque<absl::AnyInvocable<void()>> waiting;  // the first one is being closed
  bool works = false;                              // the thread exists
};

// Never destroyed: its thread may still work when static objects are destroyed.
Closer& TheCloser() {
  static auto* const closer = new Closer;
  return *closer;
}

void Work(Closer& closer) {
  std::unique_lock lock(closer.mu);
  while (!closer.waiting.empty()) {
    absl::AnyInvocable<void()>& close = closer.waiting.front();
    lock.unlock();
    // Unlocked: this may take long, and CloseLater must not block. The front stays valid, as a
    // deque's elements do while others are appended.
    close();
    lock.lock();
    closer.waiting.pop_front();
  }
  closer.works = false;
}

}  // namespace

void CloseLater(absl::AnyInvocable<void()> close) {
  Closer& closer = TheCloser();
  if (closer.process != getpid()) return;  // a forked child: the lock may be held for ever here
  const std::lock_guard lock(closer.mu);
  closer.waiting.push_back(std::move(close));
  if (closer.works) return;
  try {
    StartThread("kvxfer-close", [&closer] { Work(closer); }).detach();
    closer.works = true;
  } catch (const std::system_error&) {
    // No thread can be created now. The next call of CloseLater tries again.
  }
}

bool Closing() {
  Closer& closer = TheCloser();
  if (closer.process != getpid()) return false;
  const std::lock_guard lock(closer.mu);
  return !closer.waiting.empty();
}

}  // namespace kvxfer::cuda
