#include "src/backends/tcp/factory.h"

#include <utility>

#include "src/backends/tcp/backend.h"

namespace kvxfer {

absl::StatusOr<std::unique_ptr<Backend>> MakeTcpBackend(const BackendContext& context) {
  absl::StatusOr<std::unique_ptr<tcp::TcpBackend>> backend = tcp::TcpBackend::Create(context);
  if (!backend.ok()) return backend.status();
  return std::unique_ptr<Backend>(*std::move(backend));
}

}  // namespace kvxfer
