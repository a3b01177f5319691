// Makes the verbs backend.
#ifndef KVXFER_BACKENDS_VERBS_FACTORY_H_
#define KVXFER_BACKENDS_VERBS_FACTORY_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kvxfer/backend.h"

namespace kvxfer {

// Opens the devices and listens for control connections at once. Unavailable, PermissionDenied or
// Unimplemented, with what to do: there is no libibverbs, no device, no permission, or no active
// port. NotFound or InvalidArgument: an option does not match what the host has.
absl::StatusOr<std::unique_ptr<Backend>> MakeVerbsBackend(const BackendContext& context);

}  // namespace kvxfer

#endif  // KVXFER_BACKENDS_VERBS_FACTORY_H_
