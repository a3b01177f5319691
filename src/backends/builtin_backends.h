// The table of built-in backends, in the order of preference. CMake generates its one definition
// from builtin_table.cc.in and the list KVXFER_BACKENDS.
#ifndef KVXFER_BACKENDS_BUILTIN_BACKENDS_H_
#define KVXFER_BACKENDS_BUILTIN_BACKENDS_H_

#include <memory>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "kvxfer/backend.h"

namespace kvxfer {

struct BuiltinBackend {
  std::string_view name;
  absl::StatusOr<std::unique_ptr<Backend>> (*make)(const BackendContext& context);
};

std::span<const BuiltinBackend> BuiltinBackends();

}  // namespace kvxfer

#endif  // KVXFER_BACKENDS_BUILTIN_BACKENDS_H_
