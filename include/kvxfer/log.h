// Where kvxfer's log lines go.
//
// By default warnings and errors go to stderr. A host application hands in a sink instead.
// Thread-safety: SetLogSink and SetLogLevel may be called at any time from any thread; the sink may
// be called from several threads at once and must not call back into kvxfer.
//
// Example:
//   kvxfer::SetLogSink([](kvxfer::LogLevel level, std::string_view line) { MyLog(line); });

#ifndef KVXFER_LOG_H_
#define KVXFER_LOG_H_

#include <cstdint>
#include <functional>
#include <string_view>

namespace kvxfer {

enum class LogLevel : uint8_t { kDebug, kInfo, kWarning, kError, kOff };

using LogSink = std::function<void(LogLevel level, std::string_view line)>;

void SetLogSink(LogSink sink);  // empty: back to stderr
void SetLogLevel(LogLevel level);

// For backends: whether lines of that level are wanted, and one line, without an end of line. In a
// plugin both are those of the program that loaded it.
bool LogEnabled(LogLevel level);
void LogLine(LogLevel level, std::string_view line);

}  // namespace kvxfer

#endif  // KVXFER_LOG_H_
