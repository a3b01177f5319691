#include "src/backends/verbs/factory.h"

#include <utility>

#include "src/backends/verbs/backend.h"
#include "src/core/topology_sysfs.h"

namespace kvxfer {

absl::StatusOr<std::unique_ptr<Backend>> MakeVerbsBackend(const BackendContext& context) {
  // Most hosts: not even the library is loaded.
  const Sysfs host("/");
  if (host.List("/sys/class/infiniband").empty()) {
    return absl::UnimplementedError(
        "this host has no RDMA device (/sys/class/infiniband is empty; rdma link shows them)");
  }
  absl::StatusOr<std::unique_ptr<verbs::Ibv>> ibv = verbs::LoadLibibverbs();
  if (!ibv.ok()) return ibv.status();
  absl::StatusOr<Topology> topology = ReadTopology(host);
  absl::StatusOr<std::unique_ptr<verbs::VerbsBackend>> backend = verbs::VerbsBackend::Create(
      context, *std::move(ibv), topology.ok() ? *std::move(topology) : Topology());
  if (!backend.ok()) return backend.status();
  return std::unique_ptr<Backend>(*std::move(backend));
}

}  // namespace kvxfer
