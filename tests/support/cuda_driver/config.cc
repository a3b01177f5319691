#include "tests/support/cuda_driver/config.h"

#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

namespace kvxfer::testing::cuda_driver {
namespace {

constexpr std::string_view kPrefix = "KVXFER_STANDIN_";

bool ParseNumber(std::string_view text, int64_t* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size();
}

bool Set(std::string_view name, std::string_view value, Config* config) {
  const std::pair<std::string_view, int64_t*> numbers[] = {
      {"DEVICES", &config->devices},
      {"MEMORY", &config->memory},
      {"WRITES_ORDERING", &config->writes_ordering},
      {"FLUSH_OPTIONS", &config->flush_options},
      {"GPU_DIRECT", &config->gpu_direct},
      {"DMABUF", &config->dmabuf},
      {"STREAM_VALUES", &config->stream_values},
      {"VMM", &config->vmm},
      {"FD_HANDLES", &config->fd_handles},
      {"FABRIC", &config->fabric},
      {"IPC", &config->ipc},
      {"INTEGRATED", &config->integrated},
      {"COMPUTE", &config->compute},
      {"PROCESSORS", &config->processors},
      {"NUMA", &config->numa},
      {"VERSION", &config->version},
      {"MPS", &config->mps},
      {"DELAY_US", &config->delay_us},
      {"SEED", &config->seed},
      {"AT_ONCE", &config->at_once},
      {"NO_DEFAULT_STREAM", &config->no_default_stream}};
  for (const auto& [key, place] : numbers) {
    if (key == name) return ParseNumber(value, place);
  }
  const std::pair<std::string_view, std::string*> texts[] = {{"INIT", &config->init},
                                                             {"FAIL", &config->fail}};
  for (const auto& [key, place] : texts) {
    if (key != name) continue;
    *place = value;
    return true;
  }
  return false;
}

}  // namespace

void Die(const std::string& what) {
  std::fprintf(stderr, "stand-in CUDA driver: %s\n", what.c_str());
  std::abort();
}

Config ConfigFromEnvironment() {
  Config config;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    std::string_view text = *entry;
    if (!text.starts_with(kPrefix)) continue;
    text.remove_prefix(kPrefix.size());
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    if (!Set(text.substr(0, equals), text.substr(equals + 1), &config)) {
      Die("no such setting, or no such value: " + std::string(*entry));
    }
  }
  return config;
}

std::vector<int> VisibleDevices(int count) {
  std::vector<int> visible;
  const char* const text = std::getenv("CUDA_VISIBLE_DEVICES");
  if (text == nullptr) {
    for (int i = 0; i < count; ++i) visible.push_back(i);
    return visible;
  }
  std::string_view rest = text;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(','), rest.size());
    int64_t index = 0;
    if (!ParseNumber(rest.substr(0, end), &index) || index < 0 || index >= count) break;
    visible.push_back(static_cast<int>(index));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return visible;
}

}  // namespace kvxfer::testing::cuda_driver
