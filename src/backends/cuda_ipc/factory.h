// Makes the cuda_ipc backend.
#ifndef KVXFER_BACKENDS_CUDA_IPC_FACTORY_H_
#define KVXFER_BACKENDS_CUDA_IPC_FACTORY_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kvxfer/backend.h"

namespace kvxfer {

// Starts listening at once, for peers on the same host only. CUDA is initialised with the first GPU
// memory that is registered, not before. Unimplemented: this host has no CUDA driver. Unavailable:
// the end of a peer's process could not be detected here; the message says why.
absl::StatusOr<std::unique_ptr<Backend>> MakeCudaIpcBackend(const BackendContext& context);

}  // namespace kvxfer

#endif  // KVXFER_BACKENDS_CUDA_IPC_FACTORY_H_
