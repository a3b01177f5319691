// The ways to be told: polling, waiting, a descriptor for epoll, and callbacks.
#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/agents.h"
#include "tests/support/blocks.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

using std::chrono::milliseconds;

class AgentNotification : public ::testing::TestWithParam<Flavour> {
 protected:
  void SetUp() override { ASSERT_OK_AND_ASSIGN(pair_, Pair::Create(GetParam(), 64 * 1024)); }
  void Notify(const std::string& payload) {
    ASSERT_OK_AND_ASSIGN(const Transfer transfer, pair_.a.agent->Notify("b", payload, Unhurried()));
    last_ = transfer;
  }
  bool Readable(Duration limit) const {
    pollfd fd{.fd = pair_.b.agent->notification_fd(), .events = POLLIN, .revents = 0};
    return poll(&fd, 1, static_cast<int>(Milliseconds(limit))) == 1;
  }

  Pair pair_;
  Transfer last_;
};

TEST_P(AgentNotification, WaitTimesOutAndThenDelivers) {
  EXPECT_TRUE(Fails(pair_.b.agent->WaitNotification(milliseconds(5)), kTimedOut));
  EXPECT_TRUE(Fails(pair_.b.agent->WaitNotification(Duration(0)), kTimedOut));
  Notify("one");
  ASSERT_OK_AND_ASSIGN(const Notification n, pair_.b.agent->WaitNotification(kAmple));
  EXPECT_EQ(n.payload, "one");
}

// Expect that each of many waiting threads gets one, and none is woken for nothing and gone.
TEST_P(AgentNotification, ManyWaiters) {
  constexpr int kWaiters = 6;
  const int each = Scaled(50);
  std::mutex mutex;
  std::vector<int> seen(static_cast<size_t>(kWaiters * each), 0);
  std::vector<std::thread> waiters;
  waiters.reserve(kWaiters);
  for (int w = 0; w < kWaiters; ++w) {
    waiters.emplace_back([&] {
      for (int i = 0; i < each; ++i) {
        const absl::StatusOr<Notification> n = pair_.b.agent->WaitNotification(kAmple);
        if (!n.ok()) {
          ADD_FAILURE() << n.status();
          return;
        }
        const std::lock_guard lock(mutex);
        ++seen.at(static_cast<size_t>(std::stoi(n->payload)));
      }
    });
  }
  for (int i = 0; i < kWaiters * each; ++i) Notify(std::to_string(i));
  for (std::thread& waiter : waiters) waiter.join();
  for (int times : seen) EXPECT_EQ(times, 1);
}

TEST_P(AgentNotification, DescriptorIsReadableWhileSomeWait) {
  EXPECT_FALSE(Readable(Duration(0)));
  Notify("one");
  Notify("two");
  ASSERT_OK(last_.Wait(kAmple));
  ASSERT_TRUE(Readable(kAmple));
  std::vector<std::string> told;
  ASSERT_TRUE(Eventually(kAmple, [&] {
    while (auto n = pair_.b.agent->PollNotification()) told.push_back(n->payload);
    return told.size() == 2;
  }));
  EXPECT_EQ(told, (std::vector<std::string>{"one", "two"}));
  EXPECT_FALSE(pair_.b.agent->PollNotification().has_value());
  EXPECT_FALSE(Readable(Duration(0))) << "readable with nothing to poll";
  // Again, with the reader asleep before the notification comes.
  std::thread sender([&] { Notify("three"); });
  EXPECT_TRUE(Readable(kAmple));
  sender.join();
  std::optional<Notification> three;
  ASSERT_TRUE(Eventually(kAmple, [&] { return (three = pair_.b.agent->PollNotification()); }));
  EXPECT_EQ(three->payload, "three");
}

TEST_P(AgentNotification, CallbackInOrderThenBackToPolling) {
  std::mutex mutex;
  std::vector<std::string> told;
  // What came before the callback was set goes to it as well.
  Notify("0");
  ASSERT_OK(last_.Wait(kAmple));
  pair_.b.agent->OnNotification([&](const Notification& n) {
    const std::lock_guard lock(mutex);
    told.push_back(n.payload);
  });
  for (int i = 1; i < 100; ++i) Notify(std::to_string(i));
  EXPECT_TRUE(Eventually(kAmple, [&] {
    const std::lock_guard lock(mutex);
    return told.size() == 100;
  }));
  pair_.b.agent->OnNotification(nullptr);
  for (size_t i = 0; i < told.size(); ++i) EXPECT_EQ(told[i], std::to_string(i));
  Notify("after");
  ASSERT_OK_AND_ASSIGN(const Notification n, pair_.b.agent->WaitNotification(kAmple));
  EXPECT_EQ(n.payload, "after");
  EXPECT_EQ(told.size(), 100u);
}

// Expect that a transfer ends although the application that was told of it never calls again: it is
// trusted to answer at once, but not for ever.
TEST_P(AgentNotification, AnApplicationThatDoesNotAnswerHoldsNobodyUp) {
  for (int i = 0; i < 100; ++i) {
    Notify(std::to_string(i));
    ASSERT_OK_AND_ASSIGN(const Notification n, pair_.b.agent->WaitNotification(kAmple));
    EXPECT_EQ(n.payload, std::to_string(i));
    ASSERT_OK(last_.Wait(kAmple));
  }
}

// Expect that every blocking call inside a callback is refused, even where there is nothing left to
// wait for, and that posting is not.
TEST_P(AgentNotification, BlockingInsideACallbackIsRefused) {
  std::atomic<bool> ran{false};
  absl::Status wait_transfer;
  absl::Status wait_notification;
  absl::Status quiesce;
  absl::Status deregister;
  absl::StatusOr<Transfer> answer = absl::UnknownError("not posted");
  absl::Status wait_ended;
  pair_.b.agent->OnNotification([&](const Notification& n) {
    answer = pair_.b.agent->Notify(n.peer, "answer", Unhurried());
    if (!answer.ok()) return ran.store(true);
    wait_transfer = answer->Wait(kAmple);
    wait_notification = pair_.b.agent->WaitNotification(milliseconds(1)).status();
    quiesce = pair_.b.agent->Quiesce({}, kAmple).status();
    deregister = pair_.b.agent->DeregisterMemory(pair_.b.region);
    answer->OnEnd([&](const Transfer& ended) {
      wait_ended = ended.Wait(kAmple);
      ran.store(true);
    });
  });
  Notify("question");
  ASSERT_TRUE(Eventually(kAmple, [&] { return ran.load(); }));
  EXPECT_TRUE(Fails(wait_ended, absl::StatusCode::kFailedPrecondition, {"callback"}));
  EXPECT_TRUE(Fails(wait_transfer, absl::StatusCode::kFailedPrecondition, {"callback"}));
  EXPECT_TRUE(Fails(wait_notification, absl::StatusCode::kFailedPrecondition, {"callback"}));
  EXPECT_TRUE(Fails(quiesce, absl::StatusCode::kFailedPrecondition, {"callback"}));
  EXPECT_TRUE(Fails(deregister, absl::StatusCode::kFailedPrecondition, {"callback"}));
  EXPECT_TRUE(Fails(pair_.b.agent->IsQuiet(QuiesceToken{1}), absl::StatusCode::kNotFound))
      << "was begun";
  ASSERT_OK(answer);
  ASSERT_OK_AND_ASSIGN(const Notification n, pair_.a.agent->WaitNotification(kAmple));
  EXPECT_EQ(n.payload, "answer");
  pair_.b.agent->OnNotification(nullptr);
}

// Expect that the notifications of one peer that nobody drains are bounded and hold back that
// peer alone; nothing is lost once they are drained.
TEST_P(AgentNotification, UndrainedOnesHoldBackAndAreNotLost) {
  AgentOptions a = OptionsFor(GetParam(), "a");
  AgentOptions b = OptionsFor(GetParam(), "b");
  b.max_notifications = 16;
  ASSERT_OK_AND_ASSIGN(pair_, Pair::Create(GetParam(), a, b, 4096));
  ASSERT_OK_AND_ASSIGN(Node c, Node::Create(OptionsFor(GetParam(), "c"), GetParam().memory, 4096));
  ASSERT_OK(Introduce(*c.agent, *pair_.b.agent));
  for (int i = 0; i < 100; ++i) Notify(std::to_string(i));
  // Another peer gets through although a's are full.
  ASSERT_OK_AND_ASSIGN(const Transfer other, c.agent->Notify("b", "other", Unhurried()));
  ASSERT_OK(other.Wait(kAmple));
  EXPECT_EQ(last_.Poll(), TransferState::kActive);
  int next = 0;
  bool other_notified = false;
  while (next < 100 || !other_notified) {
    ASSERT_OK_AND_ASSIGN(const Notification n, pair_.b.agent->WaitNotification(kAmple));
    if (n.peer == "c") {
      other_notified = true;
    } else {
      ASSERT_EQ(n.payload, std::to_string(next++));
    }
  }
  EXPECT_OK(last_.Wait(kAmple));
}

// Expect that credit for bytes comes back as the callback takes them: without a ping, of which
// there is one in five seconds at most.
TEST_P(AgentNotification, CallbackGivesBytesBackAtOnce) {
  AgentOptions a = OptionsFor(GetParam(), "a");
  AgentOptions b = OptionsFor(GetParam(), "b");
  for (AgentOptions* options : {&a, &b}) {
    options->heartbeat = std::chrono::minutes(1);
    options->suspect_after = std::chrono::minutes(2);
  }
  b.max_notification_bytes = kMaxNotificationBytes;
  ASSERT_OK_AND_ASSIGN(pair_, Pair::Create(GetParam(), a, b, 4096));
  std::atomic<int> told{0};
  pair_.b.agent->OnNotification([&](const Notification& n) {
    EXPECT_EQ(n.payload.size(), kMaxNotificationBytes);
    ++told;
  });
  for (int i = 0; i < 20; ++i) Notify(std::string(kMaxNotificationBytes, 'x'));
  EXPECT_OK(last_.Wait(std::chrono::seconds(30)));
  EXPECT_TRUE(Eventually(kAmple, [&] { return told == 20; }));
  pair_.b.agent->OnNotification(nullptr);
}

INSTANTIATE_TEST_SUITE_P(All, AgentNotification, ::testing::ValuesIn(AllFlavours()), FlavourName);

}  // namespace
}  // namespace kvxfer::testing
