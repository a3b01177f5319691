// Which ports the verbs backend takes, by what the user calls them; and which P_Key.

#include "src/backends/verbs/port_choice.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <string>
#include <vector>

#include "src/backends/verbs/port.h"
#include "src/core/topology/port_selector.h"
#include "src/transport/host/topology_sysfs.h"
#include "tests/support/status_macros.h"
#include "tests/support/verbs_fabric.h"

namespace kvxfer::verbs {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

PciAddress At(std::string_view text) { return *PciAddress::Parse(text); }

// Two cards of one port, with a virtual function of the first; a third card that is down.
Topology Host() {
  Topology topology;
  topology.nodes.push_back({.id = 0});
  const auto add = [&](std::string name, std::string_view pci, std::string netdev,
                       std::string_view subnet) {
    RdmaDevice device{.name = std::move(name)};
    device.pci = At(pci);
    topology.devices.push_back(std::move(device));
    RdmaPort port{.device = topology.devices.size() - 1};
    port.state = PortState::kActive;
    port.link = LinkLayer::kEthernet;
    port.fabric = "eth";
    port.gids.push_back({.index = 3,
                         .bytes = IpSubnet::Parse(subnet)->address,
                         .type = GidType::kRoceV2,
                         .netdev = netdev});
    port.netdevs.push_back(
        {.name = std::move(netdev), .operstate = "up", .subnets = {*IpSubnet::Parse(subnet)}});
    topology.ports.push_back(std::move(port));
  };
  add("mlx5_0", "0000:3c:00.0", "ens60", "10.1.0.0/24");
  add("mlx5_1", "0000:3c:00.2", "ens60v0", "10.1.0.0/24");
  topology.devices.back().physical_function = At("0000:3c:00.0");
  add("mlx5_2", "0000:5e:00.0", "ens94", "10.2.0.0/24");
  return topology;
}

absl::StatusOr<VerbsOptions> Choose(std::vector<std::string> devices,
                                    std::vector<std::string> fabrics = {}) {
  VerbsOptions options;
  options.devices = std::move(devices);
  options.fabrics = std::move(fabrics);
  Topology host = Host();
  return ChoosePorts(options, &host);
}

TEST(VerbsPortChoice, OneOfEachWireWithoutAChoice) {
  ASSERT_OK_AND_ASSIGN(const VerbsOptions all, Choose({}));
  EXPECT_THAT(all.devices, ElementsAre("mlx5_0:1", "mlx5_2:1"));
  EXPECT_TRUE(IsWanted(all, "mlx5_0", 1));
  EXPECT_FALSE(IsWanted(all, "mlx5_1", 1));
  EXPECT_FALSE(IsWanted(all, "mlx5_0", 11));
  // Nothing is known of this host: whatever libibverbs has.
  Topology nothing;
  ASSERT_OK_AND_ASSIGN(const VerbsOptions any, ChoosePorts({}, &nothing));
  EXPECT_THAT(any.devices, IsEmpty());
  EXPECT_TRUE(IsWanted(any, "mlx5_1", 1));
}

// Those of a wire that are down at first do not join the one that is used when they come up.
TEST(VerbsPortChoice, OneOfEachWireWhicheverAreUp) {
  const auto chosen = [](const std::vector<size_t>& down, std::vector<std::string> devices = {},
                         const std::vector<size_t>& no_address = {}) {
    Topology host = Host();
    for (const size_t i : down) host.ports[i].state = PortState::kDown;
    for (const size_t i : no_address) host.ports[i].gids.clear();
    VerbsOptions options;
    options.devices = std::move(devices);
    return ChoosePorts(options, &host)->devices;
  };
  EXPECT_THAT(chosen({1}), ElementsAre("mlx5_0:1", "mlx5_2:1"));
  EXPECT_THAT(chosen({0}), ElementsAre("mlx5_1:1", "mlx5_2:1"));
  EXPECT_THAT(chosen({0, 1, 2}), ElementsAre("mlx5_0:1", "mlx5_2:1"));
  // Where none works now, the one that is set up to.
  EXPECT_THAT(chosen({0, 1}, {}, {0}), ElementsAre("mlx5_1:1", "mlx5_2:1"));
  EXPECT_THAT(chosen({1}, {}, {0}), ElementsAre("mlx5_1:1", "mlx5_2:1"));
  // The user's word counts before that.
  EXPECT_THAT(chosen({1}, {"mlx5_*", "mlx5_1"}), ElementsAre("mlx5_1:1", "mlx5_2:1"));
}

// Not even their fabric is known before a subnet manager has seen them.
TEST(VerbsPortChoice, VirtualFunctionsWithoutAnAddressAreOfTheirCardsWire) {
  Topology host = Host();
  for (RdmaPort& port : host.ports) {
    port.link = LinkLayer::kInfiniBand;
    port.lid = 7;
    port.fabric = FabricHintOf(port);
  }
  host.ports[1].state = PortState::kDown;
  host.ports[1].gids.clear();
  host.ports[1].lid = 0;
  host.ports[1].fabric = FabricHintOf(host.ports[1]);
  ASSERT_NE(host.ports[0].fabric, host.ports[1].fabric);
  EXPECT_THAT(ChoosePorts({}, &host)->devices, ElementsAre("mlx5_0:1", "mlx5_2:1"));
}

TEST(VerbsPortChoice, ByDeviceNetdevSubnetPciAddressAndFabric) {
  const auto chosen = [](std::vector<std::string> devices) {
    const auto options = Choose(std::move(devices), {"red=ens60,ens60v0", "blue=5e:00"});
    return options.ok() ? options->devices : std::vector<std::string>{options.status().ToString()};
  };
  EXPECT_THAT(chosen({"mlx5_2"}), ElementsAre("mlx5_2:1"));
  EXPECT_THAT(chosen({"mlx5_2:1"}), ElementsAre("mlx5_2:1"));
  EXPECT_THAT(chosen({"ens94"}), ElementsAre("mlx5_2:1"));
  EXPECT_THAT(chosen({"10.2.0.0/24"}), ElementsAre("mlx5_2:1"));
  EXPECT_THAT(chosen({"5e:00"}), ElementsAre("mlx5_2:1"));
  EXPECT_THAT(chosen({"fabric:blue"}), ElementsAre("mlx5_2:1"));
  EXPECT_THAT(chosen({"^mlx5_2"}), ElementsAre("mlx5_0:1"));
  EXPECT_THAT(chosen({"mlx5_2", "mlx5_0"}), ElementsAre("mlx5_0:1", "mlx5_2:1"));
  // A virtual function that is named is taken instead of its card.
  EXPECT_THAT(chosen({"mlx5_1"}), ElementsAre("mlx5_1:1"));
}

TEST(VerbsPortChoice, FabricsHaveTheirPorts) {
  // As a list that was split at its commas.
  ASSERT_OK_AND_ASSIGN(const VerbsOptions named,
                       Choose({}, {"red=mlx5_0", "ens60v0", "blue=ens94"}));
  EXPECT_EQ(FabricOf(named, "mlx5_0", 1), "red");
  EXPECT_EQ(FabricOf(named, "mlx5_2", 1), "blue");
  EXPECT_EQ(FabricOf(named, "mlx5_2", 2), "");
}

TEST(VerbsPortChoice, WhatIsNotThereIsToldWithWhatIs) {
  struct Case {
    std::vector<std::string> devices;
    std::vector<std::string> fabrics;
    const char* option;
  };
  for (const Case& one : {Case{{"mlx5_7"}, {}, "KVXFER_VERBS_DEVICES"},
                          Case{{}, {"red=mlx5_7"}, "KVXFER_VERBS_FABRICS"}}) {
    const absl::StatusOr<VerbsOptions> none = Choose(one.devices, one.fabrics);
    EXPECT_EQ(none.status().code(), absl::StatusCode::kNotFound);
    const std::string why(none.status().message());
    EXPECT_THAT(why, HasSubstr(one.option));
    EXPECT_THAT(why, HasSubstr("mlx5_7"));
    EXPECT_THAT(why, HasSubstr("mlx5_2:1 (ens94, 0000:5e:00.0"));
  }
  EXPECT_EQ(Choose({}, {"mlx5_0"}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(VerbsPortChoice, WhatIsNamedHasToBeInUse) {
  const auto check = [](const std::vector<std::string>& asked,
                        const std::vector<std::string>& used) {
    const VerbsOptions chosen = *Choose(asked);
    return CheckNamed(asked, chosen, Host(), used, absl::UnavailableError("its link is down"));
  };
  EXPECT_OK(check({"mlx5_0", "mlx5_2"}, {"mlx5_0:1", "mlx5_2:1"}));
  const absl::Status absent = check({"mlx5_0", "ens94"}, {"mlx5_0:1"});
  EXPECT_EQ(absent.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(absent.message()), HasSubstr("ens94"));
  EXPECT_THAT(std::string(absent.message()), HasSubstr("its link is down"));
  // Patterns take what there is; of a card and its virtual function one is enough.
  EXPECT_OK(check({"mlx5_*"}, {"mlx5_0:1"}));
  EXPECT_OK(check({"mlx5_0", "mlx5_1"}, {"mlx5_0:1"}));
}

TEST(VerbsPortChoice, DevicesThatSysfsDoesNotShowAreAsked) {
  testing::VerbsFabric fabric({{.name = "pod0", .ports = {testing::RocePort(1, 7)}},
                               {.name = "pod1", .ports = {testing::InfinibandPort(3)}}});
  const auto ibv = fabric.MakeIbv();
  Topology topology = Host();
  AddMissing(*ibv, {"mlx5_0", "pod0", "pod1", "gone"}, topology);
  EXPECT_EQ(topology.devices.size(), 5u);
  EXPECT_EQ(fabric.live_objects(), 0u);
  VerbsOptions options;
  options.devices = {"10.77.1.7", "fabric:ib/*"};
  ASSERT_OK_AND_ASSIGN(const VerbsOptions chosen, ChoosePorts(options, &topology));
  EXPECT_THAT(chosen.devices, ElementsAre("pod0:1", "pod1:1"));
}

TEST(VerbsPortChoice, FullMembershipOfAPartitionComesFirst) {
  const auto index_of = [](std::vector<uint16_t> pkeys, uint32_t wanted) {
    testing::FabricDevice device{.name = "d", .ports = {testing::InfinibandPort(3)}};
    device.ports[0].pkeys = std::move(pkeys);
    testing::VerbsFabric fabric({device});
    const auto ibv = fabric.MakeIbv();
    ibv_context* const context = ibv->Open("d");
    VerbsOptions options;
    options.p_key = wanted;
    const absl::StatusOr<LocalPort> port = ReadPort(*ibv, context, "d", 1, options);
    ibv->Close(context);
    return port.ok() && port->why.ok() ? static_cast<int>(port->pkey_index) : -1;
  };
  EXPECT_EQ(index_of({0x7fff, 0x8001, 0xffff}, 0xffff), 2);
  EXPECT_EQ(index_of({0x7fff, 0x8001}, 0xffff), 0);
  EXPECT_EQ(index_of({0xffff, 0x0001, 0x8001}, 0x0001), 2);
  EXPECT_EQ(index_of({0xffff}, 0x8001), -1);
}

}  // namespace
}  // namespace kvxfer::verbs
