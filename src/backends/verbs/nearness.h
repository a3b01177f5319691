// How far each device is from this host's memory and from its GPUs.
//
// Thread-safety: plain values.

#ifndef KVXFER_BACKENDS_VERBS_NEARNESS_H_
#define KVXFER_BACKENDS_VERBS_NEARNESS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "src/backends/verbs/device.h"
#include "src/core/topology/topology.h"

namespace kvxfer::verbs {

// PlannedRail::penalty, indexed by the device's ordinal.
using Penalties = std::array<uint8_t, kMaxDevices>;

class Nearness {
 public:
  // A port that is used.
  struct Port {
    std::string name{};  // "mlx5_0:1"
    size_t device = 0;   // its ordinal
  };

  // On a host without several nodes or GPUs: all devices are equally near.
  Nearness() = default;
  Nearness(const Topology& topology, std::span<const Port> ports);

  // For memory on NUMA node `node`; nothing: unknown.
  Penalties Of(std::optional<int> node) const;
  // Whether Of depends on its argument.
  bool tells() const { return !by_node_.empty(); }
  // For memory of the GPU at PCI address `pci`; for an unknown GPU, as for memory on `node`.
  Penalties OfGpu(const std::string& pci, int node) const;

 private:
  std::map<int, Penalties> by_node_;
  std::map<PciAddress, Penalties> by_gpu_;
};

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_NEARNESS_H_
