// Makes the verbs backend.
#ifndef KVXFER_BACKENDS_VERBS_FACTORY_H_
#define KVXFER_BACKENDS_VERBS_FACTORY_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kvxfer/backend.h"

namespace kvxfer {

// Opens the devices and listens for control connections at once. Unavailable or PermissionDenied,
// with the remedy, where there is no libibverbs, no device, no right to it or no active port;
// NotFound or InvalidArgument where an option does not fit what there is.
absl::StatusOr<std::unique_ptr<Backend>> MakeVerbsBackend(const BackendContext& context);

}  // namespace kvxfer

#endif  // KVXFER_BACKENDS_VERBS_FACTORY_H_
