#include "tests/support/test_backends.h"

#include <cstdlib>
#include <utility>

#include "src/backends/faulty/factory.h"
#include "src/backends/verbs/backend.h"

namespace kvxfer::testing {

bool RealVerbs() { return std::getenv("KVXFER_TEST_VERBS") != nullptr; }

VerbsFabric& SharedFabric() {
  static VerbsFabric fabric(
      {{.name = "fab_0", .ports = {RocePort(1, 1)}}, {.name = "fab_1", .ports = {RocePort(2, 1)}}});
  return fabric;
}

absl::StatusOr<std::unique_ptr<Backend>> MakeVerbsOver(VerbsFabric& fabric,
                                                       const BackendContext& context) {
  absl::StatusOr<std::unique_ptr<verbs::VerbsBackend>> made =
      verbs::VerbsBackend::Create(context, fabric.MakeIbv());
  if (!made.ok()) return made.status();
  return std::unique_ptr<Backend>(*std::move(made));
}

absl::StatusOr<std::unique_ptr<Backend>> MakeTestBackend(std::string_view name,
                                                         const BackendContext& context) {
  const bool faulty = name == "faulty:verbs";
  if (RealVerbs() || (name != "verbs" && !faulty)) return MakeBackend(name, context);
  absl::StatusOr<std::unique_ptr<Backend>> made = MakeVerbsOver(SharedFabric(), context);
  if (!made.ok() || !faulty) return made;
  return MakeFaultyBackend(*std::move(made), context);
}

}  // namespace kvxfer::testing
