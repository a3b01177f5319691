// The shm backend: for peers of the same user on the same host. Peers map memory that lies in a
// sealed memfd (HostBuffer); they reach any other host memory by cross-memory attach.

#ifndef KVXFER_BACKENDS_SHM_FACTORY_H_
#define KVXFER_BACKENDS_SHM_FACTORY_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kvxfer/backend.h"

namespace kvxfer {

// Unavailable: the kernel has no pidfd. ResourceExhausted: no descriptors left.
absl::StatusOr<std::unique_ptr<Backend>> MakeShmBackend(const BackendContext& context);

}  // namespace kvxfer

#endif  // KVXFER_BACKENDS_SHM_FACTORY_H_
