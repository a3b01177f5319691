// Which ports serve which memory, and which of them the user wants.

#include "src/core/topology/rails.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "src/cli/topo/topology_fixture.h"
#include "src/core/topology/port_selector.h"
#include "src/transport/host/topology_sysfs.h"

namespace kvxfer {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Topology Fixture(const std::string& name, const std::vector<std::string>& fabrics = {}) {
  const auto source = cli::OpenTopology("", name);
  EXPECT_TRUE(source.ok()) << source.status();
  if (!source.ok()) return {};
  auto topology = cli::ReadNamedTopology(*source, fabrics);
  EXPECT_TRUE(topology.ok()) << topology.status();
  return topology.ok() ? *std::move(topology) : Topology();
}

FabricHint HintOf(const RdmaPort& port) {
  return {.link = port.link,
          .name = port.fabric_named ? port.fabric : std::string(),
          .subnet_prefix = port.link == LinkLayer::kInfiniBand ? port.SubnetPrefix() : 0};
}

// Of the ports that `text` selects the devices.
std::vector<std::string> Selected(const Topology& topology, const std::string& text) {
  const auto selector = PortSelector::Parse(text);
  EXPECT_TRUE(selector.ok()) << selector.status();
  if (!selector.ok()) return {};
  const auto ports = selector->Select(topology);
  EXPECT_TRUE(ports.ok()) << ports.status();
  std::vector<std::string> names;
  if (!ports.ok()) return names;
  for (const size_t port : *ports) names.push_back(topology.DeviceOf(topology.ports[port]).name);
  return names;
}

std::vector<std::string> NearRails(const Topology& topology, const MemoryPlace& place,
                                   const std::string& fabric = "") {
  std::vector<std::string> names;
  for (const PlannedRail& rail : PlanRails(topology, place, PortSelector()).rails) {
    const RdmaPort& port = topology.ports[rail.port];
    if (rail.near && (fabric.empty() || port.fabric == fabric)) {
      names.push_back(topology.DeviceOf(port).name);
    }
  }
  return names;
}

constexpr MemoryPlace Node(size_t index) { return {MemoryPlace::Kind::kNode, index}; }
constexpr MemoryPlace GpuAt(size_t index) { return {MemoryPlace::Kind::kGpu, index}; }

TEST(PlanRails, GpuTakesItsOwnNicFirst) {
  const Topology dgx = Fixture("dgx-h100");
  EXPECT_THAT(NearRails(dgx, GpuAt(0)), ElementsAre("mlx5_0"));
  EXPECT_THAT(NearRails(dgx, GpuAt(7)), ElementsAre("mlx5_11"));
  EXPECT_THAT(NearRails(dgx, Node(1)), ElementsAre("mlx5_6", "mlx5_9", "mlx5_10", "mlx5_11"));
  const Topology p5 = Fixture("p5.48xlarge");
  EXPECT_THAT(NearRails(p5, GpuAt(1)),
              ElementsAre("rdmap96s0", "rdmap97s0", "rdmap98s0", "rdmap99s0"));
}

TEST(PlanRails, OthersFollowByDistanceAtACost) {
  const Topology dgx = Fixture("dgx-h100");
  const RailPlan plan = PlanRails(dgx, GpuAt(4), PortSelector());
  ASSERT_EQ(plan.rails.size(), 8u);
  EXPECT_EQ(plan.rails[0].penalty, 0u);
  for (size_t i = 1; i < plan.rails.size(); ++i) {
    EXPECT_LE(plan.rails[i - 1].distance, plan.rails[i].distance);
    EXPECT_LE(plan.rails[i - 1].penalty, plan.rails[i].penalty);
    EXPECT_FALSE(plan.rails[i].near);
    EXPECT_GT(plan.rails[i].penalty, 0u);
  }
  EXPECT_EQ(plan.rails[1].penalty, 1u);
  EXPECT_EQ(plan.rails[7].distance, DeviceDistance::kOtherNode);
  EXPECT_EQ(plan.rails[7].penalty, 2u);
  // Expect a price also where only the order tells them apart.
  const RailPlan p4d = PlanRails(Fixture("p4d.24xlarge"), GpuAt(0), PortSelector());
  EXPECT_EQ(p4d.rails[0].distance, DeviceDistance::kRoot);
  EXPECT_EQ(p4d.rails[1].distance, DeviceDistance::kNode);
  EXPECT_EQ(p4d.rails[1].penalty, 1u);
  EXPECT_EQ(p4d.rails[3].distance, DeviceDistance::kOtherNode);
  EXPECT_EQ(p4d.rails[3].penalty, 2u);
  // The storage ports are down.
  ASSERT_EQ(plan.left_out.size(), 4u);
  EXPECT_THAT(plan.left_out[0].why, HasSubstr("Disabled"));
}

// A port that is down may come up later.
TEST(Penalties, CountWhateverTheStateOfThePort) {
  Topology dgx = Fixture("dgx-h100");
  std::vector<size_t> ports;
  for (size_t i = 0; i < dgx.ports.size(); ++i) ports.push_back(i);
  const std::vector<uint32_t> before = Penalties(dgx, Node(1), ports);
  for (RdmaPort& port : dgx.ports) port.state = PortState::kDown;
  EXPECT_EQ(Penalties(dgx, Node(1), ports), before);
  EXPECT_THAT(before, Contains(0u));
  EXPECT_THAT(before, Contains(1u));
  for (const uint32_t penalty : before) EXPECT_LE(penalty, kMaxPenalty);
}

TEST(PlanRails, EachFabricHasItsNearRails) {
  const Topology node = Fixture("connectx7-two-fabrics");
  EXPECT_THAT(NearRails(node, GpuAt(1), "Fabric1"), ElementsAre("mlx5_0"));
  EXPECT_THAT(NearRails(node, GpuAt(1), "Fabric2"), ElementsAre("mlx5_4", "mlx5_5"));
  EXPECT_THAT(NearRails(node, GpuAt(5), "Fabric2"), ElementsAre("mlx5_4"));
  // Expect no price on the only rails there are, however far.
  for (const PlannedRail& rail : PlanRails(node, GpuAt(1), PortSelector()).rails) {
    EXPECT_EQ(rail.penalty == 0, rail.near);
  }
  const RailPlan plan = PlanRails(node, Node(0), PortSelector());
  EXPECT_EQ(plan.left_out.size(), 32u);
  EXPECT_THAT(plan.left_out[0].why, HasSubstr("port GUID"));
}

TEST(PlanRails, WhatIsNotSelectedIsSaid) {
  const Topology node = Fixture("connectx7-two-fabrics");
  const RailPlan plan = PlanRails(node, Node(0), *PortSelector::Parse("fabric:Fabric2"));
  ASSERT_EQ(plan.rails.size(), 2u);
  ASSERT_EQ(plan.left_out.size(), 36u);
  EXPECT_THAT(plan.left_out[0].why, HasSubstr("fabric:Fabric2"));
}

// Four nodes in two sockets, and NICs on `nodes`.
Topology DividedSockets(const std::vector<int>& nodes) {
  Topology host;
  for (int id = 0; id < 4; ++id) host.nodes.push_back({.id = id});
  host.nodes[0].distances = {10, 12, 32, 32};
  for (const int node : nodes) {
    host.devices.push_back({.name = "nic" + std::to_string(node), .numa_node = node});
    host.ports.push_back({.device = host.devices.size() - 1,
                          .state = PortState::kActive,
                          .link = LinkLayer::kEfa,
                          .fabric = "efa"});
  }
  return host;
}

TEST(PlanRails, NearerNodesComeFirst) {
  const Topology host = DividedSockets({3, 1, 2, 0});
  std::vector<std::string> order;
  for (const PlannedRail& rail : PlanRails(host, Node(0), PortSelector()).rails) {
    order.push_back(host.DeviceOf(host.ports[rail.port]).name);
  }
  EXPECT_THAT(order, ElementsAre("nic0", "nic1", "nic3", "nic2"));
}

TEST(PlanRails, NicsOfTheOwnSocketAreNearWhereTheNodeHasNone) {
  EXPECT_THAT(NearRails(DividedSockets({1, 2, 3}), Node(0)), ElementsAre("nic1"));
  EXPECT_THAT(NearRails(DividedSockets({0, 1, 2, 3}), Node(0)), ElementsAre("nic0"));
  EXPECT_THAT(NearRails(DividedSockets({2, 3}), Node(0)), ElementsAre("nic2", "nic3"));
  // What the CPUs say of their package counts before what firmware says of distances.
  Topology host = DividedSockets({1, 2});
  for (size_t i = 0; i < 4; ++i) host.nodes[i].package = i == 0 || i == 2 ? 0 : 1;
  EXPECT_THAT(NearRails(host, Node(0)), ElementsAre("nic2"));
}

TEST(PlanRails, AnUnknownPlaceIsNoNearerThanAFarOne) {
  const Topology host = DividedSockets({-1, 3});
  const RailPlan plan = PlanRails(host, Node(0), PortSelector());
  ASSERT_EQ(plan.rails.size(), 2u);
  EXPECT_EQ(host.DeviceOf(host.ports[plan.rails[0].port]).name, "nic3");
  EXPECT_TRUE(plan.rails[0].near);
  EXPECT_TRUE(plan.rails[1].near);
  EXPECT_EQ(plan.rails[1].penalty, plan.rails[0].penalty);
}

// A port of one card: its physical function at 3c:00.0, two virtual ones, a sub-function; all can
// carry data. The second card has none.
Topology SharedCard() {
  Topology host;
  const auto add = [&](const char* name, const char* pci, const char* parent, const char* sub) {
    host.devices.push_back({.name = name,
                            .pci = PciAddress::Parse(pci),
                            .numa_node = 0,
                            .physical_function = PciAddress::Parse(parent),
                            .subfunction = sub});
    host.ports.push_back({.device = host.devices.size() - 1,
                          .state = PortState::kActive,
                          .link = LinkLayer::kEfa,
                          .netdevs = {{.name = std::string("net_") + name}},
                          .fabric = "efa"});
  };
  add("mlx5_9", "3c:00.1", "3c:00.0", "");
  add("mlx5_10", "3c:00.2", "3c:00.0", "");
  add("mlx5_11", "3c:00.0", "", "mlx5_core.sf.2");
  add("mlx5_0", "3c:00.0", "", "");
  add("mlx5_1", "4d:00.0", "", "");
  return host;
}

std::vector<std::string> Rails(const Topology& topology, const std::string& selector) {
  std::vector<std::string> names;
  for (const auto& rail : PlanRails(topology, Node(0), *PortSelector::Parse(selector)).rails) {
    names.push_back(topology.DeviceOf(topology.ports[rail.port]).name);
  }
  return names;
}

TEST(PlanRails, FunctionsOfOnePortAreOneRail) {
  Topology host = SharedCard();
  EXPECT_THAT(Rails(host, ""), ElementsAre("mlx5_0", "mlx5_1"));
  EXPECT_EQ(host.ParentOf(host.devices[2]), &host.devices[3]);
  EXPECT_EQ(host.ParentOf(host.devices[3]), nullptr);
  const RailPlan plan = PlanRails(host, Node(0), PortSelector());
  ASSERT_EQ(plan.left_out.size(), 3u);
  EXPECT_THAT(plan.left_out[0].why, HasSubstr("shares the port of mlx5_0"));
  // What the user names is taken; a pattern that means many names none.
  EXPECT_THAT(Rails(host, "mlx5_*"), ElementsAre("mlx5_0", "mlx5_1"));
  EXPECT_THAT(Rails(host, "mlx5_*,mlx5_10"), ElementsAre("mlx5_10", "mlx5_1"));
  EXPECT_THAT(Rails(host, "efa,3c:00.2"), ElementsAre("mlx5_10", "mlx5_1"));
  EXPECT_THAT(Rails(host, "efa,net_mlx5_11"), ElementsAre("mlx5_11", "mlx5_1"));
  EXPECT_THAT(Rails(host, "3c:00"), ElementsAre("mlx5_0"));
  EXPECT_THAT(Rails(host, "^mlx5_0"), ElementsAre("mlx5_9", "mlx5_1"));
  // The physical function's port is down: one of the others carries.
  host.ports[3].state = PortState::kDown;
  EXPECT_THAT(Rails(host, ""), ElementsAre("mlx5_9", "mlx5_1"));
  // In a pod the physical function is not seen.
  host.devices[3].pci = PciAddress::Parse("5e:00.0");
  EXPECT_THAT(Rails(host, ""), ElementsAre("mlx5_9", "mlx5_1"));
  // The user knows better: two networks over one wire.
  EXPECT_TRUE(
      NameFabrics({*FabricName::Parse("a=mlx5_9"), *FabricName::Parse("b=mlx5_10")}, host).ok());
  EXPECT_THAT(Rails(host, ""), ElementsAre("mlx5_9", "mlx5_10", "mlx5_11", "mlx5_1"));
}

TEST(PlanRails, ActiveVirtualFunctionsShareTheirParents) {
  cli::Json vfs = {{"count", 2}, {"first", 6}, {"lid", 21}};
  const cli::Json nic = {{"name", "mlx5_0"}, {"pci", "3c:00.0"}, {"netdev", "ibp60s0"},
                         {"lid", 17},        {"sm_lid", 1},      {"vfs", vfs}};
  const auto fixture = cli::MakeTopologyFixture(
      {{"origin", "synthetic"}, {"source", "this test"}, {"nics", cli::Json::array({nic})}});
  ASSERT_TRUE(fixture.ok()) << fixture.status();
  const auto folder = cli::TemporaryFolder::Make();
  ASSERT_TRUE(folder.ok() && fixture->tree.WriteTo(folder->path()).ok());
  const auto topology = ReadTopology(Sysfs(folder->path()));
  ASSERT_TRUE(topology.ok()) << topology.status();
  ASSERT_EQ(topology->ports.size(), 3u);
  for (const RdmaPort& port : topology->ports) EXPECT_EQ(WhyUnusable(*topology, port), "");
  EXPECT_THAT(Rails(*topology, ""), ElementsAre("mlx5_0"));
}

TEST(PlanRails, APlaceThatIsNotThereIsFarFromAll) {
  const Topology dgx = Fixture("dgx-h100");
  for (const MemoryPlace& place : {GpuAt(8), Node(2)}) {
    const RailPlan plan = PlanRails(dgx, place, PortSelector());
    ASSERT_EQ(plan.rails.size(), 8u);
    for (const PlannedRail& rail : plan.rails) {
      EXPECT_EQ(rail.distance, DeviceDistance::kUnknown);
      EXPECT_TRUE(rail.near);
    }
  }
}

TEST(WhyUnusable, NamesTheRemedy) {
  Topology host;
  host.devices.push_back({.name = "mlx5_0"});
  const auto why = [&](const RdmaPort& port) { return WhyUnusable(host, port); };
  Gid v2{.index = 3, .type = GidType::kRoceV2};
  RdmaPort ib{.state = PortState::kActive, .link = LinkLayer::kInfiniBand, .lid = 4};
  RdmaPort eth{.state = PortState::kActive, .link = LinkLayer::kEthernet};
  EXPECT_EQ(why(ib), "");
  ib.lid = 0;
  EXPECT_THAT(why(ib), HasSubstr("subnet manager"));
  ib.state = PortState::kInit;
  EXPECT_THAT(why(ib), HasSubstr("subnet manager"));
  ib.state = PortState::kDown;
  ib.physical_state = "Polling";
  EXPECT_THAT(why(ib), HasSubstr("cable"));
  EXPECT_THAT(why(eth), HasSubstr("address"));
  // Ethernet says Disabled of a cable that is not there, too.
  RdmaPort dark{
      .state = PortState::kDown, .physical_state = "Disabled", .link = LinkLayer::kEthernet};
  dark.netdevs.push_back({.name = "eth3"});
  EXPECT_THAT(why(dark), HasSubstr("ip link set eth3 up"));
  EXPECT_THAT(why(dark), HasSubstr("cable"));
  EXPECT_THAT(why({.number = 2}), HasSubstr("/sys/class/infiniband/mlx5_0/ports/2/state"));
  eth.gids.push_back({.type = GidType::kRoceV1});
  EXPECT_THAT(why(eth), HasSubstr("RoCE v2"));
  eth.gids.push_back(v2);
  EXPECT_EQ(why(eth), "");
  host.devices[0].physical_function = PciAddress{};
  ib.state = PortState::kActive;
  EXPECT_THAT(why(ib), HasSubstr("port_guid"));
  ib.gids.push_back({.bytes = {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 1}});
  ib.state = PortState::kDown;
  EXPECT_THAT(why(ib), HasSubstr("state auto"));
  host.devices[0].iwarp = true;
  EXPECT_THAT(why(eth), HasSubstr("iWARP"));
  host.devices[0].given = false;
  host.devices[0].uverbs = "uverbs3";
  EXPECT_THAT(why(eth), HasSubstr("/dev/infiniband/uverbs3 is not there"));
}

TEST(PortSelector, TakesEveryKindOfName) {
  const Topology node = Fixture("connectx7-two-fabrics");
  EXPECT_THAT(Selected(node, "mlx5_1"), ElementsAre("mlx5_1"));
  EXPECT_THAT(Selected(node, "mlx5_[45]"), ElementsAre("mlx5_4", "mlx5_5"));
  EXPECT_THAT(Selected(node, "mlx5_0:1"), ElementsAre("mlx5_0"));
  EXPECT_THAT(Selected(node, "ibp60s0,ibp222s0"), ElementsAre("mlx5_0", "mlx5_5"));
  // Expect the virtual functions, 22 to 37, in the fabric of their parents.
  EXPECT_EQ(Selected(node, "fabric:Fabric2").size(), 18u);
  EXPECT_THAT(Selected(node, "fabric:Fabric2,^mlx5_??"), ElementsAre("mlx5_4", "mlx5_5"));
  EXPECT_THAT(Selected(node, "Fabric2, ^ibp188s0,^mlx5_??"), ElementsAre("mlx5_5"));
  EXPECT_THAT(Selected(node, "pci:3c:00.0"), ElementsAre("mlx5_0"));
  EXPECT_THAT(Selected(node, "0000:3c:00.3"), ElementsAre("mlx5_8"));
  // Expect the whole of a card where no function is given: 3c:00.0 and its eight virtual functions,
  // of which the last is at 3c:01.0.
  EXPECT_EQ(Selected(node, "3c:00").size(), 9u);
  EXPECT_EQ(Selected(node, "subnet:fe80::/64").size(), 38u);
  EXPECT_EQ(Selected(node, "").size(), 38u);
  EXPECT_EQ(Selected(node, "^mlx5_[6-9],^mlx5_??").size(), 6u);
  const Topology pod = Fixture("connectx7-pod");
  EXPECT_THAT(Selected(pod, "100.100.100.0/24"), ElementsAre("mlx5_16"));
  EXPECT_THAT(Selected(pod, "100.100.101.28"), ElementsAre("mlx5_28"));
  // By the card, wherever on it the virtual function happens to be.
  EXPECT_THAT(Selected(pod, "pci:4d:00"), ElementsAre("mlx5_16"));
  EXPECT_THAT(Selected(pod, "subnet:100.0.0.0/8,^netdev:net2"), ElementsAre("mlx5_16"));
}

TEST(PortSelector, KindsDoNotTakeOthersNames) {
  const Topology node = Fixture("connectx7-two-fabrics");
  for (const char* text : {"netdev:mlx5_0", "device:ibp60s0", "fabric:mlx5_0", "mlx5_99",
                           "pci:01:00.0", "subnet:10.0.0.0/8", "Fabric3", "mlx5_0,nic7"}) {
    const auto ports = PortSelector::Parse(text)->Select(node);
    EXPECT_EQ(ports.status().code(), absl::StatusCode::kNotFound) << text;
    // Expect to be told what there is.
    EXPECT_THAT(std::string(ports.status().message()), HasSubstr("ibp60s0")) << text;
    EXPECT_THAT(std::string(ports.status().message()), HasSubstr("and 26 more")) << text;
  }
  EXPECT_EQ(PortSelector::Parse("^*")->Select(node).status().code(), absl::StatusCode::kNotFound);
}

TEST(PortSelector, AnAddressMeansThePortThatHasIt) {
  Topology pod = Fixture("connectx7-pod");
  // Of another host in the network, the network's own; the card's physical function.
  for (const char* text : {"100.100.101.7", "subnet:100.100.100.0", "100.100.100.255",
                           "100.100.100.128/25", "pci:4d:00.0"}) {
    EXPECT_EQ(PortSelector::Parse(text)->Select(pod).status().code(), absl::StatusCode::kNotFound)
        << text;
  }
  EXPECT_THAT(Selected(pod, "100.100.100.16/30"), ElementsAre("mlx5_16"));
  // An address that no routing table knows, as /32 and noprefixroute leave them: RoCE GIDs do.
  pod.ports[1].gids.push_back({.bytes = IpSubnet::Parse("10.9.8.7")->address});
  EXPECT_THAT(Selected(pod, "10.9.8.7"), ElementsAre("mlx5_28"));
  EXPECT_THAT(Selected(pod, "10.9.0.0/16"), ElementsAre("mlx5_28"));
}

TEST(PortSelector, RefusesWhatIsNoPattern) {
  for (const char* text : {",", "mlx5_0,", "^", "pci:", "pci:mlx5_0", "subnet:ibp60s0",
                           "fabric:", "subnet:10.0.0.0/40"}) {
    EXPECT_EQ(PortSelector::Parse(text).status().code(), absl::StatusCode::kInvalidArgument)
        << text;
  }
}

TEST(NameFabrics, GivesNamesAndRefusesTwoForAPort) {
  EXPECT_EQ(Fixture("dgx-h100", {"compute=mlx5_0,mlx5_3"}).ports[3].fabric, "compute");
  Topology dgx = Fixture("dgx-h100");
  const auto name = [&](const std::vector<std::string>& texts) {
    std::vector<FabricName> names;
    names.reserve(texts.size());
    for (const std::string& text : texts) names.push_back(*FabricName::Parse(text));
    return NameFabrics(names, dgx);
  };
  EXPECT_EQ(name({"a=mlx5_0", "b=ibp24s0"}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(name({"a=mlx5_77"}).code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(name({"a=mlx5_0", "a=mlx5_3"}).ok());
  for (const char* text : {"", "a", "=mlx5_0", "a=", "a=pci:x"}) {
    EXPECT_EQ(FabricName::Parse(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(ReachOf, FollowsNamesThenPrefixes) {
  const FabricHint named1{LinkLayer::kInfiniBand, "Fabric1", kDefaultSubnetPrefix};
  const FabricHint named2{LinkLayer::kInfiniBand, "Fabric2", kDefaultSubnetPrefix};
  const FabricHint plain{LinkLayer::kInfiniBand, "", kDefaultSubnetPrefix};
  const FabricHint other{LinkLayer::kInfiniBand, "", 0xfec0'0000'0000'0001};
  const FabricHint ethernet{LinkLayer::kEthernet, "", 0};
  EXPECT_EQ(ReachOf(named1, named1), Reach::kLikely);
  EXPECT_EQ(ReachOf(named1, named2), Reach::kNo);
  EXPECT_EQ(ReachOf(named1, plain), Reach::kMaybe);
  EXPECT_EQ(ReachOf(plain, plain), Reach::kMaybe);
  const FabricHint blank{LinkLayer::kInfiniBand, "", 0};
  EXPECT_EQ(ReachOf(blank, blank), Reach::kMaybe);
  EXPECT_EQ(ReachOf(plain, other), Reach::kUnlikely);
  EXPECT_EQ(ReachOf(other, other), Reach::kLikely);
  EXPECT_EQ(ReachOf(plain, ethernet), Reach::kNo);
  EXPECT_EQ(ReachOf(ethernet, ethernet), Reach::kMaybe);
  const Topology node = Fixture("connectx7-two-fabrics");
  EXPECT_EQ(ReachOf(HintOf(node.ports[0]), HintOf(node.ports[3])), Reach::kLikely);
  EXPECT_EQ(ReachOf(HintOf(node.ports[0]), HintOf(node.ports[4])), Reach::kNo);
}

}  // namespace
}  // namespace kvxfer
