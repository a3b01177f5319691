// How an application takes events, and when that returns credit to initiators.
#include "src/agent/engine/event_service.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "tests/unit/agent/engine/engine_parts.h"

namespace kvxfer::testing {
namespace {

class EventServiceTest : public ::testing::Test, public EngineParts {
 protected:
  static constexpr auto kNotifications = AgentEventKinds::kNotification;

  void Push(size_t bytes = 0) {
    runtime_.events.Push(Notification{.payload = std::string(bytes, 'n')},
                         {.account = account_, .bytes = bytes});
    runtime_.loop.Wake(&runtime_.events);
  }

  const std::shared_ptr<CreditAccount> account_ = std::make_shared<CreditAccount>();
  EventService service_{&runtime_, &gate_};
  AgentEvent event_;
};

TEST_F(EventServiceTest, WaitsForAnEventOfTheKind) {
  EXPECT_TRUE(Fails(service_.Wait({}, kMs, kNotifications), absl::StatusCode::kInvalidArgument));
  EXPECT_TRUE(Fails(service_.Wait({&event_, 1}, kMs, AgentEventKinds::kNone),
                    absl::StatusCode::kInvalidArgument));
  Push();
  EXPECT_TRUE(Fails(service_.Wait({&event_, 1}, kMs, AgentEventKinds::kPeer),
                    absl::StatusCode::kOutOfRange));
  EXPECT_EQ(*service_.Wait({&event_, 1}, kMs, kNotifications), 1u);
  std::thread other([&] { Push(); });
  EXPECT_EQ(*service_.Wait({&event_, 1}, 1000 * kTimeout, kNotifications), 1u);
  other.join();
}

TEST_F(EventServiceTest, OneAtATime) {
  EXPECT_FALSE(service_.PollOne<Notification>(kNotifications).has_value());
  Push(3);
  EXPECT_EQ(service_.PollOne<Notification>(kNotifications)->payload, "nnn");
  EXPECT_FALSE(service_.PollOne<Notification>(kNotifications).has_value());
}

// Expect a round of the driver once so much was taken that an initiator may wait for credit.
TEST_F(EventServiceTest, TakingNotificationsReturnsCredit) {
  const auto take = [&] {
    Push();
    ASSERT_EQ(runtime_.events.Poll({&event_, 1}, kNotifications), 1u);
  };
  const auto submissions = [&] {
    EXPECT_OK(gate_.Call([] {}));  // what was submitted before has run
    return posts();
  };
  take();
  const int before = submissions();
  for (uint32_t i = 2; i < runtime_.options.max_notifications / 4 && i < 256; ++i) take();
  const int without = submissions();
  take();
  const int with = submissions();
  // A call is a submission itself.
  EXPECT_EQ(without - before, 1);
  EXPECT_GT(with - without, 1);
}

}  // namespace
}  // namespace kvxfer::testing
