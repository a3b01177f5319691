// The environment variables that kvxfer reads, for the manual page and the check of the docs.
#ifndef KVXFER_CLI_REFERENCE_VARIABLES_H_
#define KVXFER_CLI_REFERENCE_VARIABLES_H_

#include <string>
#include <vector>

namespace kvxfer::cli {

// Those of AgentOptions first, then those of the backends in this repository.
std::vector<std::string> AllVariables();

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_REFERENCE_VARIABLES_H_
