// Runs of the program with a CUDA driver of a kind: the stand-in that the suites find, with
// settings (tests/support/cuda_driver/config.h), or none.
#ifndef KVXFER_TESTS_INTEGRATION_CLI_CUDA_H_
#define KVXFER_TESTS_INTEGRATION_CLI_CUDA_H_

#include <unistd.h>

#include <string>
#include <vector>

#include "tests/integration/cli_program.h"

namespace kvxfer::cli {

// Of RunWith: the host's own driver, if it has one.
inline constexpr const char* kNoStandin = "-u LD_LIBRARY_PATH";

// Whether this host has a driver of its own.
inline bool HasGpu() { return access("/dev/nvidiactl", F_OK) == 0; }

// `environment`: arguments of env(1), "KVXFER_STANDIN_DEVICES=3".
inline Result RunWith(const std::string& environment, const std::vector<std::string>& arguments) {
  std::string command = "env " + environment + " \"$0\"";
  for (const std::string& argument : arguments) command += " '" + argument + "'";
  return RunShell(command);
}

}  // namespace kvxfer::cli

#endif  // KVXFER_TESTS_INTEGRATION_CLI_CUDA_H_
