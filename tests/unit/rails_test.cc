// Which ports serve which memory, and which of them the user wants.

#include "src/core/rails.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "src/cli/topology_source.h"
#include "src/core/port_selector.h"

namespace kvxfer {
namespace {

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

TEST(PlanRails, NearerNodesComeFirst) {
  Topology host;
  // Four nodes in two sockets: 0 and 1, 2 and 3.
  for (int id = 0; id < 4; ++id) host.nodes.push_back({.id = id});
  host.nodes[0].distances = {10, 12, 32, 32};
  for (const int node : {3, 1, 2, 0}) {
    host.devices.push_back({.name = "nic" + std::to_string(node), .numa_node = node});
    host.ports.push_back({.device = host.devices.size() - 1,
                          .state = PortState::kActive,
                          .link = LinkLayer::kEfa,
                          .fabric = "efa"});
  }
  std::vector<std::string> order;
  for (const PlannedRail& rail : PlanRails(host, Node(0), PortSelector()).rails) {
    order.push_back(host.DeviceOf(host.ports[rail.port]).name);
  }
  EXPECT_THAT(order, ElementsAre("nic0", "nic1", "nic3", "nic2"));
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
  eth.gids.push_back({.type = GidType::kRoceV1});
  EXPECT_THAT(why(eth), HasSubstr("RoCE v2"));
  eth.gids.push_back(v2);
  EXPECT_EQ(why(eth), "");
  host.devices[0].physical_function = PciAddress{};
  ib.state = PortState::kActive;
  EXPECT_THAT(why(ib), HasSubstr("port_guid"));
}

TEST(PortSelector, TakesEveryKindOfName) {
  const Topology node = Fixture("connectx7-two-fabrics");
  EXPECT_THAT(Selected(node, "mlx5_1"), ElementsAre("mlx5_1"));
  EXPECT_THAT(Selected(node, "mlx5_[45]"), ElementsAre("mlx5_4", "mlx5_5"));
  EXPECT_THAT(Selected(node, "mlx5_0:1"), ElementsAre("mlx5_0"));
  EXPECT_THAT(Selected(node, "ibp60s0,ibp222s0"), ElementsAre("mlx5_0", "mlx5_5"));
  EXPECT_THAT(Selected(node, "fabric:Fabric2"), ElementsAre("mlx5_4", "mlx5_5"));
  EXPECT_THAT(Selected(node, "Fabric2, ^ibp188s0"), ElementsAre("mlx5_5"));
  EXPECT_THAT(Selected(node, "pci:3c:00.0"), ElementsAre("mlx5_0"));
  EXPECT_THAT(Selected(node, "0000:3c:00.3"), ElementsAre("mlx5_8"));
  // Expect the whole of a device where no function is given: 3c:00.0 to 3c:00.7.
  EXPECT_EQ(Selected(node, "3c:00").size(), 8u);
  EXPECT_EQ(Selected(node, "subnet:fe80::/64").size(), 38u);
  EXPECT_EQ(Selected(node, "").size(), 38u);
  EXPECT_EQ(Selected(node, "^mlx5_[6-9],^mlx5_??").size(), 6u);
  const Topology pod = Fixture("connectx7-pod");
  EXPECT_THAT(Selected(pod, "100.100.100.0/24"), ElementsAre("mlx5_16"));
  EXPECT_THAT(Selected(pod, "100.100.101.7"), ElementsAre("mlx5_21"));
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
