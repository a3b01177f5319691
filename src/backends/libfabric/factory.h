// Makes the libfabric backend.
#ifndef KVXFER_BACKENDS_LIBFABRIC_FACTORY_H_
#define KVXFER_BACKENDS_LIBFABRIC_FACTORY_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kvxfer/backend.h"

namespace kvxfer {

// Opens the domains of one provider and listens for control connections at once. Unimplemented:
// no provider that this backend takes by itself; Unavailable: the one that was asked for is not
// there, or lacks what is needed; the message says what.
absl::StatusOr<std::unique_ptr<Backend>> MakeLibfabricBackend(const BackendContext& context);

}  // namespace kvxfer

#endif  // KVXFER_BACKENDS_LIBFABRIC_FACTORY_H_
