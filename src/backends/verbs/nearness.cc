#include "src/backends/verbs/nearness.h"

#include <algorithm>
#include <vector>

#include "src/core/topology/rails.h"

namespace kvxfer::verbs {

// A device with several ports is as near as its nearest port.
Nearness::Nearness(const Topology& topology, std::span<const Port> ports) {
  std::vector<size_t> indices;
  std::vector<size_t> devices;
  for (size_t i = 0; i < topology.ports.size(); ++i) {
    const auto port = std::ranges::find(ports, topology.PortName(topology.ports[i]), &Port::name);
    if (port == ports.end()) continue;
    indices.push_back(i);
    devices.push_back(port->device);
  }
  const auto from = [&](const MemoryPlace& place) {
    const std::vector<uint32_t> of_ports = kvxfer::Penalties(topology, place, indices);
    Penalties penalties;
    penalties.fill(kMaxPenalty);
    for (size_t i = 0; i < devices.size(); ++i) {
      uint8_t& penalty = penalties[devices[i]];
      penalty = std::min(penalty, static_cast<uint8_t>(of_ports[i]));
    }
    return penalties;
  };
  for (size_t gpu = 0; gpu < topology.gpus.size(); ++gpu) {
    by_gpu_[topology.gpus[gpu].pci] = from({MemoryPlace::Kind::kGpu, gpu});
  }
  if (topology.nodes.size() < 2) return;
  for (size_t node = 0; node < topology.nodes.size(); ++node) {
    by_node_[topology.nodes[node].id] = from({MemoryPlace::Kind::kNode, node});
  }
}

Penalties Nearness::Of(std::optional<int> node) const {
  const auto known = node ? by_node_.find(*node) : by_node_.end();
  return known == by_node_.end() ? Penalties{} : known->second;
}

Penalties Nearness::OfGpu(const std::string& pci, int node) const {
  const std::optional<PciAddress> address = PciAddress::Parse(pci);
  const auto known = address ? by_gpu_.find(*address) : by_gpu_.end();
  return known == by_gpu_.end() ? Of(node) : known->second;
}

}  // namespace kvxfer::verbs
