// The thread that writes log lines, and the bounded queue in front of it.
//
// A line that does not fit takes the place of the oldest one, which is dropped and counted; the
// next line that is written says how many were dropped. So nobody who logs ever waits for the
// reader of stderr, nor for the application's sink.
//
// Thread-safety: any thread. Lifetime: never destroyed, since its thread may be in a write to a
// full pipe for as long as the process lives.
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

  // The application's sink at this moment, or null: stderr. Called on the writing thread.
  using CurrentSink = std::function<std::shared_ptr<const LogSink>()>;

  // Starts the thread, with every signal blocked: signals are for the application's threads.
  // Null where the system has no thread left.
  static LogWriter* Start(CurrentSink sink);

  // In a forked process: the writer of the parent, whose thread is not there.
  LogWriter* inherited = nullptr;

  void Post(LogLevel level, std::string_view line);
  // Until every line posted before this call is written or dropped; false: not at `until`.
  bool Flush(Time until);
  // Returns once no call of a sink is under way that CurrentSink gave before this call.
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
  uint64_t written_ = 0;  // under mu_; lines that left the queue at its front
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_BASE_LOG_WRITER_H_
