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
// A line's text leaves space for the longest notes that Printable and Finish append to it.
constexpr std::string_view kLongestNotes =
    "... (18446744073709551615 more bytes) (and 18446744073709551615 more of this kind)";
constexpr size_t kMaxTextBytes = kMaxLineBytes - kLongestNotes.size();
constexpr Duration kFlushWithin = std::chrono::milliseconds(200);

constinit std::atomic<LogLevel> g_level{LogLevel::kWarning};
// Set in a plugin's copy of kvxfer: the log of the program that loaded the plugin.
constinit std::atomic<const PluginHost*> g_host{nullptr};

// Everything that `mu` protects. fork() takes `mu` too, so it is held only briefly and never while
// a line is written.
struct Output {
  std::mutex mu;
  LogLimits limits;
  std::shared_ptr<const LogSink> sink;
  std::shared_ptr<const LogSink> discard;  // replaces a sink that AtExit took away
  LogWriter* writer = nullptr;             // created by the first line
  LogWriter* of_parent = nullptr;          // after fork(): the parent's, without a thread here
  bool exit_is_watched = false;            // AtExit is registered, by the first line
  Duration exit_flush = kFlushWithin;      // what all AtExit calls together may still use
};

// Constant-initialised and never destroyed, because lines may come from static constructors and
// destructors and from forked children.
union Forever {
  constexpr Forever() : output() {}
  ~Forever() {}  // NOLINT(modernize-use-equals-default): a default one would be deleted
  Output output;
};
constinit Forever g_forever;

// A forked child has no writing thread, so it starts its own. The handlers are registered when the
// library is loaded and not on first use: another thread could be inside the initialisation of a
// function-local static at the fork, and that static would stay half-initialised in the child for
// ever.
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
  // All AtExit calls share one budget of kFlushWithin. A sink that blocks delays the exit by that
  // much once, not once per call.
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

// Stops calling the application's sink. exit() runs handlers and destroys static objects in reverse
// order of their registration. AtExit therefore runs before the destruction of every object that
// was constructed before AtExit was registered, and too late for objects constructed afterwards. So
// it is registered several times: by the first line, by each SetLogSink, and after the first call
// of each sink.
void AtExit() {
  FlushAtExit();
  Output& output = g_forever.output;
  const std::lock_guard lock(output.mu);
  if (output.sink == nullptr || output.sink == output.discard) return;
  // The sink is kept and not destroyed: the logging thread may be inside it, and waiting for a sink
  // that is blocked would block the exit.
  output.discard = std::make_shared<const LogSink>(
      [kept = std::move(output.sink)](LogLevel, std::string_view) {});
  output.sink = output.discard;
}

// Wraps `sink`. The first call of a sink may construct static objects that it uses, so AtExit is
// registered once more after that call.
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
  // Lines that were logged before belong to the old sink. If the sink itself calls SetLogSink, this
  // is the logging thread, which cannot wait for itself.
  if (writer != nullptr && !from_sink) writer->Flush(Now() + kFlushWithin);
  std::shared_ptr<const LogSink> other;
  if (sink) other = std::make_shared<const LogSink>(WatchedAtExit(std::move(sink)));
  {
    const std::lock_guard lock(output.mu);
    output.sink.swap(other);
  }
  if (LogWriter* const now = Writer(); now != nullptr && !from_sink) now->WaitForSink();
  // The old sink is destroyed here, outside of every lock, because its destructor may log or call
  // SetLogSink.
}

void SetLogLevel(LogLevel level) { g_level.store(level, std::memory_order_relaxed); }

bool FlushLog(Duration timeout) {
  LogWriter* const writer = Writer();
  return writer == nullptr || (!writer->OnThread() && writer->Flush(Now() + timeout));
}

void UsePluginHost(const PluginHost& host) {
  // If program and plugin share one libkvxfer.so, `host` is this very copy; forwarding to it would
  // recurse.
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
  // LogLimits uses cause 0 for a free entry.
  const uint64_t cause = std::hash<std::string_view>()(line.substr(0, kCauseBytes)) | 1;
  const LogLimits::Answer answer = log_internal::AskLimits(level, cause);
  if (answer.admitted) log_internal::Finish(level, line, answer.suppressed);
}

void PostLogLine(LogLevel level, std::string_view line) {
  if (!LogEnabled(level)) return;
  LogWriter* const writer = StartedWriter();
  if (writer == nullptr) return;
  std::string text = Printable(line, kMaxLineBytes);
  // Only a plugin's own copy of kvxfer can pass a line that is too long; Finish cuts all others.
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
