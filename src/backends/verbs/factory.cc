#include "src/backends/verbs/factory.h"

#include <utility>

#include "src/backends/verbs/backend.h"

namespace kvxfer {

absl::StatusOr<std::unique_ptr<Backend>> MakeVerbsBackend(const BackendContext& context) {
  absl::StatusOr<std::unique_ptr<verbs::Ibv>> ibv = verbs::LoadLibibverbs();
  if (!ibv.ok()) return ibv.status();
  absl::StatusOr<std::unique_ptr<verbs::VerbsBackend>> backend =
      verbs::VerbsBackend::Create(context, *std::move(ibv));
  if (!backend.ok()) return backend.status();
  return std::unique_ptr<Backend>(*std::move(backend));
}

}  // namespace kvxfer
