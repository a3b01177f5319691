#include "src/backends/verbs/nearness.h"

#include <algorithm>
#include <vector>

#include "src/core/rails.h"

namespace kvxfer::verbs {

// A device of several ports is as near as the best of them.
Nearness::Nearness(const Topology& topology, std::span<const Port> ports) {
  if (topology.nodes.size() < 2) return;
  std::vector<size_t> indices;
  std::vector<size_t> devices;
  for (size_t i = 0; i < topology.ports.size(); ++i) {
    const auto port = std::ranges::find(ports, topology.PortName(topology.ports[i]), &Port::name);
    if (port == ports.end()) continue;
    indices.push_back(i);
    devices.push_back(port->device);
  }
  for (size_t node = 0; node < topology.nodes.size(); ++node) {
    const std::vector<uint32_t> of_ports =
        kvxfer::Penalties(topology, {MemoryPlace::Kind::kNode, node}, indices);
    Penalties& penalties = by_node_[topology.nodes[node].id];
    penalties.fill(kMaxPenalty);
    for (size_t i = 0; i < devices.size(); ++i) {
      uint8_t& penalty = penalties[devices[i]];
      penalty = std::min(penalty, static_cast<uint8_t>(of_ports[i]));
    }
  }
}

Penalties Nearness::Of(std::optional<int> node) const {
  const auto known = node ? by_node_.find(*node) : by_node_.end();
  return known == by_node_.end() ? Penalties{} : known->second;
}

}  // namespace kvxfer::verbs
