#include "src/core/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "kvxfer/plugin.h"

namespace kvxfer {
namespace {

constinit std::atomic<LogLevel> g_level{LogLevel::kWarning};
// Of the program, where this copy of kvxfer is a plugin's.
constinit std::atomic<const PluginHost*> g_host{nullptr};

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

// `mutex` is held shared while a line is written and alone while the sink is replaced, so that a
// sink is not in use any more when SetLogSink returns.
struct Output {
  Output() {
    stderr_logger.set_level(spdlog::level::trace);
    stderr_logger.set_pattern("%Y-%m-%dT%H:%M:%S.%e kvxfer %l: %v");
  }

  std::shared_mutex mutex;
  LogSink sink;
  // Not in spdlog's registry: the host application may use and shut down its own spdlog.
  spdlog::logger stderr_logger{"kvxfer", std::make_shared<spdlog::sinks::stderr_sink_mt>()};
};

// Made at first use and never destroyed: lines may come from static constructors and destructors.
Output& TheOutput() {
  static Output* const output = new Output;
  return *output;
}

}  // namespace

void SetLogSink(LogSink sink) {
  Output& output = TheOutput();
  // The old sink is destroyed after the lock is let go: its destructor may do anything.
  const std::unique_lock lock(output.mutex);
  output.sink.swap(sink);
}

void SetLogLevel(LogLevel level) { g_level.store(level, std::memory_order_relaxed); }

void UsePluginHost(const PluginHost& host) {
  // Program and plugin may share one copy, a libkvxfer.so: it goes on by itself.
  if (host.log_line == &LogLine) return;
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
  if (const PluginHost* const host = g_host.load(std::memory_order_acquire)) {
    return host->log_line(level, line);
  }
  Output& output = TheOutput();
  const std::shared_lock lock(output.mutex);
  if (output.sink) {
    output.sink(level, line);
  } else {
    output.stderr_logger.log(ToSpdlog(level), spdlog::string_view_t(line.data(), line.size()));
  }
}

}  // namespace kvxfer
