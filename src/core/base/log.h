// Internal logging, one line per call: Log(LogLevel::kWarning, "peer {}: {}", name, why). Format
// strings are those of spdlog's fmt. A call is cheap while its level is off, and never waits for
// the reader of the log.
//
// Each format string has its own rate limit (log_limits.h), so do not log with a bare "{}". Do not
// log rkeys, memory addresses, or hashes of blocks or prompts. Pass text from a peer through
// ForPeer or Printable (text.h), which cut it.
//
// Thread-safety: any thread.
#ifndef KVXFER_CORE_BASE_LOG_H_
#define KVXFER_CORE_BASE_LOG_H_

#include <spdlog/fmt/fmt.h>

#include <string>
#include <string_view>
#include <utility>

#include "kvxfer/log.h"
#include "src/core/base/log_limits.h"

namespace kvxfer {

namespace log_internal {

LogLimits::Answer AskLimits(LogLevel level, uint64_t cause);
void Finish(LogLevel level, std::string_view line, uint64_t suppressed);

}  // namespace log_internal

// Logs a line that has passed its rate limit; a plugin reaches it as PluginHost::log_line.
void PostLogLine(LogLevel level, std::string_view line);

template <typename... Args>
void Log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (!LogEnabled(level)) return;
  const fmt::string_view text = format;
  // The address of the format string identifies the place in the code. The level is part of the
  // cause, so a place that logs at two levels has two rate limits.
  const auto cause = reinterpret_cast<uintptr_t>(text.data()) * 8 + static_cast<uint64_t>(level);
  const LogLimits::Answer answer = log_internal::AskLimits(level, cause);
  if (!answer.admitted) return;
  log_internal::Finish(level, fmt::format(format, std::forward<Args>(args)...), answer.suppressed);
}

}  // namespace kvxfer

#endif  // KVXFER_CORE_BASE_LOG_H_
