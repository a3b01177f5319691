#include "src/cuda/closer.h"

#include <unistd.h>

#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace kvxfer::cuda {
namespace {

struct Closer {
  const pid_t process = getpid();
  std::mutex mu;                                   // of what follows
  std::deque<absl::AnyInvocable<void()>> waiting;  // the first is being closed
  bool works = false;                              // there is a thread
};

// Never destroyed: its thread may be at work when static objects go.
Closer& TheCloser() {
  static auto* const closer = new Closer;
  return *closer;
}

void Work(Closer& closer) {
  std::unique_lock lock(closer.mu);
  while (!closer.waiting.empty()) {
    absl::AnyInvocable<void()>& close = closer.waiting.front();
    lock.unlock();
    close();
    lock.lock();
    closer.waiting.pop_front();
  }
  closer.works = false;
}

}  // namespace

void CloseLater(absl::AnyInvocable<void()> close) {
  Closer& closer = TheCloser();
  if (closer.process != getpid()) return;  // its lock may be held for ever here
  const std::lock_guard lock(closer.mu);
  closer.waiting.push_back(std::move(close));
  if (closer.works) return;
  try {
    std::thread([&closer] { Work(closer); }).detach();
    closer.works = true;
  } catch (const std::system_error&) {
    // No more threads now: it is closed with the next one.
  }
}

bool Closing() {
  Closer& closer = TheCloser();
  if (closer.process != getpid()) return false;
  const std::lock_guard lock(closer.mu);
  return !closer.waiting.empty();
}

}  // namespace kvxfer::cuda
