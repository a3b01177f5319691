// Uses every part that a program outside of the repository links: the agent, with its backends,
// options and log. Prints the agent's name.
#include <cstdio>
#include <string_view>

#include "kvxfer/agent.h"
#include "kvxfer/log.h"
#include "kvxfer/options.h"

int main() {
  kvxfer::SetLogSink([](kvxfer::LogLevel, std::string_view line) {
    std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
  });
  auto options = kvxfer::OptionsFromEnvironment();
  if (!options.ok()) {
    std::fprintf(stderr, "%s\n", options.status().ToString().c_str());
    return 1;
  }
  options->name = "consumer";
  const auto agent = kvxfer::Agent::Create(*options);
  if (!agent.ok()) {
    std::fprintf(stderr, "%s\n", agent.status().ToString().c_str());
    return 1;
  }
  const auto metadata = (*agent)->Metadata();
  if (!metadata.ok() || metadata->empty()) return 1;
  std::printf("%s\n", (*agent)->name().c_str());
  return 0;
}
