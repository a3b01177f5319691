// How ops and fences of verbs end where rails fail: the op that is to blame hears of it, others go
// on, and each fence has its own time.

#include <thread>

#include "tests/conformance/verbs_device.h"
#include "tests/support/agents.h"
#include "tests/support/blocks.h"
#include "tests/support/pattern.h"

namespace kvxfer::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class VerbsEnds : public VerbsDevice {};

INSTANTIATE_TEST_SUITE_P(InMemory, VerbsEnds, ::testing::Values(VerbsDeviceFlavour()), FlavourName);

// The peer's end goes into error with the refusal and says so at once; the refusal itself takes
// longer.
TEST_P(VerbsEnds, WhoIsRefusedHearsWhyThoughThePeerSpeaksFirst) {
  Use(Devices(2, 2));
  ASSERT_NO_FATAL_FAILURE(Start(64 * kOp));
  fabric_->DelayAcks(milliseconds(3));
  std::vector<Op> ops;
  for (uint32_t i = 0; i < 7; ++i) {
    kvxfer::Run run = RunAt(i * kOp, kOp);
    if (i == 3) run.remote += remote_->memory.size();
    ops.push_back(out().Make(OpKind::kWrite, 1 + i, {run}, i));
  }
  ASSERT_TRUE(pair_->PostAll(ops));
  ASSERT_TRUE(DownIs(1));
  for (const Op& op : ops) {
    const absl::Status& how = out().ended[op.id];
    SCOPED_TRACE(how.ToString());
    if (op.id < ops[3].id) {
      EXPECT_OK(how);
    } else if (op.id > ops[3].id) {
      EXPECT_TRUE(Fails(how, absl::StatusCode::kUnavailable, {"given up with its rail"}));
    } else {
      EXPECT_TRUE(
          Fails(how, absl::StatusCode::kPermissionDenied, {"IBV_WC_REM_ACCESS_ERR", "rail 0"}));
    }
  }
  FenceAndReopen(0);
  ASSERT_TRUE(pair_->Until([&] { return out().rail_up(0); }));
  ExpectAllRailsWork();
}

// A busy rail says nothing of one that is stuck.
TEST_P(VerbsEnds, ABusyRailDoesNotHideAStuckOne) {
  Use(Devices(2, 2));
  ASSERT_NO_FATAL_FAILURE(Start(64 * kOp));
  fabric_->SetRetryTime(seconds(60));
  fabric_->SetNetwork("t1", 1, 9);
  std::vector<Op> stuck;
  stuck.reserve(4);
  for (int i = 0; i < 4; ++i) {
    stuck.push_back(out().Make(OpKind::kWrite, 5, {RunAt(0, kOp)}, std::nullopt, 1));
  }
  const Op here = out().Make(OpKind::kWrite, 5, {RunAt(kOp, kOp)}, std::nullopt, 0);
  ASSERT_TRUE(pair_->PostAll(stuck));
  ASSERT_TRUE(pair_->PostAll(std::span(&here, 1)));
  out().Fence(5);
  const Time asked = Now();
  const Time end = asked + Bound(seconds(3));
  while (!out().fenced.contains(5) && Now() < end) {
    const Op busy = out().Make(OpKind::kWrite, 6, {RunAt(0, 64)});
    out().Post(std::span(&busy, 1));
    pair_->Turn();
  }
  EXPECT_TRUE(out().fenced.contains(5));
  // The transfer ends with its last op, the rail with the last of all.
  ASSERT_TRUE(DownIs(1));
  EXPECT_EQ(out().rails_down, std::vector<uint32_t>{1});
  ASSERT_TRUE(Ended());
  EXPECT_EQ(out().failed(), stuck.size());
  fabric_->SetRetryTime(milliseconds(50));
}

// The target waits 3 s for each initiator's word, whenever another fence was asked for.
TEST_P(VerbsEnds, EachFenceAtTheTargetHasItsOwnTime) {
  Use(Devices(1, 1));
  ASSERT_NO_FATAL_FAILURE(Start(64 * kOp));
  const Time began = Now();
  in().Fence(5);
  pair_->Idle(seconds(2));
  in().Fence(6);
  const Time second = Now();
  out().Fence(5);
  ASSERT_TRUE(pair_->Until([&] { return in().fenced.contains(5); }));
  pair_->Until([&] { return Now() > began + milliseconds(3400); });
  if (Now() - second < milliseconds(2500)) {
    EXPECT_TRUE(out().rails_down.empty());
    EXPECT_FALSE(in().fenced.contains(6));
  }
  out().Fence(6);
  ASSERT_TRUE(pair_->Until([&] { return in().fenced.contains(6); }));
}

// --- with agents -----------------------------------------------------------------------------

class VerbsTransfers : public VerbsDevice {
 protected:
  void Begin(int rails, size_t bytes, const verbs::VerbsOptions& options = {}) {
    Use(Devices(rails, rails), options);
    ASSERT_OK_AND_ASSIGN(
        agents_, kvxfer::testing::Pair::Create(GetParam(), OptionsFor(GetParam(), "initiator"),
                                               OptionsFor(GetParam(), "target"), bytes));
  }
  void TearDown() override {
    agents_.a.agent.reset();
    agents_.b.agent.reset();
    agents_ = {};
    VerbsDevice::TearDown();
  }
  absl::StatusOr<Transfer> Write(const Shape& shape, const TransferOptions& options) {
    return BlockSet(shape, agents_.a.memory.address(), agents_.b.memory.address())
        .Write(*agents_.a.agent, "target", options);
  }
  // Writes `shape` with a new pattern, and expects it and its notification.
  void ExpectWritten(const Shape& shape, uint64_t seed) {
    Pattern(seed).Fill(agents_.a.memory.bytes());
    FillWith(agents_.b.memory.bytes(), std::byte{0});
    ASSERT_OK_AND_ASSIGN(const Transfer write, Write(shape, Telling(std::to_string(seed))));
    ASSERT_OK_AND_ASSIGN(const Notification told, agents_.b.agent->WaitNotification(kAmple));
    EXPECT_EQ(told.payload, std::to_string(seed));
    EXPECT_TRUE(AllArrived(shape, Side::kRemote, seed, agents_.b.memory.bytes()));
    EXPECT_OK(write.Wait(kAmple));
    EXPECT_FALSE(agents_.b.agent->PollNotification().has_value());
  }

  kvxfer::testing::Pair agents_;
};

INSTANTIATE_TEST_SUITE_P(InMemory, VerbsTransfers, ::testing::Values(VerbsDeviceFlavour()),
                         FlavourName);

// Bytes and immediate arrived, and the initiator's device never hears of it: what went over that
// rail goes again, is counted once and told once.
TEST_P(VerbsTransfers, AcknowledgementsThatAreLostCostARailAndNothingElse) {
  const Shape shape{.block_bytes = 64 * 1024, .ids = 48};
  ASSERT_NO_FATAL_FAILURE(Begin(2, shape.memory_bytes()));
  ASSERT_NO_FATAL_FAILURE(ExpectWritten(shape, 1));
  const auto rounds = static_cast<uint64_t>(Scaled(20));
  for (uint64_t round = 2; round < 2 + rounds; ++round) {
    fabric_->LoseAcks(1 + round % 2);
    ASSERT_NO_FATAL_FAILURE(ExpectWritten(shape, round));
  }
  fabric_->LoseAcks(0);
  EXPECT_FALSE(agents_.b.agent->PollNotification().has_value());
}

TEST_P(VerbsTransfers, CompletionsThatComeLateChangeNothing) {
  const Shape shape{.block_bytes = 64 * 1024, .ids = 16};
  ASSERT_NO_FATAL_FAILURE(Begin(2, shape.memory_bytes()));
  fabric_->DelayCompletions(milliseconds(2));
  for (uint64_t round = 1; round <= 5; ++round) {
    ASSERT_NO_FATAL_FAILURE(ExpectWritten(shape, round));
  }
  fabric_->DelayCompletions({});
}

// What fails over one queue pair goes over another; what fails over both in the same way ends.
TEST_P(VerbsTransfers, AnOpThatFailsEverywhereEnds) {
  const Shape shape{.block_bytes = 64 * 1024, .ids = 4};
  ASSERT_NO_FATAL_FAILURE(Begin(2, shape.memory_bytes()));
  ASSERT_NO_FATAL_FAILURE(ExpectWritten(shape, 1));
  fabric_->FailWrites(1, 4096, IBV_WC_REM_OP_ERR);
  ASSERT_NO_FATAL_FAILURE(ExpectWritten(shape, 2));
  fabric_->FailWrites(UINT64_MAX, 4096, IBV_WC_REM_OP_ERR);
  TransferOptions options = Telling("never");
  options.deadline = Bound(seconds(5));
  ASSERT_OK_AND_ASSIGN(const Transfer write, Write(shape, options));
  EXPECT_TRUE(Fails(write.Wait(kAmple), absl::StatusCode::kInternal,
                    {"IBV_WC_REM_OP_ERR", "over another queue pair"}));
  EXPECT_EQ(write.Poll(), TransferState::kFailed);
  fabric_->FailWrites(0, 0, IBV_WC_SUCCESS);
  ExpectWritten(shape, 3);
}

TEST_P(VerbsTransfers, AKeyThatIsRefusedEndsItsTransferAlone) {
  const Shape shape{.block_bytes = 4096, .ids = 8};
  ASSERT_NO_FATAL_FAILURE(Begin(2, shape.memory_bytes()));
  fabric_->DelayAcks(milliseconds(3));
  fabric_->FailWrites(1, 4096, IBV_WC_REM_ACCESS_ERR);
  ASSERT_OK_AND_ASSIGN(const Transfer write, Write(shape, Unhurried()));
  EXPECT_TRUE(Fails(write.Wait(kAmple), absl::StatusCode::kPermissionDenied,
                    {"IBV_WC_REM_ACCESS_ERR", "target"}));
  fabric_->DelayAcks({});
  ExpectWritten(shape, 3);
}

// However many transfers are posted at once and however late the target looks: each immediate finds
// a receive.
TEST_P(VerbsTransfers, GrantsDoNotExceedReceives) {
  verbs::VerbsOptions options;
  options.receive_depth = 256;
  const Shape shape{.block_bytes = 64, .ids = 1};
  ASSERT_NO_FATAL_FAILURE(Begin(2, shape.memory_bytes(), options));
  ASSERT_NO_FATAL_FAILURE(ExpectWritten(shape, 1));
  std::vector<Transfer> transfers;
  for (int round = 0; round < 3; ++round) {
    fabric_->Hold(true);
    const uint64_t before = fabric_->requests();
    for (int i = 0; i < 1000; ++i) {
      ASSERT_OK_AND_ASSIGN(Transfer write, Write(shape, Unhurried()));
      transfers.push_back(std::move(write));
    }
    std::this_thread::sleep_for(milliseconds(100));
    // Each is one write with an immediate.
    EXPECT_GE(fabric_->requests() - before, 64u);
    EXPECT_LE(fabric_->requests() - before, options.receive_depth);
    fabric_->Hold(false);
    for (const Transfer& write : transfers) ASSERT_OK(write.Wait(kAmple));
    transfers.clear();
  }
  EXPECT_EQ(fabric_->not_ready(), 0u);
  EXPECT_EQ(fabric_->overruns(), 0u);
}

}  // namespace
}  // namespace kvxfer::testing
