// The decorator `faulty:<backend>`. It injects the faults of FaultOptions (options.h) into any
// backend and keeps the rules of a backend while it does so.
//
// Whatever the options are: an immediate is never reported before its bytes. Messages and
// immediates are lost only with their connection (a cut) or in the black hole. Every accepted op
// completes exactly once. kFenced comes only when nothing of the transfer is held here.
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
