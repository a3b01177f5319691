// Internal logging, one line a call: Log(LogLevel::kWarning, "peer {}: {}", name, why). The format
// is spdlog's fmt. Cheap when the level is off; never waits for whoever reads the log.
//
// Each format string has its own rate limit (log_limits.h), so do not log with a bare "{}". Do not
// log rkeys, addresses of memory, hashes of blocks or prompts, nor texts of a peer that are not cut
// (text.h).
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

// A line that has passed its limit: PluginHost::log_line.
void PostLogLine(LogLevel level, std::string_view line);

template <typename... Args>
void Log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (!LogEnabled(level)) return;
  const fmt::string_view text = format;
  // A place that logs at two levels has two causes.
  const auto cause = reinterpret_cast<uintptr_t>(text.data()) * 8 + static_cast<uint64_t>(level);
  const LogLimits::Answer answer = log_internal::AskLimits(level, cause);
  if (!answer.admitted) return;
  log_internal::Finish(level, fmt::format(format, std::forward<Args>(args)...), answer.suppressed);
}

}  // namespace kvxfer

#endif  // KVXFER_CORE_BASE_LOG_H_
