// Queue pairs of verbs that take long to be made, and those that their device does not destroy.

#include <gmock/gmock.h>

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include "tests/conformance/verbs_device.h"
#include "tests/support/agents.h"
#include "tests/support/blocks.h"
#include "tests/support/machine_delay.h"

namespace kvxfer::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// While the kernel looks for the owner of an address.
class VerbsSlowAddress : public VerbsDevice {
 protected:
  static constexpr Duration kLookUp = seconds(1);

  void TearDown() override {
    other_.reset();
    VerbsDevice::TearDown();
  }

  // A party with a device of its own, whose address is looked for in vain.
  void MakeOther(const std::string& device = "o0") {
    auto made = Party::Make(GetParam(), "other");
    ASSERT_OK(made);
    other_ = *std::move(made);
    fabric_->SetLookUp(device, 1, kLookUp, EHOSTUNREACH);
  }
  static std::vector<FabricDevice> DevicesOfThree(int others = 1) {
    std::vector<FabricDevice> devices = Devices(1, 1);
    for (int i = 0; i < others; ++i) {
      devices.push_back(
          DeviceOf("other", "o" + std::to_string(i), 1, static_cast<uint8_t>(90 + i)));
    }
    return devices;
  }
  bool TurnUntil(const std::function<bool()>& done, Duration limit = kAmple) {
    return Eventually(limit, [&] {
      pair_->Turn();
      if (other_ != nullptr) {
        other_->Turn();
        for (auto& link : other_->links) Authorize(*link);
      }
      for (auto& link : pair_->target().links) Authorize(*link);
      return done();
    });
  }
  void Authorize(TestLink& link) {
    if (!link.down) link.endpoint->Authorize();
  }
  // Expect that what is posted meanwhile arrives as if nothing else were going on.
  void ExpectWritesAreQuick() {
    Duration longest{};
    for (int i = 0; i < Scaled(100); ++i) {
      const size_t before = in().immediates.size();
      const MachineDelay machine;
      const Time begin = Now();
      ASSERT_TRUE(pair_->PostAll(Stream(OpKind::kWrite, 7, 1, kOp)));
      ASSERT_TRUE(Arrived(before + 1));
      longest = std::max(longest, Now() - begin - machine.so_far());
    }
    EXPECT_LT(longest, Bound(milliseconds(100)));
  }

  std::unique_ptr<Party> other_;
};

// Without control pairs, so that every queue pair is a rail's.
INSTANTIATE_TEST_SUITE_P(InMemory, VerbsSlowAddress, ::testing::Values(VerbsStreamFlavour()),
                         FlavourName);

TEST_P(VerbsSlowAddress, HoldsUpNoTransferToAnotherPeer) {
  Use(DevicesOfThree());
  ASSERT_NO_FATAL_FAILURE(Start(64 * kOp));
  ASSERT_NO_FATAL_FAILURE(MakeOther());
  // At the side that connects.
  ASSERT_OK_AND_ASSIGN(TestLink * link, pair_->initiator().Connect(*other_));
  ASSERT_TRUE(TurnUntil([&] { return fabric_->look_ups() == 1; }));
  const MachineDelay machine;
  const Time begin = Now();
  ASSERT_NO_FATAL_FAILURE(ExpectWritesAreQuick());
  // Expect its end not to wait either.
  link->endpoint->Shutdown(absl::CancelledError("enough"));
  ASSERT_TRUE(TurnUntil([&] { return link->down; }));
  EXPECT_LT(Now() - begin, Bound(kLookUp) + machine.so_far());
  ASSERT_TRUE(TurnUntil([&] { return fabric_->look_ups() == 0; }));
  // At the side that accepts.
  ASSERT_OK_AND_ASSIGN(TestLink * back, other_->Connect(pair_->target()));
  ASSERT_TRUE(TurnUntil([&] { return fabric_->look_ups() == 1; }));
  ASSERT_NO_FATAL_FAILURE(ExpectWritesAreQuick());
  ASSERT_TRUE(TurnUntil([&] { return back->down; }));
  EXPECT_TRUE(Fails(back->why, absl::StatusCode::kUnavailable,
                    {"no pair of ports passes data", "ibv_modify_qp", "to RTR"}));
}

TEST_P(VerbsSlowAddress, HoldsUpNoOtherRail) {
  Use(Devices(2, 2));
  fabric_->SetLookUp("t1", 1, kLookUp);
  pair_ = BackendPair::Make(GetParam(), /*authorize=*/false);
  ASSERT_NE(pair_, nullptr);
  const MachineDelay machine;
  const Time begin = Now();
  ASSERT_TRUE(TurnUntil([&] { return out().rail_up(0); }));
  EXPECT_LT(Now() - begin, Bound(kLookUp / 2) + machine.so_far());
  EXPECT_FALSE(out().rail_up(1));
  ASSERT_NO_FATAL_FAILURE(Prepare(64 * kOp));
  Pattern(1).Fill(local_->bytes());
  const Op op = out().Make(OpKind::kWrite, 7, {RunAt(0, kOp)}, 1, 0);
  ASSERT_TRUE(pair_->PostAll(std::span(&op, 1)));
  ASSERT_TRUE(Arrived(1));
  EXPECT_FALSE(out().rail_up(1));
  // Expect the slow one to be used as well, for in the end it was found.
  ASSERT_TRUE(TurnUntil([&] { return out().rail_up(1); }));
  ASSERT_NO_FATAL_FAILURE(ExpectAllRailsWork());
}

// The target's port gets another address while its end is being made. Expect that the peer is told
// the new one, and neither end has to be made a second time by a peer that tried in vain.
TEST_P(VerbsSlowAddress, AnAddressThatChangesMeanwhileIsFollowed) {
  Use(Devices(1, 1));
  fabric_->SetLookUp("i0", 1, kLookUp / 4);
  pair_ = BackendPair::Make(GetParam(), /*authorize=*/false);
  ASSERT_NE(pair_, nullptr);
  ASSERT_TRUE(TurnUntil([&] { return fabric_->look_ups() > 0; }));
  fabric_->Change("t0", 1, [](FabricPort& port) {
    for (FabricGid& entry : port.gids) ++entry.gid.raw[15];
  });
  fabric_->Raise("t0", IBV_EVENT_GID_CHANGE, 1);
  ASSERT_TRUE(TurnUntil([&] { return out().rail_up(0) || out().down; }));
  ASSERT_FALSE(out().down) << out().why;
  EXPECT_EQ(fabric_->calls(Call::kCreateQp), 3u);  // one here, two there
  ASSERT_NO_FATAL_FAILURE(Prepare(64 * kOp));
  ASSERT_NO_FATAL_FAILURE(ExpectAllRailsWork());
}

// Addresses of dead hosts take long each time: expect that whoever tries them again and again
// leaves threads for those that live.
TEST_P(VerbsSlowAddress, SeveralThatWereSlowBeforeLeaveRoomForOthers) {
  Use(DevicesOfThree(8));
  ASSERT_OK_AND_ASSIGN(std::unique_ptr<Party> a, Party::Make(GetParam(), "initiator"));
  ASSERT_OK_AND_ASSIGN(std::unique_ptr<Party> b, Party::Make(GetParam(), "target"));
  ASSERT_NO_FATAL_FAILURE(MakeOther());
  for (int i = 1; i < 8; ++i) {
    fabric_->SetLookUp("o" + std::to_string(i), 1, kLookUp, EHOSTUNREACH);
  }
  const auto turn = [&](const std::function<bool()>& done) {
    return Eventually(kAmple, [&] {
      for (Party* party : {a.get(), b.get(), other_.get()}) {
        party->Turn();
        for (auto& link : party->links) Authorize(*link);
      }
      return done();
    });
  };
  ASSERT_OK(a->Connect(*other_));
  ASSERT_OK(a->Connect(*other_));
  // Four times a second, two at a time for one link: until all were found to be slow.
  const Time begin = Now();
  ASSERT_TRUE(turn([&] { return Now() - begin > kLookUp * 5; }));
  ASSERT_OK(a->Connect(*other_));
  ASSERT_TRUE(turn([&] { return fabric_->look_ups() == 2; }));
  ASSERT_OK_AND_ASSIGN(TestLink * live, a->Connect(*b));
  const MachineDelay machine;
  const Time live_begin = Now();
  ASSERT_TRUE(turn([&] { return live->connected && live->rail_up(0); }));
  EXPECT_LT(Now() - live_begin, Bound(kLookUp / 2) + machine.so_far());
  a.reset();
  b.reset();
  other_.reset();
}

TEST_P(VerbsSlowAddress, EitherSideMayGoMeanwhile) {
  for (const bool connecting : {true, false}) {
    for (const bool first : {true, false}) {
      SCOPED_TRACE(connecting);
      Use(Devices(1, 1));
      fabric_->SetLookUp(connecting ? "t0" : "i0", 1, milliseconds(200));
      ASSERT_OK_AND_ASSIGN(std::unique_ptr<Party> a, Party::Make(GetParam(), "initiator"));
      ASSERT_OK_AND_ASSIGN(std::unique_ptr<Party> b, Party::Make(GetParam(), "target"));
      ASSERT_OK(a->Connect(*b));
      ASSERT_TRUE(Eventually(kAmple, [&] {
        a->Turn();
        b->Turn();
        for (auto& link : b->links) Authorize(*link);
        return fabric_->look_ups() == 1;
      }));
      (first ? a : b).reset();
      Party& left = first ? *b : *a;
      ASSERT_TRUE(Eventually(kAmple, [&] {
        left.Turn();
        return left.links.empty() || left.links.front()->down;
      }));
      a.reset();
      b.reset();
      End();
    }
  }
}

// A device that does not let go of its queue pairs: nobody says that it is quiet.
class VerbsRefusal : public VerbsDevice {
 protected:
  static constexpr Duration kRefuses = milliseconds(100);

  // Expect `quiet` to stay false until queue pairs can be destroyed again, and then to be true.
  void ExpectOnlyAfter(const std::string& device, const std::function<bool()>& quiet) {
    pair_->Until(quiet, kRefuses);
    EXPECT_FALSE(quiet());
    EXPECT_GT(fabric_->queue_pairs(device), 0u);
    fabric_->RefuseDestroy(device, false);
    EXPECT_TRUE(pair_->Until(quiet));
    EXPECT_EQ(fabric_->queue_pairs(device), 0u);
  }
};

// Without control pairs, so that every queue pair is a rail's.
INSTANTIATE_TEST_SUITE_P(InMemory, VerbsRefusal, ::testing::Values(VerbsStreamFlavour()),
                         FlavourName);

TEST_P(VerbsRefusal, ARailIsFencedOnlyWhenItsEndIsGone) {
  Use(Devices(1, 1));
  ASSERT_NO_FATAL_FAILURE(Start(64 * kOp));
  fabric_->RefuseDestroy("t0", true);
  in().FenceRail(0);
  ExpectOnlyAfter("t0", [&] { return in().fencing_rails.empty(); });
  // Expect the rail to be of use again.
  const Op op = out().Make(OpKind::kWrite, 1, {RunAt(0, kOp)}, 1);
  ASSERT_TRUE(pair_->PostAll(std::span(&op, 1)));
  ASSERT_TRUE(DownIs(1));
  ASSERT_NO_FATAL_FAILURE(FenceAndReopen(0));
  ASSERT_TRUE(pair_->Until([&] { return out().rail_up(0); }));
  ExpectAllRailsWork();
}

TEST_P(VerbsRefusal, ATransferIsFencedOnlyWhenNothingCanLand) {
  Use(Devices(1, 1));
  ASSERT_NO_FATAL_FAILURE(Start(64 * kOp));
  fabric_->RefuseDestroy("t0", true);
  fabric_->Hold(true);
  ASSERT_TRUE(pair_->PostAll(Stream(OpKind::kWrite, 5, 8, kOp)));
  in().Fence(5);
  out().Fence(5);
  ASSERT_TRUE(pair_->Until([&] { return out().fenced.contains(5); }));
  ASSERT_TRUE(DownIs(1));
  in().FenceRail(0);
  fabric_->Hold(false);
  ExpectOnlyAfter("t0", [&] { return in().fenced.contains(5) && !in().fencing_rails.contains(0); });
}

TEST_P(VerbsRefusal, ALinkIsDownOnlyWhenNothingCanLand) {
  Use(Devices(2, 2));
  ASSERT_NO_FATAL_FAILURE(Start(64 * kOp));
  fabric_->RefuseDestroy("t1", true);
  in().endpoint->Shutdown(absl::CancelledError("over"));
  ExpectOnlyAfter("t1", [&] { return in().down; });
}

// The source of what did not complete may still be read.
TEST_P(VerbsRefusal, AnOpEndsOnlyWhenItsQueuePairIsGone) {
  verbs::VerbsOptions options;
  options.stall_timeout = milliseconds(100);
  Use(Devices(1, 1), options);
  for (const bool shut : {false, true}) {
    SCOPED_TRACE(shut);
    ASSERT_NO_FATAL_FAILURE(Start(64 * kOp));
    fabric_->LoseCompletions(1);
    const Op op = out().Make(OpKind::kWrite, 1, {RunAt(0, kOp)}, 1);
    ASSERT_TRUE(pair_->PostAll(std::span(&op, 1)));
    ASSERT_TRUE(Arrived(1));
    fabric_->RefuseDestroy("i0", true);
    if (shut) {
      out().endpoint->Shutdown(absl::CancelledError("over"));
    } else {
      // It is found to be stuck, and nothing is flushed within a second.
      const uint64_t before = fabric_->calls(Call::kDestroyQp);
      ASSERT_TRUE(pair_->Until([&] { return fabric_->calls(Call::kDestroyQp) >= before + 2; }));
    }
    EXPECT_EQ(out().ended.count(op.id), 0u);
    ExpectOnlyAfter("i0", [&] { return out().open.empty() && (!shut || out().down); });
    EXPECT_TRUE(shut || pair_->Until([&] { return out().rails_down.size() == 1; }));
    pair_.reset();
    local_ = remote_ = nullptr;
  }
}

// Expect a transfer to end on time, as quarantined until its target's device has let go.
TEST_P(VerbsRefusal, ATransferEndsOnTimeAndIsQuarantinedUntilThen) {
  Use({DeviceOf("a", "i0", 1, 10), DeviceOf("b", "t0", 1, 50)});
  {
    AgentOptions a = OptionsFor(GetParam(), "a");
    AgentOptions b = OptionsFor(GetParam(), "b");
    a.connect_timeout = b.connect_timeout = seconds(30);  // the fence of a rail has as long
    ASSERT_OK_AND_ASSIGN(kvxfer::testing::Pair nodes, Pair::Create(GetParam(), a, b, 1 << 20));
    const Shape shape{.block_bytes = 4096, .ids = 16};
    const BlockSet blocks(shape, nodes.a.memory.address(), nodes.b.memory.address());
    ASSERT_OK_AND_ASSIGN(const Transfer good, blocks.Write(*nodes.a.agent, "b", Unhurried()));
    ASSERT_OK(good.Wait(kAmple));
    fabric_->RefuseDestroy("t0", true);
    fabric_->Hold(true);
    ASSERT_OK_AND_ASSIGN(const Transfer held, blocks.Write(*nodes.a.agent, "b", Unhurried()));
    std::this_thread::sleep_for(milliseconds(20));
    const MachineDelay machine;
    const Time begin = Now();
    held.Cancel();
    EXPECT_TRUE(Fails(held.Wait(kAmple), absl::StatusCode::kCancelled));
    EXPECT_LT(Now() - begin, Bound(a.cancel_grace + milliseconds(200)) + machine.so_far());
    EXPECT_TRUE(held.quarantined());
    fabric_->Hold(false);
    std::this_thread::sleep_for(milliseconds(100));
    EXPECT_TRUE(held.quarantined());
    fabric_->RefuseDestroy("t0", false);
    EXPECT_TRUE(Eventually(kAmple, [&] { return !held.quarantined(); }));
    ASSERT_OK_AND_ASSIGN(const Transfer again, blocks.Write(*nodes.a.agent, "b", Unhurried()));
    EXPECT_OK(again.Wait(kAmple));
  }
}

}  // namespace
}  // namespace kvxfer::testing
