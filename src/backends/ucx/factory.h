// The ucx backend: whatever UCX (libucp) can reach a peer over, chosen by UCX. Asked for by name.

#ifndef KVXFER_BACKENDS_UCX_FACTORY_H_
#define KVXFER_BACKENDS_UCX_FACTORY_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kvxfer/backend.h"

namespace kvxfer {

// Unavailable: UCX has no transport for what the options name; the message says which there are.
// InvalidArgument: an option makes no sense to UCX.
absl::StatusOr<std::unique_ptr<Backend>> MakeUcxBackend(const BackendContext& context);

// "UCX 1.13.1 from /usr/lib/libucp.so.0".
std::string UcxLibraryVersion();

}  // namespace kvxfer

#endif  // KVXFER_BACKENDS_UCX_FACTORY_H_
