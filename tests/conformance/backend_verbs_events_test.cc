// What devices report by themselves: what is said to be lost is given up and made anew, what stays
// as it was goes on undisturbed.

#include "tests/conformance/verbs_device.h"

namespace kvxfer::testing {
namespace {

using std::chrono::milliseconds;

std::string DeviceName(char side, uint32_t rail) { return side + std::to_string(rail); }

class VerbsEvents : public VerbsDevice {
 protected:
  void Begin(std::vector<FabricDevice> devices, const verbs::VerbsOptions& options = {}) {
    Use(std::move(devices), options);
    ASSERT_NO_FATAL_FAILURE(Start(64 * kOp));
  }
  // Rail `rail` is lost, and nothing else, and it comes back as soon as it may.
  void ExpectLostAndBack(uint32_t rail, size_t lost_before = 0) {
    ASSERT_TRUE(DownIs(lost_before + 1)) << out().why;
    EXPECT_EQ(out().rails_down.back(), rail);
    ASSERT_NO_FATAL_FAILURE(FenceAndReopen(rail));
    ASSERT_TRUE(pair_->Until([&] { return out().rail_up(rail); })) << out().path();
    ExpectAllRailsWork();
  }
  void ExpectUndisturbed() {
    pair_->Idle(milliseconds(10));
    EXPECT_TRUE(out().rails_down.empty()) << out().path();
    ExpectAllRailsWork();
  }
};

INSTANTIATE_TEST_SUITE_P(InMemory, VerbsEvents, ::testing::Values(VerbsDeviceFlavour()),
                         FlavourName);

TEST_P(VerbsEvents, APortThatIsSaidToBeDownIsGivenUp) {
  ASSERT_NO_FATAL_FAILURE(Begin(Devices(2, 2)));
  size_t lost = 0;
  for (const char side : {'i', 't'}) {
    for (const uint32_t rail : {0u, 1u}) {
      SCOPED_TRACE(DeviceName(side, rail));
      fabric_->Raise(DeviceName(side, rail), IBV_EVENT_PORT_ERR, 1);
      ASSERT_NO_FATAL_FAILURE(ExpectLostAndBack(rail, lost++));
    }
  }
}

// Tables and roles that change elsewhere, and words that are none of ours.
TEST_P(VerbsEvents, WhatChangesNothingDisturbsNothing) {
  ASSERT_NO_FATAL_FAILURE(Begin(Devices(2, 2)));
  for (const ibv_event_type type :
       {IBV_EVENT_PORT_ACTIVE, IBV_EVENT_SM_CHANGE, IBV_EVENT_CLIENT_REREGISTER,
        IBV_EVENT_LID_CHANGE, IBV_EVENT_GID_CHANGE, IBV_EVENT_PKEY_CHANGE,
        IBV_EVENT_SRQ_LIMIT_REACHED}) {
    SCOPED_TRACE(static_cast<int>(type));
    for (const char* device : {"i0", "t0", "i1", "t1"}) fabric_->Raise(device, type, 1);
    ASSERT_NO_FATAL_FAILURE(ExpectUndisturbed());
  }
}

// An interface gets another address, which is looked up before the one that is in use.
TEST_P(VerbsEvents, AGidThatIsStillThereIsKept) {
  ASSERT_NO_FATAL_FAILURE(Begin(Devices(1, 1)));
  for (const char* device : {"i0", "t0"}) {
    fabric_->Change(device, 1, [](FabricPort& port) {
      FabricGid added = RocePort(7, 7).gids.back();
      added.index = 3;
      port.gids.insert(port.gids.begin() + 2, added);
    });
    fabric_->Raise(device, IBV_EVENT_GID_CHANGE, 1);
    ASSERT_NO_FATAL_FAILURE(ExpectUndisturbed());
  }
}

TEST_P(VerbsEvents, AGidThatIsGoneTakesTheRailToAnother) {
  ASSERT_NO_FATAL_FAILURE(Begin(Devices(2, 2)));
  size_t lost = 0;
  for (const char side : {'i', 't'}) {
    const std::string device = DeviceName(side, 1);
    fabric_->Change(device, 1, [](FabricPort& port) { ++port.gids.back().gid.raw[15]; });
    fabric_->Raise(device, IBV_EVENT_GID_CHANGE, 1);
    ASSERT_NO_FATAL_FAILURE(ExpectLostAndBack(1, lost++));
  }
}

TEST_P(VerbsEvents, APartitionIsKeptInItsPlaceAndFollowedToAnother) {
  std::vector<FabricDevice> devices = Devices(1, 1);
  for (FabricDevice& device : devices) device.ports[0].pkeys = {0x8001, 0xffff};
  ASSERT_NO_FATAL_FAILURE(Begin(devices));
  size_t lost = 0;
  for (const char* device : {"i0", "t0"}) {
    fabric_->Change(device, 1, [](FabricPort& port) { port.pkeys = {0xffff, 0xffff}; });
    fabric_->Raise(device, IBV_EVENT_PKEY_CHANGE, 1);
    pair_->Idle(milliseconds(10));
    EXPECT_EQ(out().rails_down.size(), lost);
    fabric_->Change(device, 1, [](FabricPort& port) { port.pkeys = {0xffff, 0x8001}; });
    fabric_->Raise(device, IBV_EVENT_PKEY_CHANGE, 1);
    ASSERT_NO_FATAL_FAILURE(ExpectLostAndBack(0, lost++));
  }
}

TEST_P(VerbsEvents, ALidThatChangesIsFollowed) {
  std::vector<FabricDevice> devices = Devices(1, 1);
  devices[0].ports = {InfinibandPort(10)};
  devices[1].ports = {InfinibandPort(20)};
  ASSERT_NO_FATAL_FAILURE(Begin(devices));
  size_t lost = 0;
  for (const char* device : {"i0", "t0"}) {
    fabric_->Change(device, 1, [](FabricPort& port) { ++port.lid; });
    fabric_->Raise(device, IBV_EVENT_LID_CHANGE, 1);
    ASSERT_NO_FATAL_FAILURE(ExpectLostAndBack(0, lost++));
  }
}

TEST_P(VerbsEvents, QueuePairsThatFailAreMadeAnew) {
  ASSERT_NO_FATAL_FAILURE(Begin(Devices(2, 2)));
  size_t lost = 0;
  for (const ibv_event_type type :
       {IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_QP_ACCESS_ERR}) {
    for (const char side : {'i', 't'}) {
      SCOPED_TRACE(DeviceName(side, 1) + " " + std::to_string(type));
      fabric_->Raise(DeviceName(side, 1), type);
      ASSERT_NO_FATAL_FAILURE(ExpectLostAndBack(1, lost++));
    }
  }
}

// A device that is of no use any more takes its rails, and no others.
TEST_P(VerbsEvents, DevicesThatFailTakeTheirRailsAlone) {
  for (const ibv_event_type type : {IBV_EVENT_DEVICE_FATAL, IBV_EVENT_CQ_ERR, IBV_EVENT_SRQ_ERR}) {
    for (const char side : {'i', 't'}) {
      SCOPED_TRACE(DeviceName(side, 0) + " " + std::to_string(type));
      ASSERT_NO_FATAL_FAILURE(Begin(Devices(2, 2)));
      fabric_->Raise(DeviceName(side, 0), type);
      ASSERT_TRUE(DownIs(1)) << out().why;
      EXPECT_EQ(out().rails_down, std::vector<uint32_t>{0});
      const Op op = out().Make(OpKind::kWrite, 1, {RunAt(0, kOp)}, 77, 1);
      ASSERT_TRUE(pair_->PostAll(std::span(&op, 1)));
      ASSERT_TRUE(Ended());
      ASSERT_TRUE(Arrived(1));
      EXPECT_EQ(out().failed(), 0u);
      End();
    }
  }
}

// A queue pair of the target that ends may hold a receive, which it gives back a little later.
TEST_P(VerbsEvents, ReceivesThatQueuePairsHoldAreGivenBack) {
  verbs::VerbsOptions options;
  options.receive_depth = 64;
  ASSERT_NO_FATAL_FAILURE(Begin(Devices(1, 1), options));
  fabric_->KeepReceives(milliseconds(1));
  for (size_t lost = 0; lost < 80; ++lost) {
    fabric_->Raise("t0", IBV_EVENT_PORT_ERR, 1);
    ASSERT_NO_FATAL_FAILURE(ExpectLostAndBack(0, lost));
  }
  EXPECT_EQ(fabric_->not_ready(), 0u);
}

// A switch fails between two ports, of which neither knows.
TEST_P(VerbsEvents, ANetworkThatPartsIsLeftAndComeBackTo) {
  ASSERT_NO_FATAL_FAILURE(Begin(Devices(2, 2)));
  fabric_->SetNetwork("t1", 1, 9);
  const std::vector<Op> ops = Stream(OpKind::kWrite, 7, 8, kOp);
  ASSERT_TRUE(pair_->PostAll(ops));
  ASSERT_TRUE(Ended());
  ASSERT_TRUE(DownIs(1));
  EXPECT_EQ(out().rails_down.back(), 1u);
  for (const Op& op : ops) EXPECT_EQ(out().ended[op.id].ok(), op.rail == 0) << out().ended[op.id];
  FenceAndReopen(1);
  pair_->Idle(milliseconds(150));
  EXPECT_FALSE(out().rail_up(1));
  fabric_->SetNetwork("t1", 1, 0);
  ASSERT_TRUE(pair_->Until([&] { return out().rail_up(1); }));
  ExpectAllRailsWork();
}

}  // namespace
}  // namespace kvxfer::testing
