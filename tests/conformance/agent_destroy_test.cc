// The end of an agent: inside its own callbacks, and while callbacks still post.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/agents.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

constexpr int kOthers = 5;

class AgentDestroy : public ::testing::TestWithParam<Flavour> {
 protected:
  void SetUp() override { ASSERT_OK_AND_ASSIGN(pair_, Pair::Create(GetParam(), 64 * 1024)); }

  // Transfers of `a` that end with the agent, not before.
  void PostHeld(std::vector<Transfer>& out) {
    for (int i = 0; i < kOthers; ++i) {
      const std::vector<Descriptor> local = {{pair_.a.memory.address(), 4096}};
      const std::vector<Descriptor> remote = {{pair_.b.memory.address(), 4096}};
      TransferOptions options = Telling("held", NotifyOrder::kAnyOrder);
      options.ready = &ready_;
      ASSERT_OK_AND_ASSIGN(
          Transfer transfer,
          pair_.a.agent->Write("b", DescriptorBlocks{.local = local, .remote = remote}, options));
      out.push_back(std::move(transfer));
    }
  }
  // Destroys `a` inside the callback that `set` is given; expects that every other callback has run
  // when the destructor returns, that who waits is released, and that b lives on.
  void DestroyInside(const std::function<void(std::function<void()>)>& set) {
    std::vector<Transfer> held;
    PostHeld(held);
    std::atomic<int> callbacks{0};
    for (const Transfer& transfer : held) transfer.OnEnd([&](const Transfer&) { ++callbacks; });
    std::atomic<bool> waiting{false};
    absl::Status waited;
    std::thread waiter([&] {
      waiting = true;
      waited = held[0].Wait(kAmple);
    });
    EXPECT_TRUE(Eventually(kAmple, [&] { return waiting.load(); }));
    std::atomic<int> callbacks_before_return{-1};
    std::atomic<bool> gone{false};
    set([&] {
      pair_.a.agent.reset();
      callbacks_before_return = callbacks.load();
      gone = true;
    });
    EXPECT_TRUE(Eventually(kAmple, [&] { return gone.load(); }));
    waiter.join();
    EXPECT_TRUE(Fails(waited, absl::StatusCode::kCancelled));
    EXPECT_EQ(callbacks_before_return, kOthers);
    EXPECT_EQ(callbacks, kOthers);
    for (const Transfer& transfer : held) EXPECT_EQ(transfer.Poll(), TransferState::kCancelled);
    EXPECT_OK(pair_.b.agent->Quiesce({}, kAmple));
  }

  std::atomic<uint32_t> ready_{0};
  Pair pair_;
};

TEST_P(AgentDestroy, InsideOnEnd) {
  DestroyInside([&](const std::function<void()>& destroy) {
    ASSERT_OK_AND_ASSIGN(const Transfer transfer,
                         pair_.a.agent->Notify("b", "x", Unhurried(NotifyOrder::kAnyOrder)));
    transfer.OnEnd([destroy](const Transfer& ended) {
      destroy();
      EXPECT_EQ(ended.Poll(), TransferState::kDone);
    });
  });
}

TEST_P(AgentDestroy, InsideANotificationCallback) {
  DestroyInside([&](std::function<void()> destroy) {
    pair_.a.agent->OnNotification([destroy = std::move(destroy)](const Notification& n) {
      destroy();
      EXPECT_EQ(n.payload, "end");
    });
    ASSERT_OK(pair_.b.agent->Notify("a", "end", Unhurried(NotifyOrder::kAnyOrder)));
  });
}

// Expect that what an OnEnd posts again while the agent is being destroyed ends too, or is refused.
TEST_P(AgentDestroy, PostedAgainFromACallback) {
  std::mutex mutex;
  std::vector<Transfer> posted;
  std::vector<absl::Status> refused;
  Agent* const agent = pair_.a.agent.get();
  const std::function<void(const Transfer&)> again = [&](const Transfer&) {
    const absl::StatusOr<Transfer> transfer = agent->Notify("b", "again", Unhurried());
    if (transfer.ok()) transfer->OnEnd(again);
    const std::lock_guard lock(mutex);
    if (transfer.ok()) {
      posted.push_back(*transfer);
    } else {
      refused.push_back(transfer.status());
    }
  };
  std::vector<Transfer> held;
  PostHeld(held);
  for (const Transfer& transfer : held) transfer.OnEnd(again);
  pair_.a.agent.reset();
  for (const Transfer& transfer : posted) EXPECT_NE(transfer.Poll(), TransferState::kActive);
  EXPECT_EQ(refused.size(), size_t{kOthers});
  for (const absl::Status& status : refused) {
    EXPECT_TRUE(Fails(status, absl::StatusCode::kFailedPrecondition, {"closed"}));
  }
}

INSTANTIATE_TEST_SUITE_P(All, AgentDestroy, ::testing::ValuesIn(AllFlavours()), FlavourName);

}  // namespace
}  // namespace kvxfer::testing
