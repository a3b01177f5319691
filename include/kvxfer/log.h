// Where kvxfer's log lines go. By default warnings and errors go to stderr; an application may set
// a sink instead.
//
// No thread of kvxfer waits for a log. Lines pass through a queue of fixed size to one thread,
// which starts with the first line and writes to stderr or calls the sink. While that thread is
// blocked (a full pipe that nobody reads, a sink that blocks), the oldest lines are dropped, and a
// later line says how many. At a normal exit of the process, queued lines have 200 ms to be
// written. A child made by fork() starts a logging thread of its own; lines that were queued at the
// fork are the parent's.
//
// A line has at most 2 KiB. Control characters and other characters that a terminal would interpret
// appear as \xNN. Lines contain no rkey, no memory address and no hash of a prompt: a number that
// is written as 0x with more than four digits appears as 0x***, also in a text that an application
// gets in full as an error. One cause (one place in the code) may log 20 lines at once and two per
// second after that; the next line of that cause says how many were left out. Lines of level kDebug
// have no such limit.
//
// A shared library that links kvxfer statically must not be unmapped by dlclose, because the
// logging thread runs code in it. Link it with -z nodelete, as kvxfer's CMake package and
// libkvxfer.so do.
//
// Thread-safety: every function here may be called at any time from any thread.
//
// Example:
//   kvxfer::SetLogSink([](kvxfer::LogLevel level, std::string_view line) { MyLog(line); });

#ifndef KVXFER_LOG_H_
#define KVXFER_LOG_H_

#include <cstdint>
#include <functional>
#include <string_view>

#include "kvxfer/types.h"

namespace kvxfer {

enum class LogLevel : uint8_t { kDebug, kInfo, kWarning, kError, kOff };

// Called on the logging thread only, one line at a time. It may block: that loses lines and delays
// no other thread. It may call kvxfer; lines logged during the call are delivered after it. An
// exception that it throws is ignored. The logging thread blocks all signals, and a process that
// the sink forks and executes starts with that signal mask unless the sink changes it first.
//
// What the sink uses must live until the end of the process, or the application must call
// SetLogSink({}) before destroying it. At a normal exit, kvxfer stops calling the sink before the
// destruction of the static objects that were constructed before SetLogSink or during the sink's
// first call (e.g. a logger that is a function-local static). Static objects that were constructed
// later may be destroyed while the sink is still called.
using LogSink = std::function<void(LogLevel level, std::string_view line)>;

// Replaces the sink; an empty sink restores stderr. Lines that were logged before still go to the
// old sink, as far as it takes them within 200 ms. When SetLogSink returns, the old sink is neither
// running nor kept. If the old sink is running, SetLogSink waits for that call to end, so do not
// hold a lock that the sink needs. If the old sink itself calls SetLogSink, this returns at once
// and the old sink is destroyed after its call has returned.
void SetLogSink(LogSink sink);
void SetLogLevel(LogLevel level);

// Waits until every line that was logged before this call has been passed to the sink or to stderr,
// or was dropped. False: not within `timeout`, or at once if the sink itself is the caller.
bool FlushLog(Duration timeout);

// For backends: whether lines of that level are wanted, and logging of one line without a newline.
// In a plugin both go to the program that loaded it. Lines whose first 16 bytes are equal share one
// rate limit.
bool LogEnabled(LogLevel level);
void LogLine(LogLevel level, std::string_view line);

}  // namespace kvxfer

#endif  // KVXFER_LOG_H_
