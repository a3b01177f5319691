// G3: every transfer ends once, in time, with its cause, and whoever waits is told.
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/agents.h"
#include "tests/support/blocks.h"
#include "tests/support/machine_delay.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

using std::chrono::milliseconds;

// Fails unless it went off exactly once.
class Bomb {
 public:
  ~Bomb() { EXPECT_EQ(count_, 1) << "times that the callback ran"; }
  void Defuse() { ++count_; }
  bool defused() const { return count_ > 0; }

 private:
  std::atomic<int> count_{0};
};

class AgentEnd : public ::testing::TestWithParam<Flavour> {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(pair_, Pair::Create(GetParam(), 4 * kMiB));
    Pattern(1).Fill(pair_.a.memory.bytes());
  }
  absl::StatusOr<Transfer> Post(const TransferOptions& options) {
    const Shape shape{.block_bytes = 4096, .ids = 64};
    return BlockSet(shape, pair_.a.memory.address(), pair_.b.memory.address())
        .Write(*pair_.a.agent, "b", options);
  }
  TransferOptions Held(Duration deadline = kAmple) {
    TransferOptions options = Telling("held");
    options.ready = &ready_;
    options.deadline = deadline;
    return options;
  }

  std::atomic<uint32_t> ready_{0};
  Pair pair_;
};

TEST_P(AgentEnd, CallbackRunsOnceHoweverItEnds) {
  {
    Bomb done, cancelled, late, expired;
    ASSERT_OK_AND_ASSIGN(const Transfer good, Post(Unhurried()));
    good.OnEnd([&](const Transfer& t) {
      EXPECT_EQ(t.Poll(), TransferState::kDone);
      EXPECT_EQ(t.id(), good.id());
      done.Defuse();
    });
    ASSERT_OK_AND_ASSIGN(const Transfer held, Post(Held()));
    held.OnEnd([&](const Transfer& t) {
      EXPECT_EQ(t.Poll(), TransferState::kCancelled);
      cancelled.Defuse();
    });
    held.Cancel();
    held.Cancel();
    ASSERT_OK_AND_ASSIGN(const Transfer short_lived, Post(Held(milliseconds(20))));
    short_lived.OnEnd([&](const Transfer& t) {
      EXPECT_EQ(t.Poll(), TransferState::kDeadlineExceeded);
      expired.Defuse();
    });
    ASSERT_OK(good.Wait(kAmple));
    // Set after the end, it runs at once.
    good.OnEnd([&](const Transfer&) { late.Defuse(); });
    EXPECT_TRUE(Eventually(kAmple, [&] {
      return done.defused() && cancelled.defused() && late.defused() && expired.defused();
    }));
    // Whoever would run one a second time has done so when the dispatcher comes to the next.
    std::atomic<bool> drained{false};
    good.OnEnd([&](const Transfer&) { drained = true; });
    EXPECT_TRUE(Eventually(kAmple, [&] { return drained.load(); }));
  }
}

TEST_P(AgentEnd, SecondCallbackReplacesTheFirst) {
  std::atomic<int> first{0};
  std::atomic<int> second{0};
  ASSERT_OK_AND_ASSIGN(const Transfer held, Post(Held()));
  held.OnEnd([&](const Transfer&) { ++first; });
  held.OnEnd([&](const Transfer&) { ++second; });
  ready_.store(1, std::memory_order_release);
  ASSERT_OK(held.Wait(kAmple));
  EXPECT_TRUE(Eventually(kAmple, [&] { return second == 1; }));
  EXPECT_EQ(first, 0);
}

TEST_P(AgentEnd, WaitInsideCallbackIsRefused) {
  ASSERT_OK_AND_ASSIGN(const Transfer held, Post(Held()));
  ASSERT_OK_AND_ASSIGN(const Transfer good,
                       pair_.a.agent->Notify("b", "x", Unhurried(NotifyOrder::kAnyOrder)));
  absl::Status waited;
  absl::Status quiet;
  std::atomic<bool> ran{false};
  good.OnEnd([&](const Transfer&) {
    waited = held.Wait(kAmple);
    quiet = held.WaitQuiet(kAmple);
    ran = true;
  });
  ASSERT_TRUE(Eventually(kAmple, [&] { return ran.load(); }));
  EXPECT_TRUE(Fails(waited, absl::StatusCode::kFailedPrecondition, {"callback"}));
  EXPECT_TRUE(Fails(quiet, absl::StatusCode::kFailedPrecondition, {"callback"}));
  ready_.store(1, std::memory_order_release);
  EXPECT_OK(held.Wait(kAmple));
}

TEST_P(AgentEnd, WaitTimesOutWhileItGoesOn) {
  ASSERT_OK_AND_ASSIGN(const Transfer held, Post(Held()));
  EXPECT_TRUE(Fails(held.Wait(milliseconds(5)), kTimedOut, {"still active"}));
  EXPECT_TRUE(Fails(held.Wait(Duration(0)), kTimedOut, {"still active"}));
  EXPECT_EQ(held.Poll(), TransferState::kActive);
  EXPECT_EQ(held.delivery(), Delivery::kPending);
  EXPECT_OK(held.status());
  ready_.store(1, std::memory_order_release);
  EXPECT_OK(held.Wait(kAmple));
  EXPECT_EQ(held.delivery(), Delivery::kDelivered);
}

// Expect a wait whose time-out passes to differ by its code from a transfer whose deadline passed.
TEST_P(AgentEnd, TimeOutOfAWaitIsNotTheDeadline) {
  ASSERT_OK_AND_ASSIGN(const Transfer held, Post(Held(milliseconds(400))));
  EXPECT_TRUE(Fails(held.Wait(milliseconds(5)), kTimedOut, {"to b", "goes on"}));
  EXPECT_TRUE(Fails(held.WaitQuiet(milliseconds(5)), kTimedOut, {"still active"}));
  EXPECT_TRUE(Fails(held.Wait(kAmple), absl::StatusCode::kDeadlineExceeded, {"b"}));
  EXPECT_TRUE(Fails(held.Wait(Duration(0)), absl::StatusCode::kDeadlineExceeded, {"b"}));
  EXPECT_FALSE(IsTimedOut(held.status()));
}

// Expect the end within 10 % of the deadline, whoever waits, and nobody told.
TEST_P(AgentEnd, DeadlineIsKept) {
  for (const bool waiting : {true, false}) {
    const Duration deadline = milliseconds(300);
    const MachineDelay machine;
    const Time start = Now();
    ASSERT_OK_AND_ASSIGN(const Transfer held, Post(Held(deadline)));
    if (waiting) {
      EXPECT_TRUE(Fails(held.Wait(kAmple), absl::StatusCode::kDeadlineExceeded, {"b"}));
    } else {
      ASSERT_TRUE(Eventually(kAmple, [&] { return held.Poll() != TransferState::kActive; }));
    }
    const Duration took = Now() - start;
    EXPECT_EQ(held.Poll(), TransferState::kDeadlineExceeded);
    EXPECT_TRUE(Fails(held.status(), absl::StatusCode::kDeadlineExceeded, {"b"}));
    EXPECT_GE(took, deadline);
    EXPECT_LE(took, deadline + Bound(deadline / 10) + machine.so_far())
        << Milliseconds(took) << " ms";
    EXPECT_EQ(held.delivery(), Delivery::kNotDelivered);
    EXPECT_FALSE(held.quarantined()) << "nothing of it was ever sent";
  }
  EXPECT_EQ(FirstNonZero(pair_.b.memory.bytes()), kNoMismatch);
  EXPECT_FALSE(pair_.b.agent->PollNotification().has_value());
}

// Expect that nothing is read before the fence opens, and that what was stored before it is sent.
TEST_P(AgentEnd, ReadyFenceHoldsTheSource) {
  ASSERT_OK_AND_ASSIGN(const Transfer held, Post(Held()));
  Pattern(2).Fill(pair_.a.memory.bytes());
  ready_.store(1, std::memory_order_release);
  ASSERT_OK(held.Wait(kAmple));
  const Shape shape{.block_bytes = 4096, .ids = 64};
  EXPECT_TRUE(AllArrived(shape, Side::kRemote, 2, pair_.b.memory.bytes()));
}

TEST_P(AgentEnd, CancelBeforeAnythingWasSent) {
  ASSERT_OK_AND_ASSIGN(const Transfer held, Post(Held()));
  held.Cancel();
  EXPECT_TRUE(Fails(held.Wait(kAmple), absl::StatusCode::kCancelled));
  EXPECT_EQ(held.Poll(), TransferState::kCancelled);
  EXPECT_EQ(held.delivery(), Delivery::kNotDelivered);
  EXPECT_FALSE(held.quarantined());
  EXPECT_OK(held.WaitQuiet(kAmple));
  // An ended one stays as it is.
  ready_.store(1, std::memory_order_release);
  held.Cancel();
  ASSERT_OK_AND_ASSIGN(const Transfer good, pair_.a.agent->Notify("b", "next", Unhurried()));
  ASSERT_OK(good.Wait(kAmple));
  good.Cancel();
  EXPECT_EQ(good.Poll(), TransferState::kDone);
  EXPECT_OK(good.status());
  EXPECT_EQ(held.Poll(), TransferState::kCancelled);
  EXPECT_EQ(FirstNonZero(pair_.b.memory.bytes()), kNoMismatch);
  ASSERT_OK_AND_ASSIGN(const Notification n, pair_.b.agent->WaitNotification(kAmple));
  EXPECT_EQ(n.payload, "next");
}

// Expect that destroying an agent with transfers under way ends them all as cancelled, releases
// those who wait, and leaves handles that still answer.
TEST_P(AgentEnd, DestroyedWithTransfersUnderWay) {
  std::vector<Transfer> transfers;
  for (int i = 0; i < 20; ++i) {
    TransferOptions options = Telling("x");
    if (i % 2 == 0) options.ready = &ready_;
    ASSERT_OK_AND_ASSIGN(Transfer transfer, Post(options));
    transfers.push_back(std::move(transfer));
  }
  std::atomic<int> callbacks{0};
  for (const Transfer& transfer : transfers) {
    transfer.OnEnd([&](const Transfer&) { ++callbacks; });
  }
  std::atomic<bool> waiting{false};
  absl::Status waited;
  std::thread waiter([&] {
    waiting = true;
    waited = transfers[0].Wait(kAmple);
  });
  ASSERT_TRUE(Eventually(kAmple, [&] { return waiting.load(); }));
  const Time start = Now();
  pair_.a.agent.reset();
  EXPECT_LE(Now() - start, Bound(std::chrono::seconds(3)));
  waiter.join();
  EXPECT_TRUE(Fails(waited, absl::StatusCode::kCancelled));
  EXPECT_EQ(callbacks, 20);
  for (size_t i = 0; i < transfers.size(); ++i) {
    const TransferState state = transfers[i].Poll();
    EXPECT_TRUE(state == TransferState::kCancelled || (i % 2 == 1 && state == TransferState::kDone))
        << i << ToString(state);
    EXPECT_EQ(transfers[i].Wait(milliseconds(1)).ok(), state == TransferState::kDone);
    EXPECT_EQ(transfers[i].peer(), "b");
    transfers[i].Cancel();
  }
  EXPECT_OK(pair_.b.agent->Quiesce({}, kAmple));
}

// Expect that the waiting transfer of the highest priority goes first.
TEST_P(AgentEnd, PriorityGoesFirst) {
  constexpr int kLow = 24;
  const Shape shape{.block_bytes = 64 * 1024, .ids = 32};
  const BlockSet blocks(shape, pair_.a.memory.address(), pair_.b.memory.address());
  // None begins before all are posted.
  std::atomic<uint32_t> ready{0};
  std::vector<Transfer> transfers;
  for (int i = 0; i <= kLow; ++i) {
    TransferOptions options =
        Telling(i == kLow ? "high" : std::to_string(i), NotifyOrder::kAnyOrder);
    options.priority = i == kLow ? 5 : 0;
    options.ready = &ready;
    ASSERT_OK_AND_ASSIGN(Transfer transfer, blocks.Write(*pair_.a.agent, "b", options));
    transfers.push_back(std::move(transfer));
  }
  ready.store(1, std::memory_order_release);
  int behind_high = -1;
  for (int i = 0; i <= kLow; ++i) {
    ASSERT_OK_AND_ASSIGN(const Notification n, pair_.b.agent->WaitNotification(kAmple));
    if (n.payload == "high") behind_high = kLow - i;
  }
  // A decorator that reorders may hold the first op longest: there only the arrival of all counts.
  if (GetParam().name.find("Faulty") == std::string::npos) {
    EXPECT_GT(behind_high, 0) << "the one of high priority came last";
  } else {
    EXPECT_GE(behind_high, 0);
  }
  for (const Transfer& transfer : transfers) EXPECT_OK(transfer.Wait(kAmple));
}

INSTANTIATE_TEST_SUITE_P(All, AgentEnd, ::testing::ValuesIn(AllFlavours()), FlavourName);

TEST(AgentEndDefaults, AnEmptyHandleAnswers) {
  const Transfer none;
  EXPECT_FALSE(none.Wait(milliseconds(1)).ok());
  EXPECT_NE(none.Poll(), TransferState::kDone);
  none.Cancel();
  none.OnEnd([](const Transfer&) {});
  EXPECT_FALSE(none.quarantined());
  EXPECT_EQ(none.id(), 0u);
  EXPECT_EQ(none.peer(), "");
}

}  // namespace
}  // namespace kvxfer::testing
