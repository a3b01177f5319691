// The factory's functions, kept apart from UCX's headers.

#include "src/backends/ucx/factory.h"

#include <utility>

#include "src/backends/ucx/backend.h"
#include "src/backends/ucx/worker.h"

namespace kvxfer {

absl::StatusOr<std::unique_ptr<Backend>> MakeUcxBackend(const BackendContext& context) {
  absl::StatusOr<std::unique_ptr<ucx::UcxBackend>> backend = ucx::UcxBackend::Create(context);
  if (!backend.ok()) return backend.status();
  return std::unique_ptr<Backend>(*std::move(backend));
}

std::string UcxLibraryVersion() { return ucx::LibraryVersion(); }

}  // namespace kvxfer
