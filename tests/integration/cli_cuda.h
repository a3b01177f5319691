// Runs of the program with the stand-in CUDA driver and its settings
// (tests/support/cuda_driver/config.h), or without a driver.
#ifndef KVXFER_TESTS_INTEGRATION_CLI_CUDA_H_
#define KVXFER_TESTS_INTEGRATION_CLI_CUDA_H_

#include <unistd.h>

#include <string>
#include <vector>

#include "tests/integration/cli_program.h"

namespace kvxfer::cli {

// For RunWith: uses the host's driver, if there is one.
inline constexpr const char* kNoStandin = "-u LD_LIBRARY_PATH";

// Whether this host has a CUDA driver.
inline bool HasGpu() { return access("/dev/nvidiactl", F_OK) == 0; }

// `environment`: arguments of env(1), "KVXFER_STANDIN_DEVICES=3".
inline Result RunWith(const std::string& environment, const std::vector<std::string>& arguments) {
  std::string command = "env " + environment + " \"$0\"";
  for (const std::string& argument : arguments) command += " '" + argument + "'";
  return RunShell(command);
}

}  // namespace kvxfer::cli

#endif  // KVXFER_TESTS_INTEGRATION_CLI_CUDA_H_
