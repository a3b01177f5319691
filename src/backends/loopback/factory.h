// The loopback backend: agents in one process. The initiator's thread copies each byte once.
#ifndef KVXFER_BACKENDS_LOOPBACK_FACTORY_H_
#define KVXFER_BACKENDS_LOOPBACK_FACTORY_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kvxfer/backend.h"

namespace kvxfer {

// ResourceExhausted: no descriptor for the wake-up. AlreadyExists: this process already has an
// agent of the same incarnation.
absl::StatusOr<std::unique_ptr<Backend>> MakeLoopbackBackend(const BackendContext& context);

}  // namespace kvxfer

#endif  // KVXFER_BACKENDS_LOOPBACK_FACTORY_H_
