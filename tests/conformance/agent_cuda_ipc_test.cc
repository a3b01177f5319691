// A GPU that stands still while it is to copy for a transfer of its own: ends come on time, and
// what it may still read or write is in use until it has.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>

#include "src/cuda/closer.h"
#include "tests/support/agents.h"
#include "tests/support/blocks.h"
#include "tests/support/cuda_driver/hooks.h"
#include "tests/support/machine_delay.h"
#include "tests/support/needs_stand_in.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

using cuda_driver::FindHooks;
using std::chrono::milliseconds;

class AgentCudaIpc : public ::testing::Test {
 protected:
  void SetUp() override {
    KVXFER_NEEDS_STAND_IN();
    AgentOptions a = OptionsFor(CudaIpcFlavour(), "a");
    a.cancel_grace = milliseconds(200);
    ASSERT_OK_AND_ASSIGN(pair_, Pair::Create(CudaIpcFlavour(), a, OptionsFor(CudaIpcFlavour(), "b"),
                                             kShape.memory_bytes()));
    ASSERT_OK_AND_ASSIGN(const Transfer first, Blocks().Write(*pair_.a.agent, "b", Unhurried()));
    ASSERT_OK(first.Wait(kAmple));
    ASSERT_NE(FindHooks(), nullptr);
    FindHooks()->kvxfer_standin_pause(1);
  }
  void TearDown() override {
    if (FindHooks() != nullptr) FindHooks()->kvxfer_standin_pause(0);
  }

  BlockSet Blocks() const { return {kShape, pair_.a.memory.address(), pair_.b.memory.address()}; }
  // Posts one for which the GPU has been given its copy.
  absl::StatusOr<Transfer> Begin(const TransferOptions& options, bool read = false) {
    const uint64_t before = cuda_driver::Copies(*FindHooks());
    auto begun = read ? Blocks().Read(*pair_.a.agent, "b", options)
                      : Blocks().Write(*pair_.a.agent, "b", options);
    EXPECT_TRUE(Eventually(kAmple, [&] { return cuda_driver::Copies(*FindHooks()) > before; }));
    return begun;
  }
  // `transfer` has ended, and the GPU has still to copy for it.
  void ExpectStillMoving(const Transfer& transfer) {
    EXPECT_TRUE(transfer.quarantined());
    EXPECT_TRUE(Fails(transfer.WaitQuiet(milliseconds(20)), kTimedOut));
    EXPECT_TRUE(Fails(pair_.a.agent->DeregisterMemory(pair_.a.region, milliseconds(20)), kTimedOut,
                      {"still in use"}));
    ASSERT_OK_AND_ASSIGN(const QuiesceResult asked,
                         pair_.b.agent->Quiesce({.peer = "a", .regions = {}}, milliseconds(50)));
    EXPECT_FALSE(asked.quiet);
  }
  void ExpectQuietOnceItGoesOn(const Transfer& transfer) {
    FindHooks()->kvxfer_standin_pause(0);
    ASSERT_OK(transfer.WaitQuiet(kAmple));
    EXPECT_OK(pair_.a.agent->DeregisterMemory(pair_.a.region, kAmple));
    EXPECT_FALSE(pair_.b.agent->PollNotification().has_value());
  }

  void ExpectDeadlineKept(bool read) {
    TransferOptions options = Telling("late");
    options.deadline = Bound(milliseconds(300));
    const MachineDelay machine;
    const Time start = Now();
    ASSERT_OK_AND_ASSIGN(const Transfer late, Begin(options, read));
    EXPECT_TRUE(Fails(late.Wait(kAmple), absl::StatusCode::kDeadlineExceeded));
    EXPECT_LE(Now() - start, options.deadline * 11 / 10 + milliseconds(20) + machine.so_far());
    EXPECT_EQ(late.delivery(), Delivery::kNotDelivered);
    ExpectStillMoving(late);
    ExpectQuietOnceItGoesOn(late);
  }

  static constexpr Shape kShape{.block_bytes = 4096, .ids = 20};
  Pair pair_{};
};

TEST_F(AgentCudaIpc, AWriteKeepsItsDeadline) { ExpectDeadlineKept(false); }

TEST_F(AgentCudaIpc, AReadKeepsItsDeadline) { ExpectDeadlineKept(true); }

TEST_F(AgentCudaIpc, ACancelEndsByItsGrace) {
  ASSERT_OK_AND_ASSIGN(const Transfer late, Begin(Telling("late")));
  EXPECT_TRUE(Fails(late.Wait(milliseconds(50)), kTimedOut));
  const MachineDelay machine;
  const Time start = Now();
  late.Cancel();
  EXPECT_TRUE(Fails(late.Wait(kAmple), absl::StatusCode::kCancelled));
  EXPECT_LE(Now() - start, milliseconds(200) + Bound(milliseconds(50)) + machine.so_far());
  ExpectStillMoving(late);
  ExpectQuietOnceItGoesOn(late);
}

TEST_F(AgentCudaIpc, APeerThatIsRemovedIsNotWaitedFor) {
  ASSERT_OK_AND_ASSIGN(const Transfer removed, Begin(Telling("late")));
  ASSERT_OK(pair_.a.agent->RemovePeer("b"));
  EXPECT_TRUE(Fails(removed.Wait(kAmple), absl::StatusCode::kCancelled));
  EXPECT_TRUE(removed.quarantined());
  // Its memory is in use though the peer is gone.
  EXPECT_TRUE(Fails(pair_.a.agent->DeregisterMemory(pair_.a.region, milliseconds(20)), kTimedOut,
                    {"still in use"}));
  ExpectQuietOnceItGoesOn(removed);
}

TEST_F(AgentCudaIpc, TheCallbackRunsOnceAndOnTime) {
  std::atomic<int> ended{0};
  TransferOptions options = Telling("late");
  options.deadline = Bound(milliseconds(100));
  ASSERT_OK_AND_ASSIGN(const Transfer late, Begin(options));
  late.OnEnd([&](const Transfer&) { ++ended; });
  EXPECT_TRUE(Eventually(kAmple, [&] { return ended == 1; }));
  ExpectStillMoving(late);
  ExpectQuietOnceItGoesOn(late);
  EXPECT_EQ(ended, 1);
}

// The memory may be freed once it is deregistered, and nobody may have it open then.
TEST_F(AgentCudaIpc, DeregistrationWaitsUntilThePeerHasClosedIt) {
  FindHooks()->kvxfer_standin_pause(0);
  std::atomic<bool> go{false};
  cuda::CloseLater([&] { go.wait(false); });
  EXPECT_TRUE(
      Fails(pair_.b.agent->DeregisterMemory(pair_.b.region, milliseconds(100)), kTimedOut, {"a"}));
  go = true;
  go.notify_all();
  EXPECT_OK(pair_.b.agent->DeregisterMemory(pair_.b.region, kAmple));
}

}  // namespace
}  // namespace kvxfer::testing
