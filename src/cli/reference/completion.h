// Shell completion of the `kvxfer` program.
//
// Thread-safety: functions without state.
#ifndef KVXFER_CLI_REFERENCE_COMPLETION_H_
#define KVXFER_CLI_REFERENCE_COMPLETION_H_

#include <string>
#include <vector>

#include "src/cli/reference/describe.h"

namespace kvxfer::cli {

// Scripts that complete subcommands, options and the words of their values. `commands` are the
// subcommands, `root` has the options before them.
std::string BashCompletion(const CommandReference& root,
                           const std::vector<CommandReference>& commands);
std::string ZshCompletion(const CommandReference& root,
                          const std::vector<CommandReference>& commands);
std::string FishCompletion(const CommandReference& root,
                           const std::vector<CommandReference>& commands);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_REFERENCE_COMPLETION_H_
