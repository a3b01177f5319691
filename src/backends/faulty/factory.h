// The decorator `faulty:<backend>`: does to any backend what AgentOptions::faults says, and stays
// a legal backend while it does so.
//
// What holds whatever the options: an immediate is never reported before its bytes; messages and
// immediates are lost only with their connection (cut) or into the black hole; every accepted op
// completes exactly once; kFenced comes only when nothing of the transfer is held here.
#ifndef KVXFER_BACKENDS_FAULTY_FACTORY_H_
#define KVXFER_BACKENDS_FAULTY_FACTORY_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kvxfer/backend.h"

namespace kvxfer {

// ResourceExhausted: no descriptor for the timer.
absl::StatusOr<std::unique_ptr<Backend>> MakeFaultyBackend(std::unique_ptr<Backend> inner,
                                                           const BackendContext& context);

}  // namespace kvxfer

#endif  // KVXFER_BACKENDS_FAULTY_FACTORY_H_
