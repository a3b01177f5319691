// The manual page of the `kvxfer` program.
//
// Thread-safety: a function without state.
#ifndef KVXFER_CLI_REFERENCE_MAN_H_
#define KVXFER_CLI_REFERENCE_MAN_H_

#include <string>
#include <vector>

#include "src/cli/reference/describe.h"

namespace kvxfer::cli {

// In roff, for man(1). The same input always gives the same text: there is no date in it.
std::string ManualPage(const CommandReference& root, const std::vector<CommandReference>& commands);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_REFERENCE_MAN_H_
