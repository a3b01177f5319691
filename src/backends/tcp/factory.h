// Makes the tcp backend.
#ifndef KVXFER_BACKENDS_TCP_FACTORY_H_
#define KVXFER_BACKENDS_TCP_FACTORY_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kvxfer/backend.h"

namespace kvxfer {

// Starts listening at once, and may block on DNS for names in `listen` and `advertise`.
// InvalidArgument: an option does not parse. FailedPrecondition: the address is in use.
absl::StatusOr<std::unique_ptr<Backend>> MakeTcpBackend(const BackendContext& context);

}  // namespace kvxfer

#endif  // KVXFER_BACKENDS_TCP_FACTORY_H_
