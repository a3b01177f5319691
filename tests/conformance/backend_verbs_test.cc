// What only verbs has: pairs of ports, rails that fail and come back, devices whose calls fail.

#include <gmock/gmock.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "tests/conformance/verbs_device.h"

namespace kvxfer::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

INSTANTIATE_TEST_SUITE_P(InMemory, VerbsDevice, ::testing::Values(VerbsDeviceFlavour()),
                         FlavourName);

TEST_P(VerbsDevice, EveryPortIsUsedWhateverTheNumbers) {
  const std::pair<int, int> cases[] = {{1, 1}, {2, 2}, {2, 1}, {1, 2}, {4, 2}, {1, 8}, {3, 2}};
  for (const auto& [local, remote] : cases) {
    SCOPED_TRACE(std::to_string(local) + " to " + std::to_string(remote));
    Use(Devices(local, remote));
    ASSERT_NO_FATAL_FAILURE(Start(64 * kOp));
    EXPECT_EQ(out().rails(), static_cast<uint32_t>(std::max(local, remote)));
    ASSERT_NO_FATAL_FAILURE(ExpectAllRailsWork());
    const std::string path = out().path();
    for (int i = 0; i < local; ++i) EXPECT_THAT(path, HasSubstr("i" + std::to_string(i) + ":1"));
    for (int i = 0; i < remote; ++i) EXPECT_THAT(path, HasSubstr("t" + std::to_string(i) + ":1"));
    End();
  }
}

// Two networks that look like one: the pairs that were guessed wrong are found out by their probes.
TEST_P(VerbsDevice, NetworksAreNeverMixed) {
  Use({DeviceOf("initiator", "i0", 1, 10, 0), DeviceOf("initiator", "i1", 1, 11, 1),
       DeviceOf("target", "t0", 1, 50, 1), DeviceOf("target", "t1", 1, 51, 0)});
  ASSERT_NO_FATAL_FAILURE(Start(64 * kOp));
  EXPECT_THAT(out().path(), HasSubstr("i0:1 → t1:1"));
  EXPECT_THAT(out().path(), HasSubstr("i1:1 → t0:1"));
  ExpectAllRailsWork();
}

TEST_P(VerbsDevice, NamedFabricsAreNotTried) {
  verbs::VerbsOptions options;
  options.fabrics = {"red=red_*", "blue=subnet:10.77.2.0/24"};
  Use({DeviceOf("initiator", "red_0", 1, 10, 0), DeviceOf("initiator", "i1", 2, 11, 1),
       DeviceOf("target", "t0", 2, 50, 1), DeviceOf("target", "red_1", 1, 51, 0)},
      options);
  const uint64_t before = fabric_->calls(Call::kCreateQp);
  ASSERT_NO_FATAL_FAILURE(Start(64 * kOp));
  // Two rails and the control pair.
  EXPECT_EQ(fabric_->calls(Call::kCreateQp) - before, 6u);
  ExpectAllRailsWork();
}

TEST_P(VerbsDevice, WithoutAWayThroughItSaysWhatWasTried) {
  Use({DeviceOf("initiator", "i0", 1, 10, 0), DeviceOf("target", "t0", 1, 50, 1)});
  ASSERT_OK_AND_ASSIGN(std::unique_ptr<Party> a, Party::Make(GetParam(), "initiator"));
  ASSERT_OK_AND_ASSIGN(std::unique_ptr<Party> b, Party::Make(GetParam(), "target"));
  ASSERT_OK_AND_ASSIGN(TestLink * link, a->Connect(*b));
  bool authorized = false;
  EXPECT_TRUE(Eventually(kAmple, [&] {
    a->Turn();
    b->Turn();
    if (!authorized && !b->links.empty()) b->links.front()->endpoint->Authorize();
    authorized = authorized || !b->links.empty();
    return link->down;
  }));
  EXPECT_TRUE(Fails(link->why, absl::StatusCode::kUnavailable,
                    {"no pair of ports passes data", "i0:1", "t0:1", "IBV_WC_RETRY_EXC_ERR"}));
}

TEST_P(VerbsDevice, APortThatGoesDownTakesItsRailAndComesBack) {
  Use(Devices(2, 2));
  ASSERT_NO_FATAL_FAILURE(Start(64 * kOp));
  for (const bool tell : {true, false}) {
    for (const char* device : {"i0", "t1"}) {
      SCOPED_TRACE(device);
      const uint32_t rail = device[1] == '0' ? 0 : 1;
      const size_t downs = out().rails_down.size();
      fabric_->SetPort(device, 1, false, tell);
      const Op op = out().Make(OpKind::kWrite, 1, {RunAt(0, kOp)}, 1, rail);
      const bool posted = out().Post(std::span(&op, 1)) == 1;
      ASSERT_TRUE(DownIs(downs + 1));
      EXPECT_EQ(out().rails_down.back(), rail);
      EXPECT_FALSE(out().rail_up(rail));
      EXPECT_TRUE(!posted || absl::IsUnavailable(out().ended[op.id])) << out().ended[op.id];
      EXPECT_EQ(out().Post(std::span(&op, 1)), 0u);
      FenceAndReopen(rail);
      pair_->Idle(milliseconds(50));
      EXPECT_FALSE(out().rail_up(rail));
      // Expect it back soon after the link is, with no further word.
      fabric_->SetPort(device, 1, true, tell);
      const Time up = Now();
      ASSERT_TRUE(pair_->Until([&] { return out().rail_up(rail); }));
      EXPECT_LT(Now() - up, Bound(seconds(1)));
      ASSERT_NO_FATAL_FAILURE(ExpectAllRailsWork());
    }
  }
}

TEST_P(VerbsDevice, AnErrorSaysWhoWhereAndWhatToDo) {
  Use(Devices(1, 1));
  ASSERT_NO_FATAL_FAILURE(Start(64 * kOp));
  kvxfer::Run run = RunAt(0, kOp);
  run.remote += remote_->memory.size();
  const Op op = out().Make(OpKind::kWrite, 1, {run}, 1);
  ASSERT_TRUE(pair_->PostAll(std::span(&op, 1)));
  ASSERT_TRUE(DownIs(1));
  EXPECT_TRUE(Fails(out().ended[op.id], absl::StatusCode::kPermissionDenied,
                    {"127.0.0.1", "rail 0", "i0:1 → t0:1", "queue pair", "RDMA write",
                     "IBV_WC_REM_ACCESS_ERR", "vendor error 0x88", "metadata"}));
}

// The device has done the work, and forgets to say so.
TEST_P(VerbsDevice, ALostCompletionIsImpliedByTheNextOrEndedByTime) {
  verbs::VerbsOptions options;
  options.stall_timeout = milliseconds(200);
  Use(Devices(1, 1), options);
  ASSERT_NO_FATAL_FAILURE(Start(64 * kOp));
  fabric_->LoseCompletions(1);
  const std::vector<Op> ops = Stream(OpKind::kWrite, 1, 2, kOp);
  ASSERT_TRUE(pair_->PostAll(ops));
  ASSERT_TRUE(Ended());
  EXPECT_EQ(out().failed(), 0u);
  fabric_->LoseCompletions(1);
  const Op last = out().Make(OpKind::kWrite, 1, {RunAt(0, kOp)}, 9);
  ASSERT_TRUE(pair_->PostAll(std::span(&last, 1)));
  ASSERT_TRUE(DownIs(1));
  EXPECT_TRUE(Fails(out().ended[last.id], absl::StatusCode::kUnavailable,
                    {"neither completed nor failed"}));
  FenceAndReopen(0);
  EXPECT_EQ(std::ranges::count(in().immediates, 9u), 1);
  ASSERT_TRUE(pair_->Until([&] { return out().rail_up(0); }));
  ExpectAllRailsWork();
}

// A transfer whose requests do not end is stopped with its rail, and both sides are told.
TEST_P(VerbsDevice, AFenceEndsWhatDoesNotEndByItself) {
  Use(Devices(1, 1));
  ASSERT_NO_FATAL_FAILURE(Start(64 * kOp));
  Pattern(1).Fill(local_->bytes());
  fabric_->Hold(true);
  ASSERT_TRUE(pair_->PostAll(Stream(OpKind::kWrite, 5, 8, kOp)));
  out().Fence(5);
  in().Fence(5);
  ASSERT_TRUE(pair_->Until([&] { return out().fenced.contains(5) && in().fenced.contains(5); }));
  EXPECT_EQ(out().failed(), 8u);
  fabric_->Hold(false);
  pair_->Idle(milliseconds(20));
  EXPECT_EQ(FirstNonZero(remote_->bytes()), kNoMismatch);
  EXPECT_TRUE(in().immediates.empty());
}

// An initiator that stands still while its device does not: the target makes itself quiet.
TEST_P(VerbsDevice, TheTargetFencesWithoutItsInitiator) {
  Use(Devices(2, 2));
  ASSERT_NO_FATAL_FAILURE(Start(64 * kOp));
  fabric_->Hold(true);
  ASSERT_TRUE(pair_->PostAll(Stream(OpKind::kWrite, 5, 8, kOp)));
  in().Fence(5);
  ASSERT_TRUE(Eventually(kAmple, [&] {
    pair_->target().Turn();
    return in().fenced.contains(5);
  }));
  fabric_->Hold(false);
  const uint64_t before = Digest(remote_->bytes());
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_EQ(Digest(remote_->bytes()), before);
  ASSERT_TRUE(DownIs(2));
  EXPECT_EQ(out().failed(), 8u);
}

TEST_P(VerbsDevice, WithoutReceivesTheInitiatorWaitsAndNothingIsLost) {
  verbs::VerbsOptions options;
  options.receive_depth = 64;
  Use(Devices(1, 1), options);
  ASSERT_NO_FATAL_FAILURE(Start(64 * kOp));
  std::vector<Op> ops;
  for (uint32_t i = 0; i < 500; ++i) ops.push_back(out().Make(OpKind::kWrite, 1, {RunAt(0, 8)}, i));
  std::span<const Op> rest = ops;
  // The device's thread may be slow.
  ASSERT_TRUE(Eventually(kAmple, [&] {
    rest = rest.subspan(out().Post(rest));
    pair_->initiator().Turn();
    return fabric_->not_ready() > 0;
  }));
  EXPECT_GE(out().open.size() + rest.size(), 500u - 64u);
  ASSERT_TRUE(pair_->PostAll(rest));
  ASSERT_TRUE(Ended());
  ASSERT_TRUE(Arrived(500));
  EXPECT_EQ(out().failed(), 0u);
  EXPECT_TRUE(out().rails_down.empty());
}

// Many links on a device with a small completion queue: it never overruns, flushed or not.
TEST_P(VerbsDevice, CompletionQueuesDoNotOverrun) {
  std::vector<FabricDevice> devices = Devices(1, 1);
  for (FabricDevice& device : devices) device.max_cqe = 256;
  Use(devices);
  ASSERT_NO_FATAL_FAILURE(Start(64 * kOp));
  const std::vector<Op> ops = Stream(OpKind::kWrite, 1, 1000, 8);
  fabric_->Hold(true);
  const size_t accepted = out().Post(ops);
  EXPECT_GT(accepted, 100u);
  EXPECT_LE(accepted, 256u);
  fabric_->Hold(false);
  ASSERT_TRUE(pair_->PostAll(std::span(ops).subspan(accepted)));
  fabric_->SetPort("t0", 1, false, false);
  ASSERT_TRUE(Ended());
}

// Each op is 16 requests.
TEST_P(VerbsDevice, OneDoorbellAndOneCompletionForMany) {
  Use(Devices(1, 1));
  ASSERT_NO_FATAL_FAILURE(Start(1 << 20));
  std::vector<Op> ops;
  for (uint64_t op = 0; op < 4; ++op) {
    std::vector<kvxfer::Run> runs;
    for (uint64_t i = 0; i < 32; ++i) {
      const uint64_t at = (op * 32 + i) * kOp;
      // Scattered at the target, except that two in a row meet.
      runs.push_back(RunAt(at, (i / 2 * 3 + i % 2 + op * 50) * kOp, kOp));
    }
    ops.push_back(out().Make(OpKind::kWrite, 1, runs));
  }
  const uint64_t doorbells = fabric_->doorbells();
  const uint64_t requests = fabric_->requests();
  const uint64_t completions = fabric_->completions();
  ASSERT_EQ(out().Post(ops), 4u);
  ASSERT_TRUE(Ended());
  EXPECT_EQ(fabric_->doorbells() - doorbells, 4u);
  EXPECT_EQ(fabric_->requests() - requests, 4u * 16u);
  EXPECT_EQ(fabric_->completions() - completions, 4u);
}

}  // namespace
}  // namespace kvxfer::testing
