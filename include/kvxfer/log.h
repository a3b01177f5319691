// Where kvxfer's log lines go.
//
// By default warnings and errors go to stderr. A host application hands in a sink instead.
//
// No thread of kvxfer waits for a log. Lines go through a queue of fixed size to one thread, which
// starts with the first line and writes to stderr or calls the sink. While that one is stuck (a
// full pipe that nobody reads, a sink that blocks) the oldest lines are dropped, and a later line
// says how many. At a normal exit of the process lines that are still queued have 200 ms. A child
// made by fork() starts a thread of its own; lines that were queued at the fork are the parent's.
//
// What is in a line: no character that a terminal would obey (they appear as \xNN), at most 2 KiB.
// No rkey, no address of memory and no hash of a prompt: a number written as 0x with more than four
// digits appears as 0x***, also where the error that an application gets has it. One cause (one
// place in the code) may log 20 lines at once and two a second from then on; the next line of that
// cause says how many more there were. Lines of level kDebug have no such limit.
//
// A shared library that links kvxfer statically must not be unmapped by dlclose, for the logging
// thread is in it: link it with -z nodelete, as kvxfer's CMake package and libkvxfer.so do.
//
// Thread-safety: all of this may be called at any time from any thread.
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

// Called on the logging thread only, one line at a time. It may block: that costs lines and delays
// nobody. It may call kvxfer; lines that are logged meanwhile come after. What it throws is
// ignored, and the line with it. The logging thread blocks all signals, and a process that the sink
// forks and executes starts with that mask unless the sink changes it first.
//
// What the sink uses must live until the end of the process, or SetLogSink({}) be called before it
// goes. At a normal exit kvxfer calls the sink no more before the static objects are destroyed that
// were made before SetLogSink was called or by the first call of the sink (a logger that is a
// static of the function); those that are made later may be destroyed while it is still called.
using LogSink = std::function<void(LogLevel level, std::string_view line)>;

// Empty: back to stderr. Lines that were logged before still go to the old sink, as far as it takes
// them within 200 ms. When this returns, the old sink is neither in use nor kept: where it is in
// the middle of a call this waits for the end of that call, so do not hold what the sink waits for.
// Called by the sink itself this returns at once, and the old sink goes when its call has returned.
void SetLogSink(LogSink sink);
void SetLogLevel(LogLevel level);

// Waits until every line that was logged before this call has been given to the sink or to stderr,
// or was dropped. False: not within `timeout`. Called by the sink itself: false, at once.
bool FlushLog(Duration timeout);

// For backends: whether lines of that level are wanted, and one line, without an end of line. In a
// plugin both are those of the program that loaded it. Lines whose first 16 bytes are equal have
// one limit of rate together.
bool LogEnabled(LogLevel level);
void LogLine(LogLevel level, std::string_view line);

}  // namespace kvxfer

#endif  // KVXFER_LOG_H_
