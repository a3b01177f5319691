// Internal logging, one line a call: Log(LogLevel::kWarning, "peer {}: {}", name, why). The format
// is spdlog's fmt. Cheap when the level is off.
#ifndef KVXFER_CORE_LOG_H_
#define KVXFER_CORE_LOG_H_

#include <spdlog/fmt/fmt.h>

#include <utility>

#include "kvxfer/log.h"

namespace kvxfer {

template <typename... Args>
void Log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (LogEnabled(level)) LogLine(level, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace kvxfer

#endif  // KVXFER_CORE_LOG_H_
