// What an application may post, what becomes of it before its peer has it, and what its handles
// ask.
#include "src/agent/engine/transfer_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/agent/engine/engine_parts.h"

namespace kvxfer::testing {
namespace {

using ::testing::HasSubstr;

class TransferServiceTest : public ::testing::Test, public EngineParts {
 protected:
  static constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  static constexpr auto kRefused = absl::StatusCode::kFailedPrecondition;

  TransferServiceTest() {
    MakeReachable();
    service_->Open(service_);
  }
  // Threads see the peer, and the driver has it no more: it was removed meanwhile.
  void PublishAlone() {
    const Peer peer(&runtime_, &inbound_, metadata_);
    views_.Publish(peer.view());
  }
  absl::StatusOr<TransferPtr> Post(TransferOptions options = {}) {
    if (!options.notification.has_value()) options.notification = "word";
    return service_->Start(TransferKind::kNotify, "decode-0", {}, std::move(options));
  }

  const std::shared_ptr<TransferService> service_ =
      std::make_shared<TransferService>(TransferService::Parts{
          .runtime = &runtime_, .gate = &gate_, .peers = &peers_, .views = &views_});
};

TEST_F(TransferServiceTest, WhatIsWrongIsRefusedByName) {
  EXPECT_TRUE(Fails(Post(), absl::StatusCode::kNotFound, {"decode-0"}));
  ASSERT_OK(Install());
  TransferOptions options;
  options.deadline = Duration::zero();
  EXPECT_TRUE(Fails(Post(options), kInvalid, {"deadline"}));
  options = {};
  options.notification = std::string(kMaxNotificationBytes + 1, 'x');
  EXPECT_TRUE(Fails(Post(options), kInvalid, {"64 KiB"}));
  options = {};
  options.backend = "verbs";
  EXPECT_TRUE(Fails(Post(options), kInvalid, {"verbs"}));
  runtime_.unusable.push_back({.backend = "verbs", .why = "no device"});
  EXPECT_TRUE(Fails(Post(options), kInvalid, {"verbs: no device"}));
  options.backend = "tcp";
  EXPECT_OK(Post(options));
}

TEST_F(TransferServiceTest, APostedTransferIsItsPeers) {
  ASSERT_OK(Install());
  ASSERT_OK_AND_ASSIGN(const TransferPtr first, Post());
  ASSERT_OK_AND_ASSIGN(const TransferPtr second, Post());
  EXPECT_LT(first->id, second->id);
  EXPECT_EQ(first->service.lock(), service_);
  ASSERT_OK(gate_.Call([] {}));  // the driver runs it behind what was posted
  EXPECT_EQ((*views_.Find("decode-0"))->queued->load(), 2u);
  service_->Cancel(first);
  Wait(first);
  EXPECT_EQ(first->state(), TransferState::kCancelled);
  EXPECT_FALSE(second->ended());
}

TEST_F(TransferServiceTest, ThePeerMayBeGoneMeanwhile) {
  PublishAlone();
  ASSERT_OK_AND_ASSIGN(const TransferPtr record, Post());
  Wait(record);
  EXPECT_EQ(record->state(), TransferState::kFailed);
  EXPECT_THAT(record->end().status.message(), HasSubstr("removed or replaced"));
  EXPECT_EQ(record->end().delivery, Delivery::kNotDelivered);
}

// Expect that nothing planned for one incarnation reaches the next one.
TEST_F(TransferServiceTest, AndSoMayItsIncarnation) {
  PublishAlone();
  metadata_.incarnation = Incarnation::Random();
  const auto before = *views_.Find("decode-0");
  ASSERT_OK(Install());
  views_.Publish(before);
  ASSERT_OK_AND_ASSIGN(const TransferPtr record, Post());
  Wait(record);
  EXPECT_EQ(record->state(), TransferState::kFailed);
}

TEST_F(TransferServiceTest, AnAgentThatClosesCancels) {
  PublishAlone();
  ASSERT_OK(gate_.Call([&] { peers_.Close(absl::CancelledError("over"), kTimeout); }));
  ASSERT_OK_AND_ASSIGN(const TransferPtr record, Post());
  Wait(record);
  EXPECT_EQ(record->state(), TransferState::kCancelled);
}

TEST_F(TransferServiceTest, AnAgentThatDrainsTakesNothingNew) {
  ASSERT_OK(Install());
  gate_.StopWork();
  EXPECT_TRUE(Fails(Post(), kRefused, {"drained"}));
}

TEST_F(TransferServiceTest, APeerHasABound) {
  ASSERT_OK(Install());
  const auto view = *views_.Find("decode-0");
  const uint32_t queued = view->queued->exchange(1u << 16);
  EXPECT_TRUE(Fails(Post(), absl::StatusCode::kResourceExhausted, {"decode-0"}));
  view->queued->store(queued);
  EXPECT_OK(Post());
}

// Expect that what a closed agent refuses keeps no place in the event queue.
TEST_F(TransferServiceTest, PlacesForEndsComeBack) {
  ASSERT_OK(Install());
  runtime_.loop.Stop();
  TransferOptions options;
  options.user_word = 7;
  for (size_t i = 0; i <= kMaxUnreadEnds; ++i) {
    ASSERT_TRUE(Fails(Post(options), kRefused, {"closed"})) << i;
  }
}

TEST_F(TransferServiceTest, WatchedEndsHaveABound) {
  ASSERT_OK(Install());
  std::vector<TransferPtr> records;
  ASSERT_OK_AND_ASSIGN(const TransferPtr record, Post());
  for (size_t i = 0; i <= kMaxUnreadEnds; ++i) ASSERT_OK(service_->Watch(record, i)) << i;
  for (size_t i = 1; i < kMaxUnreadEnds; ++i) {
    ASSERT_TRUE(runtime_.events.ReserveEnd(EndLane::kWatched)) << i;
  }
  ASSERT_OK_AND_ASSIGN(const TransferPtr another, Post());
  EXPECT_TRUE(
      Fails(service_->Watch(another, 1), absl::StatusCode::kResourceExhausted, {"PollEvents"}));
}

TEST_F(TransferServiceTest, AWatchAfterTheEndIsAnEventAtOnce) {
  PublishAlone();
  ASSERT_OK_AND_ASSIGN(const TransferPtr record, Post());
  Wait(record);
  EXPECT_FALSE(runtime_.events.Has(AgentEventKinds::kWatchedEnd));
  ASSERT_OK(service_->Watch(record, 7));
  EXPECT_TRUE(runtime_.events.Has(AgentEventKinds::kWatchedEnd));
}

TEST_F(TransferServiceTest, AGroupOfNobodyIsDone) {
  const auto whole = std::make_shared<internal::TransferRecord>();
  ASSERT_OK(service_->PostGroup(whole, {}));
  EXPECT_EQ(whole->state(), TransferState::kDone);
}

TEST_F(TransferServiceTest, AGroupEndsWithItsMembers) {
  ASSERT_OK(Install());
  const auto view = *views_.Find("decode-0");
  std::vector<TransferPtr> members;
  for (int i = 0; i < 2; ++i) {
    ASSERT_OK_AND_ASSIGN(auto member, service_->NewRecord(TransferKind::kNotify, view, {}));
    members.push_back(std::move(member));
  }
  const auto whole = std::make_shared<internal::TransferRecord>();
  ASSERT_OK(service_->PostGroup(whole, members));
  EXPECT_EQ(whole->peer, "decode-0,decode-0");
  EXPECT_GT(whole->id, members[1]->id);
  EXPECT_FALSE(whole->ended());
  service_->Cancel(whole);
  Wait(whole);
  for (const TransferPtr& member : members) EXPECT_TRUE(member->ended());
  EXPECT_EQ(whole->state(), TransferState::kCancelled);
}

}  // namespace
}  // namespace kvxfer::testing
