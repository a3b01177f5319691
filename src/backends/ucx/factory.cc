// The factory's functions, kept apart from UCX's headers.

#include "src/backends/ucx/factory.h"

#include <utility>

#include "src/backends/ucx/backend.h"
#include "src/backends/ucx/worker.h"

namespace kvxfer {

absl::StatusOr<std::unique_ptr<Backend>> MakeUcxBackend(const BackendContext& context) {
  return ucx::UcxBackend::Create(context);
}

std::string UcxLibraryVersion() { return ucx::LibraryVersion(); }

}  // namespace kvxfer
