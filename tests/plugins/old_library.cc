// Needs a function that its library does not have when it is loaded.
#include "kvxfer/plugin.h"

extern "C" int kvxfer_test_new();

namespace {

absl::StatusOr<std::unique_ptr<kvxfer::Backend>> Refuse(const kvxfer::BackendContext&) {
  return absl::UnavailableError(std::to_string(kvxfer_test_new()));
}

}  // namespace

KVXFER_BACKEND_PLUGIN(old_library, Refuse)
