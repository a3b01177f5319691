// Creates the libfabric backend.

#ifndef KVXFER_BACKENDS_LIBFABRIC_FACTORY_H_
#define KVXFER_BACKENDS_LIBFABRIC_FACTORY_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kvxfer/backend.h"

namespace kvxfer {

// Opens the domains of one provider (efa, unless context.options names another) and listens for
// control connections at once. Unavailable: the provider is not there, or lacks what is needed; the
// message says what. FailedPrecondition: its endpoints cannot be closed safely (CheckClosing).
absl::StatusOr<std::unique_ptr<Backend>> MakeLibfabricBackend(const BackendContext& context);

}  // namespace kvxfer

#endif  // KVXFER_BACKENDS_LIBFABRIC_FACTORY_H_
