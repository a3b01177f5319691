// Needs a library that is not there when it is loaded.
#include "kvxfer/plugin.h"

extern "C" int kvxfer_test_absent();

namespace {

absl::StatusOr<std::unique_ptr<kvxfer::Backend>> Refuse(const kvxfer::BackendContext&) {
  return absl::UnavailableError(std::to_string(kvxfer_test_absent()));
}

}  // namespace

KVXFER_BACKEND_PLUGIN(missing_library, Refuse)
