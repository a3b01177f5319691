// How far RDMA devices are from memory of NUMA nodes and of GPUs.
#include "src/backends/verbs/nearness.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "src/core/topology/rails.h"

namespace kvxfer::verbs {
namespace {

PciAddress Pci(uint8_t bus) { return {.bus = bus}; }

// Device and GPU `i` are below one switch; 0 and 1 are of node 0, 2 of node 1.
Topology HostOf(bool two_nodes = true) {
  Topology topology;
  topology.nodes = {{.id = 0, .distances = {10, 21}, .package = 0}};
  if (two_nodes) topology.nodes.push_back({.id = 1, .distances = {21, 10}, .package = 1});
  for (uint8_t i = 0; i < 3; ++i) {
    const int node = two_nodes && i == 2 ? 1 : 0;
    const std::string root = node == 0 ? "pci0000:00" : "pci0000:80";
    const std::string bridge = "0000:0" + std::to_string(i) + ":01.0";
    topology.gpus.push_back({.pci = Pci(0x20 + i),
                             .path = {root, bridge, Pci(0x20 + i).ToString()},
                             .numa_node = node});
    RdmaDevice device;
    device.name = "mlx5_" + std::to_string(i);
    device.pci = Pci(0x40 + i);
    device.path = {root, bridge, device.pci->ToString()};
    device.numa_node = node;
    topology.devices.push_back(device);
    RdmaPort port;
    port.device = i;
    port.state = PortState::kActive;
    port.link = LinkLayer::kInfiniBand;
    port.fabric = "one";
    topology.ports.push_back(port);
  }
  return topology;
}

const std::vector<Nearness::Port> kPorts = {{.name = "mlx5_0:1", .device = 0},
                                            {.name = "mlx5_1:1", .device = 1},
                                            {.name = "mlx5_2:1", .device = 2}};

TEST(VerbsNearness, TheDeviceBesideAGpuIsNearIt) {
  const Nearness nearness(HostOf(), kPorts);
  for (uint8_t gpu = 0; gpu < 3; ++gpu) {
    // As the driver writes it.
    const Penalties penalties = nearness.OfGpu(Pci(0x20 + gpu).ToString(), 0);
    for (size_t device = 0; device < 3; ++device) {
      EXPECT_EQ(penalties[device] == 0, device == gpu) << "GPU " << int{gpu} << ", " << device;
    }
  }
  // The other socket's is further than what another switch has.
  const Penalties of_first = nearness.OfGpu("0000:20:00.0", 0);
  EXPECT_GT(of_first[2], of_first[1]);
  EXPECT_EQ(of_first[2], kMaxPenalty);
}

TEST(VerbsNearness, AGpuThatIsNotSeenIsWhereItsNodeIs) {
  const Nearness nearness(HostOf(), kPorts);
  EXPECT_EQ(nearness.OfGpu("0000:99:00.0", 1), nearness.Of(1));
  EXPECT_EQ(nearness.OfGpu("", 0), nearness.Of(0));
  EXPECT_EQ(nearness.OfGpu("", -1), Penalties{});
  EXPECT_EQ(nearness.Of(1)[2], 0u);
  EXPECT_GT(nearness.Of(1)[0], 0u);
}

TEST(VerbsNearness, OnOneNodeGpusAreToldApartAndHostMemoryIsNot) {
  const Nearness nearness(HostOf(false), kPorts);
  EXPECT_FALSE(nearness.tells());
  EXPECT_EQ(nearness.Of(0), Penalties{});
  const Penalties penalties = nearness.OfGpu("0000:21:00.0", 0);
  EXPECT_EQ(penalties[1], 0u);
  EXPECT_GT(penalties[0], 0u);
  EXPECT_EQ(Nearness().OfGpu("0000:21:00.0", 0), Penalties{});
}

}  // namespace
}  // namespace kvxfer::verbs
