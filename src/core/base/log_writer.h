// The thread that writes log lines, and the bounded queue in front of it.
//
// If the queue is full, a new line replaces the oldest one, which is dropped and counted. The next
// line that is written reports the count. So a thread that logs never waits for the reader of
// stderr or for the application's sink.
//
// Thread-safety: any thread. Lifetime: never destroyed, because its thread may be blocked in a
// write to a full pipe until the process ends.
#ifndef KVXFER_CORE_BASE_LOG_WRITER_H_
#define KVXFER_CORE_BASE_LOG_WRITER_H_

#include <spdlog/async_logger.h>
#include <spdlog/details/thread_pool.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>

#include "kvxfer/log.h"
#include "src/core/base/clock.h"

namespace kvxfer {

class LogWriter {
 public:
  static constexpr size_t kQueuedLines = 512;

  // Returns the application's present sink, or null for stderr. Called on the writing thread.
  using CurrentSink = std::function<std::shared_ptr<const LogSink>()>;

  // Starts the thread with all signals blocked; signals are for the application's threads. Null if
  // the system has no thread left.
  static LogWriter* Start(CurrentSink sink);

  // In a forked child: the parent's writer, whose thread does not exist here. Never used; the
  // pointer only keeps it reachable, so that leak checkers do not report it.
  LogWriter* inherited = nullptr;

  void Post(LogLevel level, std::string_view line);
  // Waits until every line posted before this call is written or dropped. False: not by `until`.
  bool Flush(Time until);
  // Waits until the sinks that CurrentSink returned before this call are no longer being called.
  void WaitForSink();
  bool OnThread() const { return std::this_thread::get_id() == thread_.load(); }

 private:
  class LineSink;

  explicit LogWriter(CurrentSink sink);
  ~LogWriter() = default;

  void Deliver(LogLevel level, std::string_view line, std::string_view with_time);
  uint64_t Dropped() { return pool_->overrun_counter(); }

  const CurrentSink sink_;
  std::shared_ptr<spdlog::details::thread_pool> pool_;
  std::shared_ptr<spdlog::async_logger> logger_;
  std::atomic<std::thread::id> thread_{};

  std::atomic<uint64_t> posted_{0};
  std::mutex in_sink_;  // held by the thread while it calls an application's sink
  std::mutex mu_;
  std::condition_variable written_changed_;
  uint64_t written_ = 0;  // under mu_; lines that were taken from the front of the queue
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_BASE_LOG_WRITER_H_
