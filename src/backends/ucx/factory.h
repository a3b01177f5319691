// The ucx backend: reaches a peer over whatever UCX (libucp) finds between the two. It is used only
// if the application names it.

#ifndef KVXFER_BACKENDS_UCX_FACTORY_H_
#define KVXFER_BACKENDS_UCX_FACTORY_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kvxfer/backend.h"

namespace kvxfer {

// Unavailable: UCX has no transport for what the options name; the message lists the transports
// that there are. InvalidArgument: UCX rejects the value of an option.
absl::StatusOr<std::unique_ptr<Backend>> MakeUcxBackend(const BackendContext& context);

// "UCX 1.13.1 from /usr/lib/libucp.so.0".
std::string UcxLibraryVersion();

}  // namespace kvxfer

#endif  // KVXFER_BACKENDS_UCX_FACTORY_H_
