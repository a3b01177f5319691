#include "tests/support/test_backends.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "src/backends/faulty/factory.h"
#include "src/backends/verbs/backend.h"
#include "tests/support/scale.h"

namespace kvxfer::testing {
namespace {

struct Scope {
  VerbsFabric* fabric = nullptr;
  verbs::VerbsOptions options{};
  Topology topology{};  // of its hosts
  Sysfs sysfs{};
};

Scope& Current() {
  static Scope scope;
  return scope;
}

absl::StatusOr<std::unique_ptr<Backend>> MakeVerbsOver(VerbsFabric& fabric, const Scope& scope,
                                                       const BackendContext& context) {
  absl::StatusOr<std::unique_ptr<verbs::VerbsBackend>> made = verbs::VerbsBackend::Create(
      context, fabric.MakeIbv(context.options.name), scope.topology, scope.sysfs);
  if (!made.ok()) return made.status();
  return std::unique_ptr<Backend>(*std::move(made));
}

}  // namespace

bool RealVerbs() { return std::getenv("KVXFER_TEST_VERBS") != nullptr; }

VerbsFabric& SharedFabric() {
  static VerbsFabric fabric(
      {{.name = "fab_0", .ports = {RocePort(1, 1)}}, {.name = "fab_1", .ports = {RocePort(2, 1)}}});
  return fabric;
}

ScopedFabric::ScopedFabric(VerbsFabric* fabric, verbs::VerbsOptions options, Topology topology,
                           Sysfs sysfs) {
  Current() = {.fabric = fabric,
               .options = std::move(options),
               .topology = std::move(topology),
               .sysfs = std::move(sysfs)};
}

ScopedFabric::~ScopedFabric() { Current() = {}; }

absl::StatusOr<std::unique_ptr<Backend>> MakeTestBackend(std::string_view name,
                                                         const BackendContext& context) {
  const bool faulty = name == "faulty:verbs";
  const Scope& scope = Current();
  if (name != "verbs" && !faulty) return MakeBackend(name, context);
  // Who takes what there is gets what this host has.
  const bool by_default = context.options.backends.empty();
  AgentOptions options = context.options;
  // Posting one takes the emulated processor long.
  if (kEmulated) options.backend["verbs"].emplace("receive_depth", "2048");
  if (scope.fabric == nullptr && (RealVerbs() || by_default)) {
    return MakeBackend(
        name, {.options = options, .incarnation = context.incarnation, .host = context.host});
  }
  if (scope.fabric != nullptr) options.backend["verbs"] = WriteOptions(scope.options);
  absl::StatusOr<std::unique_ptr<Backend>> made =
      MakeVerbsOver(scope.fabric != nullptr ? *scope.fabric : SharedFabric(), scope,
                    {.options = options, .incarnation = context.incarnation, .host = context.host});
  if (!made.ok() || !faulty) return made;
  return MakeFaultyBackend(*std::move(made), context);
}

}  // namespace kvxfer::testing
