// Ports and devices of verbs that are of no use, yet or any more: the others are, meanwhile.

#include <gmock/gmock.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "src/backends/verbs/backend.h"
#include "src/core/base/host_identity.h"
#include "tests/conformance/verbs_device.h"

namespace kvxfer::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;

class VerbsPorts : public VerbsDevice {
 protected:
  // Connected and authorised, with memory at both sides; not every rail comes up.
  void StartWithout() {
    pair_ = BackendPair::Make(GetParam(), /*authorize=*/false);
    ASSERT_NE(pair_, nullptr);
    in().endpoint->Authorize();
    ASSERT_NO_FATAL_FAILURE(Prepare(64 * kOp));
    ASSERT_TRUE(pair_->Until([&] { return RailsUp() > 0; }));
  }
  size_t RailsUp() {
    size_t up = 0;
    for (uint32_t i = 0; i < out().rails(); ++i) up += out().rail_up(i);
    return up;
  }
  bool AllUp() { return RailsUp() == out().rails(); }
  // The rails over that device, of either side, that are up.
  size_t UpOver(const std::string& device) {
    size_t up = 0;
    for (uint32_t i = 0; i < out().rails(); ++i) {
      const bool over = out().endpoint->Describe().rails[i].name.find(device) != std::string::npos;
      up += over && out().rail_up(i);
    }
    return up;
  }
  // A write over each rail that is up arrives.
  void ExpectThoseThatAreUpWork() {
    for (uint32_t rail = 0; rail < out().rails(); ++rail) {
      if (!out().rail_up(rail)) continue;
      const size_t before = in().immediates.size();
      const Op op = out().Make(OpKind::kWrite, 7, {RunAt(rail * kOp, kOp)}, 1, rail);
      ASSERT_TRUE(pair_->PostAll(std::span(&op, 1)));
      ASSERT_TRUE(Ended());
      EXPECT_OK(out().ended[op.id]);
      ASSERT_TRUE(Arrived(before + 1));
    }
  }
  std::string Path() { return out().path(); }
};

INSTANTIATE_TEST_SUITE_P(InMemory, VerbsPorts, ::testing::Values(VerbsDeviceFlavour()),
                         FlavourName);

TEST_P(VerbsPorts, OneThatIsDownAtFirstIsUsedOnceItIsUp) {
  for (const char* device : {"i1", "t1"}) {
    SCOPED_TRACE(device);
    std::vector<FabricDevice> devices = Devices(2, 2);
    std::ranges::find(devices, device, &FabricDevice::name)->ports[0].mtu = ibv_mtu{};
    Use(devices);
    fabric_->SetPort(device, 1, false);
    ASSERT_NO_FATAL_FAILURE(StartWithout());
    pair_->Idle(milliseconds(100));
    EXPECT_EQ(UpOver(device), 0u);
    EXPECT_THAT(Path(), HasSubstr(std::string(device) + ":1: the port is not active"));
    ASSERT_NO_FATAL_FAILURE(ExpectThoseThatAreUpWork());
    fabric_->SetPort(device, 1, true);
    const Time up = Now();
    ASSERT_TRUE(pair_->Until([&] { return UpOver(device) > 0; }));
    EXPECT_LT(Now() - up, Bound(seconds(1)));
    ASSERT_TRUE(pair_->Until([&] { return AllUp(); }));
    ASSERT_NO_FATAL_FAILURE(ExpectAllRailsWork());
    End();
  }
}

TEST_P(VerbsPorts, WithoutAnyThatIsUpThereIsNoBackend) {
  Use(Devices(2, 1));
  fabric_->SetPort("i0", 1, false);
  fabric_->SetPort("i1", 1, false);
  EXPECT_TRUE(Fails(Party::Make(GetParam(), "initiator"), absl::StatusCode::kUnavailable,
                    {"no port is active", "i0:1", "i1:1", "ip link set"}));
}

// Of one device, and of two: expect the sibling to be used and the bad one to be named.
TEST_P(VerbsPorts, OneOfNoUseIsNamedAndTheOthersAreUsed) {
  for (const bool own_device : {true, false}) {
    for (const bool local : {true, false}) {
      for (const bool gid : {true, false}) {
        SCOPED_TRACE(std::to_string(own_device) + std::to_string(local) + std::to_string(gid));
        std::vector<FabricDevice> devices =
            Devices(own_device && local ? 2 : 1, own_device && !local ? 2 : 1);
        const size_t of = local ? 0 : devices.size() - (own_device ? 2 : 1);
        if (!own_device) devices[of].ports.push_back(RocePort(1, 99));
        FabricPort& bad = own_device ? devices[of + 1].ports[0] : devices[of].ports[1];
        const std::string name = std::string(local ? "i" : "t") + (own_device ? "1:1" : "0:2");
        verbs::VerbsOptions options;
        if (gid) {
          options.gid_index = 5;
          bad.gids.pop_back();
        } else {
          bad.pkeys = {0x8001};
        }
        Use(devices, options);
        ASSERT_NO_FATAL_FAILURE(StartWithout());
        pair_->Idle(milliseconds(100));
        ASSERT_NO_FATAL_FAILURE(ExpectThoseThatAreUpWork());
        EXPECT_EQ(UpOver(name), 0u);
        EXPECT_THAT(Path(), HasSubstr(name + (gid ? ": GID index 5" : ": P_Key 0xffff")));
        End();
      }
    }
  }
}

// Rails whose every pair was tried in vain try them all again, and not the last one only.
TEST_P(VerbsPorts, PairsThatWereTriedInVainAreTriedAgainInTurn) {
  const std::pair<const char*, const char*> mended[] = {{"t1", "i0:1 → t1:1"},
                                                        {"i1", "i1:1 → t0:1"}};
  for (const auto& [device, path] : mended) {
    SCOPED_TRACE(path);
    Use({DeviceOf("initiator", "i0", 1, 10, 0), DeviceOf("initiator", "i1", 1, 11, 5),
         DeviceOf("target", "t0", 1, 50, 0), DeviceOf("target", "t1", 1, 51, 6)});
    ASSERT_NO_FATAL_FAILURE(StartWithout());
    // Some rounds, each of three pairs.
    pair_->Idle(milliseconds(1200));
    EXPECT_EQ(RailsUp(), 1u);
    const std::string tried = Path();
    size_t named = 0;
    for (size_t at = 0; (at = tried.find("does not answer", at)) != std::string::npos; ++at) {
      ++named;
    }
    EXPECT_LE(named, 3u) << tried;
    fabric_->SetNetwork(device, 1, 0);
    ASSERT_TRUE(pair_->Until([&] { return AllUp(); }));
    EXPECT_THAT(Path(), HasSubstr(path));
    ASSERT_NO_FATAL_FAILURE(ExpectAllRailsWork());
    End();
  }
}

// A device that failed is left out of what is done afterwards.
TEST_P(VerbsPorts, AFailedDeviceRefusesNothingToTheOthers) {
  for (const char* device : {"i1", "t1"}) {
    SCOPED_TRACE(device);
    Use(Devices(2, 2));
    ASSERT_NO_FATAL_FAILURE(Start(64 * kOp));
    fabric_->Raise(device, IBV_EVENT_DEVICE_FATAL, 0);
    ASSERT_TRUE(DownIs(1));
    ASSERT_NO_FATAL_FAILURE(FenceAndReopen(out().rails_down.front()));
    // Expect memory to be registered and connections to be made as before, both ways.
    const RemoteKey* const key = pair_->Import(*remote_);
    ASSERT_NE(key, nullptr);
    ASSERT_OK_AND_ASSIGN(TestRegion * more, pair_->target().Register(64 * kOp));
    ASSERT_OK(pair_->initiator().Register(64 * kOp));
    key_ = pair_->Import(*more);
    ASSERT_NE(key_, nullptr);
    remote_ = more;
    ASSERT_NO_FATAL_FAILURE(ExpectThoseThatAreUpWork());
    ASSERT_OK_AND_ASSIGN(TestLink * again, pair_->initiator().Connect(pair_->target()));
    ASSERT_TRUE(pair_->Until([&] { return pair_->target().links.size() == 2; }));
    pair_->target().links.back()->endpoint->Authorize();
    ASSERT_TRUE(pair_->Until([&] {
      if (!again->connected) return false;
      for (uint32_t i = 0; i < again->rails(); ++i) {
        if (again->rail_up(i)) return true;
      }
      return false;
    }));
    // Rails may have found other pairs; expect what is known here to be told all the same.
    if (device[0] == 'i') {
      EXPECT_THAT(again->path(), HasSubstr("i1: the device failed"));
    }
    End();
  }
}

// A region that one device does not take is moved over the others; rails over that one are of no
// use while it is there.
TEST_P(VerbsPorts, ARegionThatOneDeviceDoesNotTakeGoesOverTheOthers) {
  for (const bool local : {true, false}) {
    SCOPED_TRACE(local);
    Use(Devices(2, 2));
    ASSERT_NO_FATAL_FAILURE(Start(64 * kOp));
    const std::string device = local ? "i1" : "t1";
    fabric_->FailCall(Call::kRegMr, 2, ENOMEM);
    ASSERT_OK_AND_ASSIGN(TestRegion * region,
                         (local ? pair_->initiator() : pair_->target()).Register(64 * kOp));
    if (!local) {
      key_ = pair_->Import(*region);
      ASSERT_NE(key_, nullptr);
    }
    (local ? local_ : remote_) = region;
    ASSERT_TRUE(DownIs(1));
    ASSERT_NO_FATAL_FAILURE(FenceAndReopen(out().rails_down.front()));
    pair_->Idle(milliseconds(100));
    EXPECT_EQ(UpOver(device), 0u);
    EXPECT_EQ(RailsUp(), 1u);
    EXPECT_THAT(Path(), HasSubstr("is not registered with"));
    EXPECT_THAT(Path(), HasSubstr(local ? "ulimit -l" : "take the metadata again"));
    ASSERT_NO_FATAL_FAILURE(ExpectThoseThatAreUpWork());
    if (local) {
      region->registration.reset();
    } else {
      out().keys.pop_back();
    }
    ASSERT_TRUE(pair_->Until([&] { return AllUp(); }));
    EXPECT_EQ(UpOver(device), 1u);
    End();
  }
}

TEST_P(VerbsPorts, ARegionThatNoDeviceTakesIsRefusedWithEveryCause) {
  Use(Devices(2, 1));
  ASSERT_NO_FATAL_FAILURE(Start(64 * kOp));
  fabric_->FailCall(Call::kRegMr, 1, ENOMEM);
  fabric_->FailCall(Call::kRegMr, 2, EFAULT);
  EXPECT_TRUE(Fails(pair_->initiator().Register(kOp), absl::StatusCode::kResourceExhausted,
                    {"with i0", "ulimit -l", "with i1", "freed"}));
  EXPECT_TRUE(AllUp());
}

// Devices may gather less for reads than for writes.
TEST_P(VerbsPorts, ReadsScatterNoMoreThanTheDeviceDoes) {
  std::vector<FabricDevice> devices = Devices(1, 1);
  devices[0].max_sge_rd = 1;
  Use(devices);
  ASSERT_NO_FATAL_FAILURE(Start(64 * kOp));
  Pattern(3).Fill(remote_->bytes());
  const Op op = out().Make(OpKind::kRead, 1, {RunAt(0, 0, kOp), RunAt(2 * kOp, kOp, kOp)});
  ASSERT_TRUE(pair_->PostAll(std::span(&op, 1)));
  ASSERT_TRUE(Ended());
  EXPECT_OK(out().ended[op.id]);
  EXPECT_TRUE(out().rails_down.empty());
}

// Some calls return their error and leave errno as it was.
TEST_P(VerbsPorts, ACallThatReturnsItsErrorIsTakenAtItsWord) {
  verbs::VerbsOptions options;
  options.receive_depth = 64;
  Use(Devices(1, 1), options);
  // The initiator hears of it before it finds that nothing is answered.
  fabric_->SetRetryTime(kAmple);
  ASSERT_NO_FATAL_FAILURE(Start(64 * kOp));
  fabric_->FailCall(Call::kPostSrqRecv, 1, ENOMEM);
  errno = EPERM;
  ASSERT_TRUE(pair_->PostAll(Stream(OpKind::kWrite, 1, 32, 8)));
  ASSERT_TRUE(DownIs(1));
  EXPECT_THAT(Path(), HasSubstr("ibv_post_srq_recv: Cannot allocate memory"));
  EXPECT_THAT(Path(), Not(HasSubstr("not permitted")));
}

// A work request has 16 bits for whose it is.
TEST_P(VerbsPorts, NoMoreRailsThanAWorkRequestCanName) {
  Use(Devices(1, 1));
  AgentOptions agent = OptionsFor(GetParam(), "initiator");
  const BackendContext context{
      .options = agent, .incarnation = Incarnation::Random(), .host = ReadHostIdentity()};
  ASSERT_OK_AND_ASSIGN(std::unique_ptr<verbs::VerbsBackend> backend,
                       verbs::VerbsBackend::Create(context, fabric_->MakeIbv("initiator")));
  uint64_t first = 0;
  for (int i = 0; i < 65536; ++i) ASSERT_TRUE(backend->TakeSlot(nullptr, first).has_value());
  EXPECT_FALSE(backend->TakeSlot(nullptr, first).has_value());
  backend->FreeSlot(7, 100);
  EXPECT_EQ(backend->TakeSlot(nullptr, first), std::optional<uint16_t>(7));
  EXPECT_EQ(first, 100u);
}

}  // namespace
}  // namespace kvxfer::testing
