// Is a plugin, whose backend says that it does not work on this host.
#include "kvxfer/plugin.h"

namespace {

absl::StatusOr<std::unique_ptr<kvxfer::Backend>> Refuse(const kvxfer::BackendContext&) {
  return absl::UnavailableError("this host has no such device; install one");
}

}  // namespace

KVXFER_BACKEND_PLUGIN(unusable, Refuse)
