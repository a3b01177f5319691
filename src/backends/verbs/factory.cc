#include "src/backends/verbs/factory.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "src/backends/verbs/backend.h"
#include "src/transport/host/topology_sysfs.h"

namespace kvxfer {
namespace {

// Whether to read the topology. That is some hundred files, too many for an agent that uses every
// port, unless a card may appear more than once.
bool NeedsTopology(const Sysfs& host, const std::vector<std::string>& devices,
                   const verbs::VerbsOptions& options) {
  if (!options.devices.empty() || !options.fabrics.empty()) return true;
  // Some devices are nearer to a GPU's or a node's memory than others.
  if (devices.size() > 1 && host.Exists("/sys/module/nvidia")) return true;
  const std::vector<std::string> system = host.List("/sys/devices/system/node");
  const auto nodes = std::ranges::count_if(
      system, [](const std::string& name) { return name.starts_with("node") && name != "node"; });
  if (devices.size() > 1 && nodes > 1) return true;
  for (const std::string& device : devices) {
    const std::string folder = "/sys/class/infiniband/" + device + "/device/";
    if (host.Exists(folder + "physfn") || host.Exists(folder + "sfnum")) return true;
  }
  return false;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> MakeVerbsBackend(const BackendContext& context) {
  // A wrong option is refused on every host, even without an RDMA device.
  const auto options = ReadOptions<verbs::VerbsOptions>("verbs", context.options);
  if (!options.ok()) return options.status();
  // Most hosts have no RDMA device; there not even the library is loaded.
  const Sysfs host("/");
  const std::vector<std::string> devices = host.List("/sys/class/infiniband");
  if (devices.empty()) {
    return absl::UnimplementedError(
        "this host has no RDMA device (/sys/class/infiniband is empty; rdma link shows them)");
  }
  absl::StatusOr<std::unique_ptr<verbs::Ibv>> ibv = verbs::LoadLibibverbs();
  if (!ibv.ok()) return ibv.status();
  absl::StatusOr<Topology> topology = Topology();
  if (NeedsTopology(host, devices, *options)) topology = ReadTopology(host);
  return verbs::VerbsBackend::Create(context, *std::move(ibv),
                                     topology.ok() ? *std::move(topology) : Topology());
}

}  // namespace kvxfer
