// Its factory throws.
#include <stdexcept>

#include "kvxfer/plugin.h"

namespace {

absl::StatusOr<std::unique_ptr<kvxfer::Backend>> Throw(const kvxfer::BackendContext&) {
  throw std::runtime_error("thrown");
}

}  // namespace

KVXFER_BACKEND_PLUGIN(throwing, Throw)
