// Whose slice is posted next, and on which rail, over endpoints that take what the test lets them.

#include "src/agent/session/sender.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "src/core/plan/slice_walk.h"
#include "tests/unit/agent/session/fake_peer.h"

namespace kvxfer::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint64_t kSlice = 1024;

class SenderTest : public ::testing::Test,
                   public FakePeer,
                   public Sender::User,
                   private StagerUser {
 protected:
  SenderTest() {
    backend_.capabilities_now().arrival = Arrival::kCopied;
    MakeRegions();
    made_.GoUp(now_);
  }
  void OnLayerPosted(uint64_t layer_stream) override { layers_.push_back(layer_stream); }

  absl::Status BeginChild(const TransferPtr& /*child*/, Link* /*link*/) override {
    return absl::OkStatus();
  }
  void EndChild(uint64_t /*child*/, const absl::Status& /*why*/, Time /*by*/) override {}
  void OnMoved() override {}
  void OnStaged(uint64_t /*op*/, const absl::Status& /*status*/) override {}
  void OnSettled(const TransferPtr& /*whole*/) override {}

  struct How {
    int priority = 0;
    bool counted = false;  // by the target
    uint64_t layer_stream = 0;
    const std::atomic<uint32_t>* ready = nullptr;
  };
  // A write of four slices that begins now.
  Outbound& Begin(uint64_t id, const How& how) {
    TransferPtr record = std::make_shared<internal::TransferRecord>();
    Plan(*record, MemoryKind::kHost);
    record->id = id;
    record->peer = "decode-0";
    record->options.priority = how.priority;
    record->options.ready = how.ready;
    record->layer_stream = how.layer_stream;
    record->deadline = now_ + 100 * kTimeout;
    Outbound& added = outbounds_.Add();
    added.record = record;
    added.link = made_.link.get();
    added.holds_layer_stream = how.layer_stream != 0;
    added.registrations.assign(record->local->regions().size(), &registration_);
    added.keys.assign(record->remote->regions().size(), &key_);
    added.blocks = record->blocks.View(added.registrations, added.keys);
    added.walk = SliceWalk(&added.blocks);
    added.limits = {.max_bytes = kSlice, .max_pieces = 16};
    SendTracker::Request request{.id = id,
                                 .link = made_.link->number,
                                 .moves = true,
                                 .posted = record->posted,
                                 .deadline = record->deadline,
                                 .context = &added};
    if (how.counted) request.lanes.emplace(made_.link->choice.size(), true);
    added.sending = &tracker_.Begin(std::move(request), now_);
    sender_.Start(added);
    return added;
  }
  Outbound& Begin(uint64_t id) { return Begin(id, How()); }
  // The transfers whose ops were posted in a round, in order.
  std::vector<uint64_t> Post(size_t space = 1000) {
    made_.endpoint->space = space;
    sender_.Post(now_, Sender::kMaxDone);
    std::vector<uint64_t> ids;
    for (const Op& op : std::exchange(made_.endpoint->ops, {})) ids.push_back(op.transfer);
    return ids;
  }

  FakeBackend& backend_ = Both("tcp");
  FakeLink made_{0, 1, 2};
  Registration registration_;
  RemoteKey key_;
  ReliableChannel channel_;
  SendTracker tracker_{&channel_, kTimeout};
  OutboundList outbounds_;
  Stager stager_{this, &runtime_, &channel_, &regions_};
  Sender sender_{&runtime_, &tracker_, &stager_, this};
  std::vector<uint64_t> layers_;
};

TEST_F(SenderTest, AllSlicesGoOnceAndInOrder) {
  Outbound& one = Begin(1);
  sender_.Post(now_, Sender::kMaxDone);
  ASSERT_EQ(made_.endpoint->ops.size(), 4u);
  uint64_t bytes = 0;
  for (const Op& op : made_.endpoint->ops) {
    EXPECT_EQ(op.kind, OpKind::kWrite);
    EXPECT_FALSE(op.has_immediate);
    EXPECT_EQ(op.blocks.bytes, kSlice);
    EXPECT_EQ(runtime_.ops.Find(op.id)->outbound, &one);
    bytes += op.blocks.bytes;
  }
  EXPECT_EQ(bytes, kBytes);
  EXPECT_EQ(one.sending->state(), SendState::kSent);
  EXPECT_EQ(one.sending->ops(), 4u);
  EXPECT_EQ(one.first_post, now_);
  EXPECT_EQ(made_.link->choice.in_flight(0) + made_.link->choice.in_flight(1), kBytes);
  made_.endpoint->ops.clear();
  EXPECT_THAT(Post(), IsEmpty());
}

TEST_F(SenderTest, TransfersOfOnePriorityTakeTurns) {
  Begin(1);
  Begin(2);
  EXPECT_THAT(Post(), ElementsAre(1, 2, 1, 2, 1, 2, 1, 2));
}

TEST_F(SenderTest, AHigherPriorityGoesFirst) {
  Begin(1);
  Begin(2, {.priority = 5});
  Begin(3, {.priority = 5});
  EXPECT_THAT(Post(5), ElementsAre(2, 3, 2, 3, 2));
  EXPECT_THAT(Post(), ElementsAre(3, 2, 3, 1, 1, 1, 1));
}

TEST_F(SenderTest, WhatIsRefusedGoesInALaterRound) {
  Outbound& one = Begin(1);
  EXPECT_THAT(Post(3), ElementsAre(1, 1, 1));
  EXPECT_TRUE(made_.link->full);
  EXPECT_TRUE(one.sending->prepared().has_value());
  EXPECT_THAT(Post(), ElementsAre(1));
  EXPECT_EQ(one.sending->ops(), 4u);
}

TEST_F(SenderTest, OnlyRailsThatAreUpAreTaken) {
  Begin(1);
  ASSERT_TRUE(made_.link->rails.OnDown(0, absl::UnavailableError("cable"), now_));
  sender_.Post(now_, Sender::kMaxDone);
  ASSERT_EQ(made_.endpoint->ops.size(), 4u);
  for (const Op& op : made_.endpoint->ops) EXPECT_EQ(op.rail, 1u);
  Begin(2);
  made_.endpoint->ops.clear();
  ASSERT_TRUE(made_.link->rails.OnDown(1, absl::UnavailableError("cable"), now_));
  EXPECT_THAT(Post(), IsEmpty());
}

TEST_F(SenderTest, ASmallTransferStaysOnItsRail) {
  ASSERT_LT(kBytes, runtime_.options.stripe_from);
  Outbound& one = Begin(1);
  sender_.Post(now_, Sender::kMaxDone);
  for (const Op& op : made_.endpoint->ops) EXPECT_EQ(op.rail, one.home);
}

TEST_F(SenderTest, WhatTheTargetCountsNeedsASlot) {
  Outbound& one = Begin(1, {.counted = true});
  EXPECT_THAT(Post(), IsEmpty());
  EXPECT_FALSE(made_.link->full) << "the rails refused nothing";
  ASSERT_NE(channel_.NextToSend(), nullptr) << "slots are asked for";
  ASSERT_OK(tracker_.slots().OnGrant({.range = {.first = 0, .count = 4}}));
  sender_.Post(now_, Sender::kMaxDone);
  ASSERT_EQ(made_.endpoint->ops.size(), 4u);
  EXPECT_TRUE(made_.endpoint->ops[3].has_immediate);
  EXPECT_EQ(one.sending->state(), SendState::kOpened);
}

// Where rails keep order, a lane without the last slice is closed by an empty write.
TEST_F(SenderTest, LanesAreClosed) {
  ASSERT_OK(tracker_.slots().OnGrant({.range = {.first = 0, .count = 4}}));
  Outbound& one = Begin(1, {.counted = true});
  EXPECT_EQ(Post(1).size(), 1u);
  const uint32_t first = one.home;
  one.home = 1 - first;  // the rest takes the other rail
  made_.endpoint->space = 1000;
  sender_.Post(now_, Sender::kMaxDone);
  ASSERT_EQ(made_.endpoint->ops.size(), 4u);
  const Op& closing = made_.endpoint->ops.back();
  EXPECT_EQ(closing.rail, first);
  EXPECT_EQ(closing.blocks.bytes, 0u);
  EXPECT_TRUE(closing.has_immediate);
  EXPECT_EQ(one.sending->ops(), 5u);
}

TEST_F(SenderTest, ATransferIsHeldBackUntilItsFlagIsSet) {
  std::atomic<uint32_t> ready{0};
  Begin(1, {.ready = &ready});
  Begin(2);
  EXPECT_THAT(Post(), ElementsAre(2, 2, 2, 2));
  EXPECT_TRUE(sender_.waits_ready());
  ready = 1;
  EXPECT_THAT(Post(), ElementsAre(1, 1, 1, 1));
  EXPECT_FALSE(sender_.waits_ready());
}

TEST_F(SenderTest, ALayerStreamIsFreeOnceAllIsPosted) {
  Begin(1, {.layer_stream = 7});
  Post(3);
  EXPECT_THAT(layers_, IsEmpty());
  Post();
  EXPECT_THAT(layers_, ElementsAre(7));
}

TEST_F(SenderTest, NothingMoreIsPostedOfWhatStops) {
  Begin(1);
  Outbound& two = Begin(2, {.layer_stream = 7});
  EXPECT_THAT(Post(1), ElementsAre(1));
  const uint64_t prepared = two.prepared;
  ASSERT_NE(prepared, 0u) << "it was refused";
  sender_.Stop(two);
  EXPECT_THAT(layers_, ElementsAre(7));
  EXPECT_EQ(two.prepared, 0u);
  EXPECT_EQ(runtime_.ops.Find(prepared), nullptr);
  EXPECT_THAT(Post(), ElementsAre(1, 1, 1));
  EXPECT_EQ(layers_.size(), 1u);
}

TEST_F(SenderTest, ATransferHasOnePlace) {
  Outbound& one = Begin(1);
  Begin(2);
  sender_.Start(one);
  EXPECT_THAT(Post(), ElementsAre(1, 2, 1, 2, 1, 2, 1, 2));
}

TEST_F(SenderTest, SoleDataWaitsForTheNextMessage) {
  ASSERT_OK(tracker_.slots().OnGrant({.range = {.first = 0, .count = 4}}));
  Outbound& one = Begin(1, {.counted = true});
  one.limits.max_bytes = kBytes;
  EXPECT_EQ(sender_.inline_link(), nullptr);
  sender_.Post(now_, Sender::kMaxDone);
  ASSERT_EQ(made_.endpoint->ops.size(), 1u);
  EXPECT_TRUE(made_.endpoint->ops[0].sole);
  EXPECT_NE(sender_.inline_link(), nullptr);
  sender_.OnMessagesSent();
  EXPECT_EQ(sender_.inline_link(), nullptr);
}

}  // namespace
}  // namespace kvxfer::testing
