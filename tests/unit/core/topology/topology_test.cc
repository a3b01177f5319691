// The model of a host, read out of the described sysfs trees: what is where, and how far.

#include "src/core/topology/topology.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "src/cli/topo/report.h"
#include "src/cli/topo/sysfs_tree.h"
#include "src/cli/topo/topology_fixture.h"
#include "src/core/base/sysfs.h"
#include "src/core/topology/rails.h"
#include "src/transport/host/topology_sysfs.h"

namespace kvxfer {
namespace {

using cli::BuiltinTopologies;
using cli::BuiltinTopology;
using cli::OpenTopology;
using cli::ReadNamedTopology;
using cli::SysfsTree;
using cli::TemporaryFolder;

Topology FixtureOf(const std::string& name) {
  const auto source = OpenTopology("", name);
  EXPECT_TRUE(source.ok()) << source.status();
  if (!source.ok()) return {};
  auto topology = ReadNamedTopology(*source, {});
  EXPECT_TRUE(topology.ok()) << topology.status();
  return topology.ok() ? *std::move(topology) : Topology();
}

// Makes a tree of `files` and `links` and reads it.
Topology ReadTree(const SysfsTree& tree) {
  const auto folder = TemporaryFolder::Make();
  EXPECT_TRUE(folder.ok()) << folder.status();
  EXPECT_TRUE(tree.WriteTo(folder->path()).ok());
  auto topology = ReadTopology(Sysfs(folder->path()));
  EXPECT_TRUE(topology.ok()) << topology.status();
  return topology.ok() ? *std::move(topology) : Topology();
}

const RdmaPort& PortOf(const Topology& topology, const std::string& device) {
  const auto it =
      std::find_if(topology.ports.begin(), topology.ports.end(),
                   [&](const RdmaPort& port) { return topology.DeviceOf(port).name == device; });
  EXPECT_NE(it, topology.ports.end()) << device;
  return *it;
}

DeviceDistance FromGpu(const Topology& topology, const std::string& device, size_t gpu) {
  return DistanceOf(topology, topology.DeviceOf(PortOf(topology, device)),
                    {MemoryPlace::Kind::kGpu, gpu});
}

DeviceDistance FromNode(const Topology& topology, const std::string& device, size_t node) {
  return DistanceOf(topology, topology.DeviceOf(PortOf(topology, device)),
                    {MemoryPlace::Kind::kNode, node});
}

TEST(TopologyFixtures, EachSaysWhereItIsFrom) {
  ASSERT_EQ(BuiltinTopologies().size(), 6u);
  for (const BuiltinTopology& builtin : BuiltinTopologies()) {
    const auto fixture = cli::ParseTopologyFixture(builtin.json);
    ASSERT_TRUE(fixture.ok()) << builtin.name << ": " << fixture.status();
    EXPECT_TRUE(fixture->origin == "synthetic" || fixture->origin == "recorded") << builtin.name;
    EXPECT_GT(fixture->source.size(), 10u) << builtin.name;
    EXPECT_FALSE(fixture->title.empty()) << builtin.name;
  }
}

TEST(TopologyFixtures, DescriptionsThatAreNoneAreRefused) {
  for (const char* text : {"", "[]", "{}", R"({"origin": "synthetic"})",
                           R"({"origin": "synthetic", "source": "x", "nics": [{"name": "a"}]})",
                           R"({"origin": "synthetic", "source": "x", "gpus": [{"pci": "z"}]})",
                           R"({"origin": "synthetic", "source": "x", "gpus": [7]})"}) {
    EXPECT_EQ(cli::ParseTopologyFixture(text).status().code(), absl::StatusCode::kInvalidArgument)
        << text;
  }
}

TEST(Topology, ReadsTheSixPortNode) {
  const Topology node = FixtureOf("connectx7-two-fabrics");
  EXPECT_EQ(node.nodes.size(), 2u);
  EXPECT_EQ(node.nodes[1].cpus, "48-95,144-191");
  EXPECT_EQ(node.nodes[1].memory_bytes, uint64_t{1007} << 30);
  EXPECT_EQ(node.nodes[0].distances, (std::vector<int>{10, 21}));
  EXPECT_EQ(node.gpus.size(), 8u);
  EXPECT_EQ(node.devices.size(), 6u + 32u);
  struct Port {
    const char* device;
    const char* netdev;
    const char* pci;
    const char* fabric;
  };
  for (const Port& want : {Port{"mlx5_0", "ibp60s0", "0000:3c:00.0", "Fabric1"},
                           Port{"mlx5_1", "ibp77s0", "0000:4d:00.0", "Fabric1"},
                           Port{"mlx5_2", "ibp94s0", "0000:5e:00.0", "Fabric1"},
                           Port{"mlx5_3", "ibp156s0", "0000:9c:00.0", "Fabric1"},
                           Port{"mlx5_4", "ibp188s0", "0000:bc:00.0", "Fabric2"},
                           Port{"mlx5_5", "ibp222s0", "0000:dc:00.0", "Fabric2"}}) {
    const RdmaPort& port = PortOf(node, want.device);
    const RdmaDevice& device = node.DeviceOf(port);
    EXPECT_EQ(device.pci->ToString(), want.pci);
    EXPECT_EQ(device.device, 0x1021u);
    EXPECT_EQ(device.driver, "mlx5_core");
    EXPECT_FALSE(device.physical_function.has_value());
    ASSERT_EQ(port.netdevs.size(), 1u);
    EXPECT_EQ(port.netdevs[0].name, want.netdev);
    EXPECT_EQ(port.fabric, want.fabric);
    EXPECT_EQ(port.link, LinkLayer::kInfiniBand);
    EXPECT_EQ(port.state, PortState::kActive);
    EXPECT_EQ(port.physical_state, "LinkUp");
    EXPECT_EQ(port.gbps, 400);
    EXPECT_NE(port.lid, 0u);
    EXPECT_EQ(port.sm_lid, std::string(want.fabric) == "Fabric1" ? 1u : 2u);
    ASSERT_EQ(port.gids.size(), 1u);
    EXPECT_EQ(port.gids[0].type, GidType::kInfiniBand);
    EXPECT_EQ(port.SubnetPrefix(), kDefaultSubnetPrefix);
    EXPECT_NE(port.gids[0].Guid(), 0u);
  }
}

TEST(Topology, VirtualFunctionsKnowTheirParents) {
  const Topology node = FixtureOf("connectx7-two-fabrics");
  EXPECT_EQ(node.DeviceOf(PortOf(node, "mlx5_0")).virtual_functions, 8u);
  // 4d:00.1 .. 4d:01.0
  const RdmaDevice& last = node.DeviceOf(PortOf(node, "mlx5_21"));
  EXPECT_EQ(last.pci->ToString(), "0000:4d:01.0");
  ASSERT_NE(node.ParentOf(last), nullptr);
  EXPECT_EQ(node.ParentOf(last)->name, "mlx5_1");
  // Expect the fabric of the parent, whose port it is, and its place.
  EXPECT_EQ(PortOf(node, "mlx5_21").fabric, "Fabric1");
  EXPECT_EQ(FromGpu(node, "mlx5_21", 2), DeviceDistance::kSwitch);
  // In a pod the parent's RDMA device is not seen, but its address is.
  const Topology pod = FixtureOf("connectx7-pod");
  const RdmaDevice& vf = pod.DeviceOf(PortOf(pod, "mlx5_16"));
  ASSERT_TRUE(vf.physical_function.has_value());
  EXPECT_EQ(vf.physical_function->ToString(), "0000:4d:00.0");
  EXPECT_EQ(pod.ParentOf(vf), nullptr);
  ASSERT_EQ(PortOf(pod, "mlx5_16").netdevs[0].subnets.size(), 1u);
  EXPECT_EQ(PortOf(pod, "mlx5_16").netdevs[0].subnets[0].ToString(), "100.100.100.0/24");
}

TEST(Topology, DgxH100PairsEachGpuWithItsNic) {
  const Topology dgx = FixtureOf("dgx-h100");
  EXPECT_EQ(dgx.devices.size(), 12u);
  // Expect devices in the order of their numbers: mlx5_10 is not behind mlx5_1.
  EXPECT_EQ(dgx.devices[2].name, "mlx5_2");
  EXPECT_EQ(dgx.devices[10].name, "mlx5_10");
  const std::vector<std::string> nic_of = {"mlx5_0", "mlx5_3", "mlx5_4",  "mlx5_5",
                                           "mlx5_6", "mlx5_9", "mlx5_10", "mlx5_11"};
  ASSERT_EQ(dgx.gpus.size(), nic_of.size());
  for (size_t gpu = 0; gpu < nic_of.size(); ++gpu) {
    for (size_t nic = 0; nic < nic_of.size(); ++nic) {
      const DeviceDistance want = gpu == nic           ? DeviceDistance::kSwitch
                                  : gpu / 4 == nic / 4 ? DeviceDistance::kNode
                                                       : DeviceDistance::kOtherNode;
      EXPECT_EQ(FromGpu(dgx, nic_of[nic], gpu), want) << "GPU " << gpu << " " << nic_of[nic];
    }
  }
  EXPECT_EQ(PortOf(dgx, "mlx5_2").link, LinkLayer::kEthernet);
  EXPECT_TRUE(PortOf(dgx, "mlx5_2").gids.empty());
  EXPECT_EQ(PortOf(dgx, "mlx5_1").state, PortState::kDown);
  EXPECT_EQ(PortOf(dgx, "mlx5_1").physical_state, "Disabled");
}

TEST(Topology, P5HasFourEfaToAGpu) {
  const Topology p5 = FixtureOf("p5.48xlarge");
  ASSERT_EQ(p5.ports.size(), 32u);
  ASSERT_EQ(p5.gpus.size(), 8u);
  for (size_t i = 0; i < 32; ++i) {
    EXPECT_EQ(p5.ports[i].link, LinkLayer::kEfa);
    EXPECT_EQ(p5.ports[i].gbps, 100);
    EXPECT_EQ(p5.ports[i].fabric, "efa");
    for (size_t gpu = 0; gpu < 8; ++gpu) {
      const DeviceDistance distance =
          DistanceOf(p5, p5.DeviceOf(p5.ports[i]), {MemoryPlace::Kind::kGpu, gpu});
      EXPECT_EQ(distance == DeviceDistance::kSwitch, i / 4 == gpu) << i << " " << gpu;
    }
  }
  EXPECT_EQ(p5.DeviceOf(p5.ports[0]).name, "rdmap79s0");
  EXPECT_EQ(p5.gpus[0].pci.ToString(), "0000:53:00.0");
}

TEST(Topology, P4dSharesRootComplexes) {
  const Topology p4d = FixtureOf("p4d.24xlarge");
  ASSERT_EQ(p4d.ports.size(), 4u);
  EXPECT_EQ(FromGpu(p4d, "rdmap16s27", 0), DeviceDistance::kRoot);
  EXPECT_EQ(FromGpu(p4d, "rdmap16s27", 1), DeviceDistance::kRoot);
  EXPECT_EQ(FromGpu(p4d, "rdmap16s27", 2), DeviceDistance::kNode);
  EXPECT_EQ(FromGpu(p4d, "rdmap16s27", 4), DeviceDistance::kOtherNode);
  EXPECT_EQ(FromNode(p4d, "rdmap144s27", 1), DeviceDistance::kNode);
  EXPECT_EQ(FromNode(p4d, "rdmap144s27", 0), DeviceDistance::kOtherNode);
}

TEST(Topology, PlainVmHasNothingButANode) {
  const Topology vm = FixtureOf("plain-vm");
  EXPECT_EQ(vm.nodes.size(), 1u);
  EXPECT_TRUE(vm.gpus.empty());
  EXPECT_TRUE(vm.devices.empty());
  EXPECT_TRUE(vm.ports.empty());
}

// What rdma_rxe leaves in sysfs: no PCI device, the netdev in `parent`, a GID table with gaps.
TEST(Topology, ReadsSoftwareRoce) {
  SysfsTree tree;
  const std::string device = "/sys/devices/virtual/infiniband/rxe0";
  tree.File(device + "/parent", "veth0");
  tree.File(device + "/node_guid", "7c4d:a2ff:fe00:0001");
  const std::string port = device + "/ports/1";
  tree.File(port + "/state", "4: ACTIVE");
  tree.File(port + "/phys_state", "5: LinkUp");
  tree.File(port + "/link_layer", "Ethernet");
  tree.File(port + "/rate", "2.5 Gb/sec (1X SDR)");
  tree.File(port + "/lid", "0x0");
  tree.File(port + "/gids/0", "fe80:0000:0000:0000:7c4d:a2ff:fe00:0001");
  tree.File(port + "/gids/1", "0000:0000:0000:0000:0000:0000:0000:0000");
  tree.File(port + "/gids/2", "0000:0000:0000:0000:0000:ffff:0a4d:0001");
  tree.File(port + "/gid_attrs/types/0", "IB/RoCE v1");
  tree.File(port + "/gid_attrs/types/2", "RoCE v2");
  tree.File(port + "/gid_attrs/ndevs/2", "veth0");
  tree.Link("/sys/class/infiniband/rxe0", device);
  tree.File("/sys/devices/virtual/net/veth0/mtu", "1500");
  tree.Link("/sys/class/net/veth0", "/sys/devices/virtual/net/veth0");
  tree.File("/proc/net/route",
            "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n"
            "veth0\t00000000\t01004D0A\t0003\t0\t0\t0\t00000000\n"
            "veth0\t00004D0A\t00000000\t0001\t0\t0\t0\t00FFFFFF");
  tree.File("/proc/net/if_inet6",
            "fe800000000000007c4da2fffe000001 02 40 20 80    veth0\n"
            "fd000000000000000000000000000007 02 40 00 80    veth0");
  const Topology host = ReadTree(tree);
  ASSERT_EQ(host.ports.size(), 1u);
  const RdmaPort& rxe = host.ports[0];
  EXPECT_FALSE(host.devices[0].pci.has_value());
  EXPECT_EQ(rxe.link, LinkLayer::kEthernet);
  EXPECT_EQ(rxe.gbps, 2.5);
  EXPECT_EQ(rxe.fabric, "eth");
  ASSERT_EQ(rxe.gids.size(), 2u);
  EXPECT_EQ(rxe.gids[0].type, GidType::kRoceV1);
  EXPECT_EQ(rxe.gids[1].index, 2u);
  EXPECT_EQ(rxe.gids[1].type, GidType::kRoceV2);
  EXPECT_EQ(rxe.gids[1].ToString(), "::ffff:10.77.0.1");
  ASSERT_EQ(rxe.netdevs.size(), 1u);
  EXPECT_EQ(rxe.netdevs[0].mtu, 1500u);
  // Expect no default route and no link-local network.
  ASSERT_EQ(rxe.netdevs[0].subnets.size(), 2u);
  EXPECT_EQ(rxe.netdevs[0].subnets[0].ToString(), "10.77.0.0/24");
  EXPECT_EQ(rxe.netdevs[0].subnets[1].ToString(), "fd00::7/64");
}

// A sub-function hangs below the PCI device of its parent, and has no files of a PCI device.
TEST(Topology, SubFunctionsAreWhereTheirParentIs) {
  SysfsTree tree;
  const std::string pci = "/sys/devices/pci0000:37/0000:37:01.0/0000:3c:00.0";
  for (const int node : {0, 1}) {
    tree.File("/sys/devices/system/node/node" + std::to_string(node) + "/cpulist", "0-3");
  }
  tree.File(pci + "/vendor", "0x15b3");
  tree.File(pci + "/device", "0x1021");
  tree.File(pci + "/numa_node", "1");
  tree.Link("/sys/bus/pci/devices/0000:3c:00.0", pci);
  const std::string sub = pci + "/mlx5_core.sf.2";
  tree.File(sub + "/infiniband/mlx5_6/ports/1/state", "4: ACTIVE");
  tree.Link(sub + "/infiniband/mlx5_6/device", sub);
  tree.Link("/sys/class/infiniband/mlx5_6", sub + "/infiniband/mlx5_6");
  tree.File(sub + "/net/en3f0s2/mtu", "9000");
  tree.Link(sub + "/net/en3f0s2/device", sub);
  tree.Link("/sys/class/net/en3f0s2", sub + "/net/en3f0s2");
  // Software RoCE over a VLAN of that netdev.
  tree.File("/sys/devices/virtual/net/vlan7/mtu", "1500");
  tree.Link("/sys/devices/virtual/net/vlan7/lower_en3f0s2", sub + "/net/en3f0s2");
  tree.Link("/sys/class/net/vlan7", "/sys/devices/virtual/net/vlan7");
  tree.File("/sys/devices/virtual/infiniband/rxe0/parent", "vlan7");
  tree.File("/sys/devices/virtual/infiniband/rxe0/ports/1/state", "4: ACTIVE");
  tree.Link("/sys/class/infiniband/rxe0", "/sys/devices/virtual/infiniband/rxe0");
  const Topology host = ReadTree(tree);
  ASSERT_EQ(host.devices.size(), 2u);
  const RdmaDevice& device = host.devices[0];
  EXPECT_EQ(device.name, "mlx5_6");
  EXPECT_EQ(device.subfunction, "mlx5_core.sf.2");
  EXPECT_EQ(device.pci->ToString(), "0000:3c:00.0");
  EXPECT_EQ(device.numa_node, 1);
  EXPECT_EQ(device.vendor, 0x15b3u);
  EXPECT_EQ(device.device, 0x1021u);
  EXPECT_EQ(PortOf(host, "mlx5_6").netdevs.at(0).name, "en3f0s2");
  EXPECT_EQ(host.devices[1].numa_node, 1);
}

// Two devices of the host; a pod that was given the second one. Its own eth0 is not the host's.
TEST(Topology, SharedDevicesAreThoseThatWereGiven) {
  SysfsTree tree;
  for (const int i : {0, 1}) {
    const std::string number = std::to_string(i);
    const std::string pci = "/sys/devices/pci0000:37/0000:3c:00." + number;
    const std::string rdma = pci + "/infiniband/mlx5_" + number;
    tree.File(rdma + "/ports/1/state", "4: ACTIVE");
    tree.File(rdma + "/ports/1/link_layer", "Ethernet");
    tree.File(rdma + "/ports/1/gids/0", "::ffff:10.0.0." + number);
    tree.File(rdma + "/ports/1/gid_attrs/types/0", "RoCE v2");
    tree.File(rdma + "/ports/1/gid_attrs/ndevs/0", i == 0 ? "eth0" : "bond0");
    tree.Link(rdma + "/device", pci);
    tree.Link("/sys/class/infiniband/mlx5_" + number, rdma);
    tree.File("/sys/class/infiniband_verbs/uverbs" + number + "/ibdev", "mlx5_" + number);
  }
  tree.File("/sys/class/infiniband_verbs/abi_version", "6");
  tree.File("/sys/devices/virtual/net/eth0/mtu", "1500");
  tree.Link("/sys/class/net/eth0", "/sys/devices/virtual/net/eth0");
  // A bond over the second device's netdev.
  tree.Link("/sys/class/net/ens1/device", "/sys/devices/pci0000:37/0000:3c:00.1");
  tree.Link("/sys/class/net/bond0/lower_ens1", "/sys/class/net/ens1");
  EXPECT_EQ(WhyUnusable(ReadTree(tree), ReadTree(tree).ports[0]), "");
  tree.File("/dev/infiniband/uverbs1", "");
  const Topology pod = ReadTree(tree);
  ASSERT_EQ(pod.ports.size(), 2u);
  EXPECT_FALSE(pod.devices[0].given);
  EXPECT_TRUE(pod.devices[1].given);
  EXPECT_NE(WhyUnusable(pod, pod.ports[0]), "");
  EXPECT_EQ(WhyUnusable(pod, pod.ports[1]), "");
  EXPECT_TRUE(pod.ports[0].netdevs.empty());
  ASSERT_EQ(pod.ports[1].netdevs.size(), 1u);
  EXPECT_EQ(pod.ports[1].netdevs[0].name, "bond0");
  // Expect the netdev that has the GID's address, too, whatever it stands on.
  tree.File("/proc/net/route",
            "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n"
            "eth0\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF");
  tree.File("/proc/net/fib_trie", "Local:\n  |-- 10.0.0.0\n     /32 host LOCAL");
  const Topology macvlan = ReadTree(tree);
  ASSERT_EQ(macvlan.ports[0].netdevs.size(), 1u);
  EXPECT_EQ(macvlan.ports[0].netdevs[0].name, "eth0");
}

TEST(Topology, NodesOfNothingAreLeftOut) {
  SysfsTree tree;
  const auto node = [&](int id, const char* cpus, const char* kib, const char* distance) {
    const std::string folder = "/sys/devices/system/node/node" + std::to_string(id);
    tree.File(folder + "/cpulist", cpus);
    tree.File(folder + "/meminfo", "Node " + std::to_string(id) + " MemTotal: " + kib + " kB");
    tree.File(folder + "/distance", distance);
  };
  node(0, "0-3", "1024", "10 80 12 20");
  node(1, "", "0", "80 10 80 80");
  node(2, "", "1024", "12 80 10 80");
  node(3, "4-7", "0", "20 80 80 10");
  tree.File("/sys/devices/system/cpu/cpu4/topology/physical_package_id", "1");
  const Topology host = ReadTree(tree);
  ASSERT_EQ(host.nodes.size(), 3u);
  EXPECT_EQ(host.nodes[1].id, 2);
  EXPECT_EQ(host.nodes[0].distances, (std::vector<int>{10, 12, 20}));
  EXPECT_EQ(host.nodes[0].package, -1);
  EXPECT_EQ(host.nodes[2].package, 1);
}

TEST(Topology, GpusAreThoseOfTheHost) {
  SysfsTree tree;
  const auto gpu = [&](const char* pci, const char* vendor, const char* device_class) {
    const std::string folder = std::string("/sys/bus/pci/devices/") + pci;
    tree.File(folder + "/vendor", vendor);
    tree.File(folder + "/class", device_class);
  };
  gpu("0000:01:00.0", "0x1002", "0x120000");
  gpu("0000:02:00.0", "0x1002", "0x038000");
  gpu("0000:03:00.0", "0x10de", "0x030200");
  gpu("0000:03:00.4", "0x10de", "0x030200");
  gpu("0000:04:00.0", "0x1a03", "0x038000");
  tree.Link("/sys/bus/pci/devices/0000:03:00.4/physfn", "/sys/bus/pci/devices/0000:03:00.0");
  const Topology host = ReadTree(tree);
  ASSERT_EQ(host.gpus.size(), 3u);
  EXPECT_EQ(host.gpus[1].pci.bus, 2);
  EXPECT_EQ(host.gpus[2].pci.function, 0);
}

TEST(CopySysfs, ACopyReadsAsTheOriginal) {
  for (const BuiltinTopology& builtin : BuiltinTopologies()) {
    const auto source = OpenTopology("", std::string(builtin.name));
    ASSERT_TRUE(source.ok()) << source.status();
    std::vector<std::string> asked;
    const auto original = ReadTopology(Sysfs(source->sysfs.root(), &asked));
    ASSERT_TRUE(original.ok()) << original.status();
    const auto folder = TemporaryFolder::Make();
    ASSERT_TRUE(folder.ok()) << folder.status();
    const std::string to = folder->path() + "/copy";
    ASSERT_TRUE(cli::CopySysfs(source->sysfs, asked, to).ok());
    const auto copy = ReadTopology(Sysfs(to));
    ASSERT_TRUE(copy.ok()) << copy.status();
    EXPECT_EQ(cli::TopologyJson(*copy, {}).dump(1), cli::TopologyJson(*original, {}).dump(1));
    EXPECT_EQ(cli::CopySysfs(source->sysfs, asked, to).code(),
              absl::StatusCode::kFailedPrecondition);
  }
}

TEST(CopySysfs, TakesWhatIsReadAndNothingElse) {
  const auto folder = TemporaryFolder::Make();
  ASSERT_TRUE(folder.ok());
  SysfsTree tree;
  tree.File("/sys/devices/a/mtu", "7");
  tree.File("/sys/devices/a/secret", "8");
  tree.Link("/sys/class/net/eth0", "/sys/devices/a");
  tree.Link("/sys/devices/a/driver", "/sys/bus/drivers/gone");
  const std::string from = folder->path() + "/from";
  std::filesystem::create_directory(from);
  ASSERT_TRUE(tree.WriteTo(from).ok());
  std::vector<std::string> asked;
  const Sysfs original(from, &asked);
  EXPECT_EQ(original.ReadInt("/sys/class/net/eth0/mtu"), 7);
  EXPECT_EQ(original.LinkName("/sys/class/net/eth0/driver"), "gone");
  EXPECT_FALSE(original.Exists("/dev/infiniband/uverbs0"));
  ASSERT_TRUE(cli::CopySysfs(Sysfs(from), asked, folder->path() + "/to").ok());
  const Sysfs copy(folder->path() + "/to");
  EXPECT_EQ(copy.ReadInt("/sys/class/net/eth0/mtu"), 7);
  EXPECT_EQ(copy.Resolve("/sys/class/net/eth0/mtu"), "/sys/devices/a/mtu");
  EXPECT_EQ(copy.LinkName("/sys/class/net/eth0/driver"), "gone");
  EXPECT_FALSE(copy.Exists("/sys/devices/a/secret"));
  // That there was no device file is a fact about that host.
  EXPECT_TRUE(copy.Exists("/dev/infiniband"));
  EXPECT_FALSE(copy.Exists("/dev/infiniband/uverbs0"));
}

TEST(Topology, WhatDoesNotParseIsNotTold) {
  SysfsTree tree;
  const std::string device = "/sys/devices/pci0000:00/0000:00:05.0/infiniband/odd0";
  tree.File(device + "/ports/1/state", "7: DANCING");
  tree.File(device + "/ports/1/rate", "fast");
  tree.File(device + "/ports/1/lid", "zero");
  tree.File(device + "/ports/1/gids/0", "not a gid");
  tree.File(device + "/ports/1/gids/x", "fe80::1");
  tree.Link(device + "/device", "/sys/devices/pci0000:00/0000:00:05.0");
  tree.Link("/sys/class/infiniband/odd0", device);
  const Topology host = ReadTree(tree);
  ASSERT_EQ(host.ports.size(), 1u);
  EXPECT_EQ(host.ports[0].state, PortState::kUnknown);
  EXPECT_EQ(host.ports[0].gbps, 0);
  EXPECT_EQ(host.ports[0].lid, 0u);
  EXPECT_TRUE(host.ports[0].gids.empty());
  EXPECT_EQ(host.ports[0].link, LinkLayer::kUnknown);
  // Expect the one node there must be, and every device on it.
  EXPECT_EQ(host.nodes.size(), 1u);
  EXPECT_EQ(host.devices[0].numa_node, 0);
}

TEST(Topology, RootWithoutSysIsRefused) {
  const auto folder = TemporaryFolder::Make();
  ASSERT_TRUE(folder.ok());
  const auto topology = ReadTopology(Sysfs(folder->path()));
  EXPECT_EQ(topology.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(topology.status().message()).find(folder->path()), std::string::npos);
  // This host has one, whatever is in it.
  EXPECT_TRUE(ReadTopology(Sysfs("/")).ok());
}

TEST(PciAddress, TakesShortAndLongForms) {
  EXPECT_EQ(PciAddress::Parse("3c:00")->ToString(), "0000:3c:00.0");
  EXPECT_EQ(PciAddress::Parse("3c:1f.7")->ToString(), "0000:3c:1f.7");
  EXPECT_EQ(PciAddress::Parse("10000:AB:00.1")->ToString(), "10000:ab:00.1");
  for (const char* text : {"", "3c", ":", "3c:", "3c:20", "3c:00.8", "100:3c:00.", "mlx5_0:1",
                           "0:0:0:0", "3c:00.0 ", "-1:00"}) {
    EXPECT_FALSE(PciAddress::Parse(text).has_value()) << text;
  }
}

TEST(IpSubnet, ContainsWhatIsInIt) {
  const auto in = [](const char* subnet, const char* address) {
    return IpSubnet::Parse(subnet)->Contains(IpSubnet::Parse(address)->address);
  };
  EXPECT_TRUE(in("10.77.0.0/24", "10.77.0.255"));
  EXPECT_FALSE(in("10.77.0.0/24", "10.77.1.0"));
  EXPECT_TRUE(in("10.77.0.128/25", "10.77.0.129"));
  EXPECT_FALSE(in("10.77.0.128/25", "10.77.0.127"));
  EXPECT_TRUE(in("0.0.0.0/0", "1.2.3.4"));
  EXPECT_FALSE(in("0.0.0.0/0", "fe80::1"));
  EXPECT_TRUE(in("fe80::/64", "fe80::a088:c203:ab:cdef"));
  EXPECT_FALSE(in("fe80::/64", "fec0::1"));
  EXPECT_EQ(IpSubnet::Parse("10.0.0.0/8")->ToString(), "10.0.0.0/8");
  EXPECT_EQ(IpSubnet::Parse("fd00::/8")->ToString(), "fd00::/8");
  for (const char* text : {"", "10.0.0.0/33", "fe80::/129", "fe80::/", "10.0.0/8", "/8", "mlx5"}) {
    EXPECT_FALSE(IpSubnet::Parse(text).has_value()) << text;
  }
}

TEST(NaturalLess, OrdersNumbersByValue) {
  std::vector<std::string> names = {"mlx5_10", "mlx5_2", "irdma0", "mlx5_1", "mlx5_02", "mlx5"};
  std::sort(names.begin(), names.end(), NaturalLess);
  EXPECT_EQ(names,
            (std::vector<std::string>{"irdma0", "mlx5", "mlx5_1", "mlx5_02", "mlx5_2", "mlx5_10"}));
}

TEST(Sysfs, LinksDoNotLeadOutOfTheRoot) {
  const auto folder = TemporaryFolder::Make();
  ASSERT_TRUE(folder.ok());
  SysfsTree tree;
  tree.File("/sys/a/b", " 0x1F \n");
  tree.File("/sys/a/padded", "12\n" + std::string(4096, '\0'));
  tree.Link("/sys/inside", "/sys/a");
  tree.Link("/sys/outside", "/../..");
  ASSERT_TRUE(tree.WriteTo(folder->path()).ok());
  const Sysfs sysfs(folder->path() + "/");
  EXPECT_EQ(sysfs.Resolve("/sys/inside/b"), "/sys/a/b");
  EXPECT_EQ(sysfs.Resolve("/sys/outside"), "");
  EXPECT_EQ(sysfs.Resolve("/sys/none"), "");
  EXPECT_EQ(sysfs.LinkName("/sys/inside"), "a");
  EXPECT_EQ(sysfs.LinkName("/sys/a/b"), "");
  EXPECT_EQ(sysfs.LinkName("/sys/none"), "");
  EXPECT_EQ(sysfs.ReadInt("/sys/inside/b"), 31);
  // A copy that took the size that sysfs claims for what is in the file.
  EXPECT_EQ(sysfs.ReadInt("/sys/a/padded"), 12);
  EXPECT_FALSE(sysfs.Read("/sys/a").has_value());
  EXPECT_TRUE(sysfs.List("/sys/none").empty());
}

}  // namespace
}  // namespace kvxfer
