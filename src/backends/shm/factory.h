// The shm backend: peers of the same user on the same host. Memory in a sealed memfd (HostBuffer)
// is mapped by the peer; any other host memory is reached by cross-memory attach.

#ifndef KVXFER_BACKENDS_SHM_FACTORY_H_
#define KVXFER_BACKENDS_SHM_FACTORY_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kvxfer/backend.h"

namespace kvxfer {

// Unavailable: this kernel has no pidfd; ResourceExhausted: out of descriptors.
absl::StatusOr<std::unique_ptr<Backend>> MakeShmBackend(const BackendContext& context);

}  // namespace kvxfer

#endif  // KVXFER_BACKENDS_SHM_FACTORY_H_
