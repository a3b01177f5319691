// Refuses options that no agent can have, before anything is made.
//
// Thread-safety: pure functions.

#ifndef KVXFER_AGENT_ENGINE_CHECK_OPTIONS_H_
#define KVXFER_AGENT_ENGINE_CHECK_OPTIONS_H_

#include <string_view>

#include "absl/status/status.h"
#include "kvxfer/options.h"
#include "kvxfer/transfer.h"

namespace kvxfer {

// The longest duration that an option may have; adding it to the clock does not overflow.
inline constexpr Duration kLongest = std::chrono::hours(24 * 365);

// "tcp" of "faulty:tcp".
std::string_view Undecorated(std::string_view backend);

// InvalidArgument, or as ChooseBackends.
absl::Status CheckAgentOptions(const AgentOptions& options);
// What can be said without the agent that posts the transfer. InvalidArgument.
absl::Status CheckTransferOptions(const TransferOptions& options);

}  // namespace kvxfer

#endif  // KVXFER_AGENT_ENGINE_CHECK_OPTIONS_H_
