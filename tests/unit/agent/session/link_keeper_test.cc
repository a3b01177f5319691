// Links that do not become up, and rails that fail alone and come back.

#include "src/agent/session/link_keeper.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/unit/agent/session/fake_peer.h"

namespace kvxfer::testing {
namespace {

using ::testing::ElementsAre;

class LinkKeeperTest : public ::testing::Test, public FakePaths {
 protected:
  LinkKeeperTest() { endpoint_->rails.resize(2); }
  void GoUp() { FakePaths::GoUp(*link_); }

  std::vector<FrameType> Sent() {
    std::vector<FrameType> types;
    for (const std::string& message : std::exchange(endpoint_->sent, {})) {
      types.push_back(DecodeEnvelope(std::as_bytes(std::span(message)))->type);
    }
    return types;
  }

  FakeBackend& backend_ = Both("tcp");
  Link* const link_ = &Dial();
  FakeEndpoint* const endpoint_ = &EndpointOf(*link_);
  Session session_{{.name = "here"}, {.name = "decode-0"}, 5, now_};
  SendTracker tracker_{&session_.channel(), kTimeout};
  LinkKeeper keeper_{{.runtime = &runtime_,
                      .peer = &metadata_,
                      .paths = &Paths(),
                      .session = &session_,
                      .tracker = &tracker_}};
};

TEST_F(LinkKeeperTest, ALinkThatDoesNotBecomeUpIsGivenUp) {
  link_->give_up = now_ + kTimeout;
  keeper_.OnConnectTimer(now_ + kTimeout - Duration(1));
  EXPECT_OK(endpoint_->shut);
  keeper_.OnConnectTimer(now_ + kTimeout);
  EXPECT_TRUE(Fails(endpoint_->shut, absl::StatusCode::kUnavailable,
                    {"peer decode-0 did not answer within 1000 ms"}));
  EXPECT_EQ(link_->state, Link::State::kClosing);
  EXPECT_THAT(Sent(), ElementsAre());
}

TEST_F(LinkKeeperTest, ARailThatFailsIsFencedAndBuiltAgain) {
  GoUp();
  keeper_.OnRailDown(*link_, 1, absl::UnavailableError("cable"));
  EXPECT_EQ(link_->rails.up(), 0b01u);
  keeper_.SendFences();
  keeper_.SendFences();
  EXPECT_THAT(Sent(), ElementsAre(FrameType::kFenceRail));
  EXPECT_THAT(endpoint_->reopened, ElementsAre());
  EXPECT_OK(keeper_.OnRailFenced(*link_, {.rail = 1}));
  EXPECT_THAT(endpoint_->reopened, ElementsAre(1));
  EXPECT_TRUE(keeper_.OnRailUp(*link_, 1));
  EXPECT_FALSE(keeper_.OnRailUp(*link_, 1));
  EXPECT_EQ(link_->rails.up(), 0b11u);
}

TEST_F(LinkKeeperTest, AllFencesThatAreDueAreSent) {
  GoUp();
  for (const uint32_t rail : {0u, 1u}) {
    keeper_.OnRailDown(*link_, rail, absl::UnavailableError("cable"));
  }
  keeper_.SendFences();
  EXPECT_THAT(Sent(), ElementsAre(FrameType::kFenceRail, FrameType::kFenceRail));
}

TEST_F(LinkKeeperTest, AFenceThatFindsNoSpaceIsSentLater) {
  GoUp();
  keeper_.OnRailDown(*link_, 0, absl::UnavailableError("cable"));
  endpoint_->messages = 0;
  keeper_.SendFences();
  endpoint_->messages = 1;
  keeper_.SendFences();
  EXPECT_THAT(Sent(), ElementsAre(FrameType::kFenceRail));
}

TEST_F(LinkKeeperTest, AnAnswerThatNobodyAskedForBreaksTheProtocol) {
  GoUp();
  EXPECT_TRUE(Fails(keeper_.OnRailFenced(*link_, {.rail = 0}), absl::StatusCode::kInvalidArgument,
                    {"rail 0"}));
  EXPECT_THAT(endpoint_->reopened, ElementsAre());
}

TEST_F(LinkKeeperTest, AFenceThatIsNotAnsweredClosesTheLink) {
  GoUp();
  keeper_.OnRailDown(*link_, 0, absl::UnavailableError("cable"));
  keeper_.SendFences();
  keeper_.OnRailTimer(Now() + kTimeout - kTimeout / 2);
  EXPECT_OK(endpoint_->shut);
  keeper_.OnRailTimer(Now() + kTimeout);
  EXPECT_TRUE(Fails(endpoint_->shut, absl::StatusCode::kUnavailable, {"rail 0"}));
}

TEST_F(LinkKeeperTest, OpsThatNoFailedRailExplainsFailTheirTransfer) {
  GoUp();
  auto& sending = tracker_.Begin(
      {.id = 1, .link = link_->number, .moves = true, .deadline = now_ + 100 * kTimeout}, now_);
  sending.Prepare(true);
  ASSERT_TRUE(sending.Offer(0, tracker_.slots()).has_value());
  sending.OnAccepted(0);
  tracker_.FinishPosting(sending);
  link_->rails.OnAccepted(0);
  link_->rails.OnCompleted(0, now_);
  ASSERT_TRUE(link_->rails.OnFailed(0, absl::AbortedError("flushed"), now_));
  tracker_.OnSuspect(sending, 0, 0, absl::AbortedError("flushed"), now_);
  keeper_.OnRailTimer(now_ + RailFences::kExplainWithin - Duration(1));
  EXPECT_FALSE(sending.ending());
  keeper_.OnRailTimer(now_ + RailFences::kExplainWithin);
  EXPECT_TRUE(sending.ending());
}

// The same with the loss of the rail: then its slices go again.
TEST_F(LinkKeeperTest, OpsThatAFailedRailExplainsGoAgain) {
  GoUp();
  auto& sending = tracker_.Begin(
      {.id = 1, .link = link_->number, .moves = true, .deadline = now_ + 100 * kTimeout}, now_);
  sending.Prepare(true);
  ASSERT_TRUE(sending.Offer(0, tracker_.slots()).has_value());
  sending.OnAccepted(0);
  tracker_.FinishPosting(sending);
  ASSERT_TRUE(link_->rails.OnFailed(0, absl::AbortedError("flushed"), now_));
  tracker_.OnSuspect(sending, 0, 0, absl::AbortedError("flushed"), now_);
  EXPECT_FALSE(sending.MayPost());
  keeper_.OnRailDown(*link_, 0, absl::UnavailableError("cable"));
  EXPECT_TRUE(sending.MayPost());
}

}  // namespace
}  // namespace kvxfer::testing
