// A backend that accepts every op and completes it at the next Poll without moving a byte; what is
// left to measure is the agent. Connections and messages are those of loopback, so that the agents
// of one process connect, tell and are told as ever.
//
// Thread-safety: see kvxfer/backend.h. Memory that takes part is never touched: it may be
// address space without pages.

#ifndef KVXFER_TESTS_SUPPORT_NULL_BACKEND_H_
#define KVXFER_TESTS_SUPPORT_NULL_BACKEND_H_

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "kvxfer/backend.h"

namespace kvxfer::testing {

// For internal::AgentFactory: makes it under any name.
absl::StatusOr<std::unique_ptr<Backend>> MakeNullBackend(std::string_view name,
                                                         const BackendContext& context);

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_SUPPORT_NULL_BACKEND_H_
