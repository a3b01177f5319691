#include "src/core/log.h"

#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kvxfer/plugin.h"
#include "src/core/clock.h"
#include "src/core/log_writer.h"
#include "src/core/strings.h"
#include "src/core/text.h"

namespace kvxfer {
namespace {

constexpr size_t kMaxLineBytes = 2048;
constexpr size_t kSuppressedBytes = 64;  // of what Finish puts behind a line
constexpr Duration kFlushWithin = std::chrono::milliseconds(200);

constinit std::atomic<LogLevel> g_level{LogLevel::kWarning};
// Of the program, where this copy of kvxfer is a plugin's.
constinit std::atomic<const PluginHost*> g_host{nullptr};

// `mu` is held for moments only, never while a line is written: fork() takes it too.
struct Output {
  std::mutex mu;
  LogLimits limits;
  std::shared_ptr<const LogSink> sink;
  LogWriter* writer = nullptr;  // from the first line on
  LogWriter* of_parent = nullptr;
  bool exit_is_watched = false;
};

// There from the start and never destroyed: lines may come from static constructors and
// destructors, and from forked children.
union Forever {
  constexpr Forever() : output() {}
  ~Forever() {}  // NOLINT(modernize-use-equals-default): a default one would be deleted
  Output output;
};
constinit Forever g_forever;

// With the fork handlers in place. The child has no thread that writes: it starts its own.
Output& TheOutput() {
  [[maybe_unused]] static const int registered =
      pthread_atfork([] { g_forever.output.mu.lock(); }, [] { g_forever.output.mu.unlock(); },
                     [] {
                       Output& output = g_forever.output;
                       if (output.writer != nullptr)
                         output.of_parent = std::exchange(output.writer, nullptr);
                       output.mu.unlock();
                     });
  return g_forever.output;
}

LogWriter* Writer() {
  Output& output = TheOutput();
  const std::lock_guard lock(output.mu);
  return output.writer;
}

std::shared_ptr<const LogSink> CurrentSink() {
  Output& output = TheOutput();
  const std::lock_guard lock(output.mu);
  return output.sink;
}

// What the application's sink uses may be destroyed from now on.
void AtExit() {
  LogWriter* const writer = Writer();
  if (writer == nullptr) return;
  writer->Flush(Now() + kFlushWithin);
  Output& output = TheOutput();
  const std::lock_guard lock(output.mu);
  if (output.sink == nullptr) return;
  // Kept, for the thread may be in it: a sink that is stuck must not keep the process.
  [[maybe_unused]] static const auto* const kept =
      new std::shared_ptr<const LogSink>(std::move(output.sink));
  output.sink = std::make_shared<const LogSink>([](LogLevel, std::string_view) {});
}

LogWriter* StartedWriter() {
  Output& output = TheOutput();
  const std::lock_guard lock(output.mu);
  if (output.writer != nullptr) return output.writer;
  output.writer = LogWriter::Start(&CurrentSink);
  if (output.writer == nullptr) return nullptr;
  output.writer->inherited = output.of_parent;
  if (!std::exchange(output.exit_is_watched, true)) std::atexit(&AtExit);
  return output.writer;
}

}  // namespace

void SetLogSink(LogSink sink) {
  Output& output = TheOutput();
  LogWriter* const writer = Writer();
  const bool from_sink = writer != nullptr && writer->OnThread();
  if (writer != nullptr && !from_sink) writer->Flush(Now() + kFlushWithin);
  std::shared_ptr<const LogSink> other;
  if (sink) other = std::make_shared<const LogSink>(std::move(sink));
  {
    const std::lock_guard lock(output.mu);
    output.sink.swap(other);
  }
  if (LogWriter* const now = Writer(); now != nullptr && !from_sink) now->WaitForSink();
  // The old sink is destroyed here, under no lock: its destructor may do anything.
}

void SetLogLevel(LogLevel level) { g_level.store(level, std::memory_order_relaxed); }

bool FlushLog(Duration timeout) {
  LogWriter* const writer = Writer();
  return writer == nullptr || (!writer->OnThread() && writer->Flush(Now() + timeout));
}

void UsePluginHost(const PluginHost& host) {
  // Program and plugin may share one copy, a libkvxfer.so: it goes on by itself.
  if (host.log_line == &PostLogLine) return;
  g_host.store(&host, std::memory_order_release);
}

bool LogEnabled(LogLevel level) {
  if (const PluginHost* const host = g_host.load(std::memory_order_acquire)) {
    return host->log_enabled(level);
  }
  return level != LogLevel::kOff && level >= g_level.load(std::memory_order_relaxed);
}

void LogLine(LogLevel level, std::string_view line) {
  if (!LogEnabled(level)) return;
  constexpr size_t kCauseBytes = 16;
  // Odd, for no cause is 0 and no literal, whose address is a cause too, need be odd.
  const uint64_t cause = std::hash<std::string_view>()(line.substr(0, kCauseBytes)) | 1;
  const LogLimits::Answer answer = log_internal::AskLimits(level, cause);
  if (answer.admitted) log_internal::Finish(level, line, answer.suppressed);
}

void PostLogLine(LogLevel level, std::string_view line) {
  if (!LogEnabled(level)) return;
  LogWriter* const writer = StartedWriter();
  if (writer != nullptr) writer->Post(level, Printable(line, kMaxLineBytes + kSuppressedBytes));
}

namespace log_internal {

LogLimits::Answer AskLimits(LogLevel level, uint64_t cause) {
  if (level == LogLevel::kDebug) return {.admitted = true};
  Output& output = TheOutput();
  const std::lock_guard lock(output.mu);
  return output.limits.Ask(cause, Now());
}

void Finish(LogLevel level, std::string_view line, uint64_t suppressed) {
  std::string text = Printable(WithoutAddresses(line), kMaxLineBytes);
  if (suppressed > 0) absl::StrAppend(&text, " (and ", suppressed, " more of this kind)");
  if (const PluginHost* const host = g_host.load(std::memory_order_acquire)) {
    return host->log_line(level, text);
  }
  PostLogLine(level, text);
}

}  // namespace log_internal
}  // namespace kvxfer
