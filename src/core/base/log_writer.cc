#include "src/core/base/log_writer.h"

#include <poll.h>
#include <pthread.h>
#include <spdlog/details/null_mutex.h>
#include <spdlog/sinks/base_sink.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/core/base/thread.h"

namespace kvxfer {
namespace {

constexpr const char* kPattern = "%Y-%m-%dT%H:%M:%S.%e kvxfer %l: %v";

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      break;
  }
  return spdlog::level::off;
}

LogLevel FromSpdlog(spdlog::level::level_enum level) {
  if (level <= spdlog::level::debug) return LogLevel::kDebug;
  if (level == spdlog::level::info) return LogLevel::kInfo;
  return level == spdlog::level::warn ? LogLevel::kWarning : LogLevel::kError;
}

// Writes to the descriptor and not to the stream `stderr`: the application may need that stream's
// lock while the pipe is full. A non-blocking stderr is polled until it is writable. Any other
// error, e.g. EPIPE, ends the attempt: there is no reader left to inform.
void WriteToStderr(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = write(STDERR_FILENO, text.data(), text.size());
    if (n > 0) {
      text.remove_prefix(static_cast<size_t>(n));
    } else if (n < 0 && errno == EAGAIN) {
      pollfd writable{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
      poll(&writable, 1, -1);
    } else if (n == 0 || errno != EINTR) {
      return;
    }
  }
}

}  // namespace

// Receives the lines on spdlog's thread, one after the other.
class LogWriter::LineSink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 public:
  explicit LineSink(LogWriter* writer) : writer_(writer) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    // Reported before the line at hand, because the dropped lines were older than it.
    if (const uint64_t dropped = writer_->Dropped(); dropped != told_) {
      const std::string line =
          absl::StrCat(dropped - std::exchange(told_, dropped),
                       " log lines were dropped: they came faster than they were taken");
      spdlog::details::log_msg lost(message.time, {}, message.logger_name, spdlog::level::warn,
                                    line);
      HandOver(lost);
    }
    HandOver(message);
    const std::lock_guard lock(writer_->mu_);
    ++writer_->written_;
    writer_->written_changed_.notify_all();
  }
  void flush_() override {}

 private:
  void HandOver(const spdlog::details::log_msg& message) {
    spdlog::memory_buf_t formatted;
    formatter_->format(message, formatted);
    writer_->Deliver(FromSpdlog(message.level), {message.payload.data(), message.payload.size()},
                     {formatted.data(), formatted.size()});
  }

  LogWriter* const writer_;
  uint64_t told_ = 0;  // dropped lines that were already reported
};

LogWriter::LogWriter(CurrentSink sink) : sink_(std::move(sink)) {
  pool_ = std::make_shared<spdlog::details::thread_pool>(kQueuedLines, 1, [this] {
    pthread_setname_np(pthread_self(), "kvxfer-log");
    thread_ = std::this_thread::get_id();
  });
  logger_ =
      std::make_shared<spdlog::async_logger>("kvxfer", std::make_shared<LineSink>(this), pool_,
                                             spdlog::async_overflow_policy::overrun_oldest);
  logger_->set_level(spdlog::level::trace);
  logger_->set_pattern(kPattern);
  // spdlog's default handler would print to stderr on the thread that logs.
  logger_->set_error_handler([](const std::string&) {});
}

LogWriter* LogWriter::Start(CurrentSink sink) {
  const SignalsBlocked inherited;  // by the new thread
  try {
    return new LogWriter(std::move(sink));
  } catch (const std::system_error&) {
    // The system has no thread left. The next line tries again.
    return nullptr;
  }
}

void LogWriter::Post(LogLevel level, std::string_view line) {
  // Count the line before queueing it. Otherwise a Flush that this thread calls next could count
  // another thread's line in its place and return too early.
  posted_.fetch_add(1);
  logger_->log(ToSpdlog(level), spdlog::string_view_t(line.data(), line.size()));
}

bool LogWriter::Flush(Time until) {
  const uint64_t posted = posted_.load();
  std::unique_lock lock(mu_);
  return written_changed_.wait_until(lock, until, [&] { return written_ + Dropped() >= posted; });
}

void LogWriter::WaitForSink() { const std::lock_guard lock(in_sink_); }

void LogWriter::Deliver(LogLevel level, std::string_view line, std::string_view with_time) {
  {
    const std::lock_guard lock(in_sink_);
    if (const std::shared_ptr<const LogSink> sink = sink_()) {
      try {
        (*sink)(level, line);
      } catch (...) {
        // The exception is the application's. This thread has no caller to pass it to.
      }
      return;
    }
  }
  WriteToStderr(with_time);
}

}  // namespace kvxfer
