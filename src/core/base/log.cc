#include "src/core/base/log.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kvxfer/plugin.h"
#include "src/core/base/clock.h"
#include "src/core/base/log_writer.h"
#include "src/core/base/strings.h"
#include "src/core/base/text.h"

namespace kvxfer {
namespace {

constexpr size_t kMaxLineBytes = 2048;
// The text leaves place for what Printable and Finish put behind it, at their longest.
constexpr std::string_view kLongestNotes =
    "... (18446744073709551615 more bytes) (and 18446744073709551615 more of this kind)";
constexpr size_t kMaxTextBytes = kMaxLineBytes - kLongestNotes.size();
constexpr Duration kFlushWithin = std::chrono::milliseconds(200);

constinit std::atomic<LogLevel> g_level{LogLevel::kWarning};
// Of the program, where this copy of kvxfer is a plugin's.
constinit std::atomic<const PluginHost*> g_host{nullptr};

// `mu` is held for moments only, never while a line is written: fork() takes it too.
struct Output {
  std::mutex mu;
  LogLimits limits;
  std::shared_ptr<const LogSink> sink;
  std::shared_ptr<const LogSink> discard;  // in the place of a sink that AtExit took away
  LogWriter* writer = nullptr;             // from the first line on
  LogWriter* of_parent = nullptr;
  bool exit_is_watched = false;        // with the first line
  Duration exit_flush = kFlushWithin;  // what is left of it to all AtExit together
};

// There from the start and never destroyed: lines may come from static constructors and
// destructors, and from forked children.
union Forever {
  constexpr Forever() : output() {}
  ~Forever() {}  // NOLINT(modernize-use-equals-default): a default one would be deleted
  Output output;
};
constinit Forever g_forever;

// The child has no thread that writes: it starts its own. Registered when the library is loaded: a
// static of a function may be half made by another thread at a fork, and stays so in the child.
[[maybe_unused]] const int g_fork_is_watched =
    pthread_atfork([] { g_forever.output.mu.lock(); }, [] { g_forever.output.mu.unlock(); },
                   [] {
                     Output& output = g_forever.output;
                     if (output.writer != nullptr)
                       output.of_parent = std::exchange(output.writer, nullptr);
                     output.mu.unlock();
                   });

LogWriter* Writer() {
  Output& output = g_forever.output;
  const std::lock_guard lock(output.mu);
  return output.writer;
}

std::shared_ptr<const LogSink> CurrentSink() {
  Output& output = g_forever.output;
  const std::lock_guard lock(output.mu);
  return output.sink;
}

void FlushAtExit() {
  Output& output = g_forever.output;
  LogWriter* const writer = Writer();
  if (writer == nullptr || writer->OnThread()) return;
  Duration left;
  {
    const std::lock_guard lock(output.mu);
    left = output.exit_flush;
  }
  const Time start = Now();
  writer->Flush(start + left);
  const std::lock_guard lock(output.mu);
  output.exit_flush = std::max(Duration(0), left - (Now() - start));
}

// Takes the application's sink away. exit() calls handlers and destroys static objects in the
// reverse order of their making, so this comes before the end of what was made before it was
// registered, and too late for what was made after. Hence it is registered by the first line, by
// each SetLogSink and after the first call of each sink.
void AtExit() {
  FlushAtExit();
  Output& output = g_forever.output;
  const std::lock_guard lock(output.mu);
  if (output.sink == nullptr || output.sink == output.discard) return;
  // Kept, for the thread may be in it: a sink that is stuck must not keep the process.
  output.discard = std::make_shared<const LogSink>(
      [kept = std::move(output.sink)](LogLevel, std::string_view) {});
  output.sink = output.discard;
}

// `sink`, which may make in its first call what it uses.
LogSink WatchedAtExit(LogSink sink) {
  std::atexit(&AtExit);
  return
      [sink = std::move(sink), was_called = false](LogLevel level, std::string_view line) mutable {
        sink(level, line);
        if (!std::exchange(was_called, true)) std::atexit(&AtExit);
      };
}

LogWriter* StartedWriter() {
  Output& output = g_forever.output;
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
  Output& output = g_forever.output;
  LogWriter* const writer = Writer();
  const bool from_sink = writer != nullptr && writer->OnThread();
  if (writer != nullptr && !from_sink) writer->Flush(Now() + kFlushWithin);
  std::shared_ptr<const LogSink> other;
  if (sink) other = std::make_shared<const LogSink>(WatchedAtExit(std::move(sink)));
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
  // No cause is 0.
  const uint64_t cause = std::hash<std::string_view>()(line.substr(0, kCauseBytes)) | 1;
  const LogLimits::Answer answer = log_internal::AskLimits(level, cause);
  if (answer.admitted) log_internal::Finish(level, line, answer.suppressed);
}

void PostLogLine(LogLevel level, std::string_view line) {
  if (!LogEnabled(level)) return;
  LogWriter* const writer = StartedWriter();
  if (writer == nullptr) return;
  std::string text = Printable(line, kMaxLineBytes);
  // Only a plugin's own copy of kvxfer could send such a line.
  if (text.size() > kMaxLineBytes) text = Printable(line, kMaxTextBytes);
  writer->Post(level, text);
}

namespace log_internal {

LogLimits::Answer AskLimits(LogLevel level, uint64_t cause) {
  if (level == LogLevel::kDebug) return {.admitted = true};
  Output& output = g_forever.output;
  const std::lock_guard lock(output.mu);
  return output.limits.Ask(cause, Now());
}

void Finish(LogLevel level, std::string_view line, uint64_t suppressed) {
  std::string text = Printable(WithoutAddresses(line), kMaxTextBytes);
  if (suppressed > 0) absl::StrAppend(&text, " (and ", suppressed, " more of this kind)");
  if (const PluginHost* const host = g_host.load(std::memory_order_acquire)) {
    return host->log_line(level, text);
  }
  PostLogLine(level, text);
}

}  // namespace log_internal
}  // namespace kvxfer
