// Transfers to a peer that the test plays: from posting to the end that the application gets.

#include "src/agent/session/transfer_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/agent/session/fake_peer.h"

namespace kvxfer::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class TransferSetTest : public ::testing::Test, public FakePaths {
 protected:
  explicit TransferSetTest(Arrival arrival = Arrival::kCopied) {
    Capabilities& capabilities = Both("tcp").capabilities_now();
    capabilities.arrival = arrival;
    capabilities.rail_keeps_order = true;
    capabilities.max_op_bytes = kBytes;
    capabilities.max_op_pieces = 16;
    metadata_.max_version = kMaxProtocolVersion;
    MakeRegions();
  }

  Link& Connect() {
    Link& link = Dial();
    EndpointOf(link).imports_as = absl::OkStatus();
    Prove(link);
    session_.OnLinkUp();
    Set().OnLinkUp(link);
    endpoint_ = &EndpointOf(link);
    return link;
  }
  TransferSet& Set() {
    if (set_ == nullptr) {
      set_ = std::make_unique<TransferSet>(TransferSet::Parts{.runtime = &runtime_,
                                                              .peer = &metadata_,
                                                              .paths = &Paths(),
                                                              .regions = &regions_,
                                                              .session = &session_,
                                                              .tracker = &tracker_,
                                                              .ready = &ready_});
    }
    return *set_;
  }
  TransferPtr Make(uint64_t id) {
    TransferPtr record = std::make_shared<internal::TransferRecord>();
    Plan(*record, MemoryKind::kHost);
    record->id = id;
    record->peer = metadata_.name;
    record->posted = now_;
    record->deadline = Now() + 100 * kTimeout;
    return record;
  }
  TransferPtr Submit(uint64_t id, const std::string& notification = "") {
    TransferPtr record = Make(id);
    if (!notification.empty()) record->options.notification = notification;
    Set().Submit(record, absl::OkStatus());
    return record;
  }
  void Post() { Set().Post(now_); }
  void Complete(Link& link, const absl::Status& status = absl::OkStatus()) {
    for (const Op& op : std::exchange(endpoint_->ops, {})) {
      Set().OnCompletion(link, op.id, status);
      Set().Settle();
    }
  }
  template <typename Frame>
  absl::Status Says(FrameType type, const Frame& frame) {
    const std::string body = Encode(frame);
    absl::Status status = Set().OnNumbered({.type = type, .body = std::as_bytes(std::span(body))});
    Set().Settle();
    return status;
  }
  // The types of frames that are to be sent.
  std::vector<FrameType> Frames() {
    std::vector<FrameType> types;
    while (const std::string* message = session_.channel().NextToSend()) {
      types.push_back(DecodeEnvelope(std::as_bytes(std::span(*message)))->type);
      session_.channel().MessageSent();
    }
    return types;
  }
  // Nothing is left of the transfers.
  void ExpectNothingLeft() {
    EXPECT_FALSE(Set().active());
    EXPECT_FALSE(Set().waits());
    EXPECT_FALSE(Set().queued());
    EXPECT_EQ(Set().count()->load(), 0u);
    EXPECT_FALSE(runtime_.memory.InUse(kHostRegion));
    EXPECT_EQ(Set().NextTimer(true), Time::max());
  }

  Session session_{{.name = "here"}, {.name = "decode-0"}, 77, now_};
  SendTracker tracker_{&session_.channel(), kTimeout};
  ReadyList::Member ready_{&runtime_.peers, nullptr};
  std::unique_ptr<TransferSet> set_;
  FakeEndpoint* endpoint_ = nullptr;
};

class CountedTransferSetTest : public TransferSetTest {
 protected:
  CountedTransferSetTest() : TransferSetTest(Arrival::kImmediate) {}
  Link& ConnectWithSlots() {
    Link& link = Connect();
    EXPECT_THAT(Frames(), ElementsAre(FrameType::kSlotRequest));
    EXPECT_OK(Says(FrameType::kSlotGrant, SlotGrantFrame{.range = {.first = 0, .count = 4}}));
    return link;
  }
};

TEST_F(TransferSetTest, AWriteThatIsCopiedIsDoneWithItsOps) {
  const TransferPtr record = Submit(1);
  EXPECT_EQ(Set().count()->load(), 1u);
  Post();
  EXPECT_TRUE(Set().queued());
  Link& link = Connect();
  Post();
  EXPECT_FALSE(Set().queued());
  EXPECT_EQ(endpoint_->ops.size(), 1u);
  EXPECT_FALSE(record->ended());
  Complete(link);
  EXPECT_EQ(record->state(), TransferState::kDone);
  EXPECT_EQ(record->end().stats.path, "tcp");
  EXPECT_THAT(Frames(), IsEmpty());
  ExpectNothingLeft();
}

// Expect no other pass for it, nor for the target's word of it.
TEST_F(TransferSetTest, AWriteThatIsDoneAtOnceGoesOnInTheSameCall) {
  Connect();
  endpoint_->done_at_once = true;
  ASSERT_OK(Says(FrameType::kCredit, CreditFrame{.notifications = 1, .bytes = 100}));
  const TransferPtr plain = Submit(1);
  const TransferPtr notified = Submit(2, "text");
  Post();
  EXPECT_EQ(plain->state(), TransferState::kDone);
  EXPECT_FALSE(notified->ended());
  EXPECT_THAT(Frames(), ElementsAre(FrameType::kOpen));
  EXPECT_OK(Says(FrameType::kReleased, ReleasedFrame{.arrived = {2}}));
  EXPECT_EQ(notified->state(), TransferState::kDone);
  ExpectNothingLeft();
}

// No event speaks of the space that they leave. Also where they are the layers of a few requests.
TEST_F(TransferSetTest, WhatIsDoneAtOnceLeavesSpaceForOthersAndLetsThemHaveTheirTurn) {
  constexpr uint64_t kMany = 1000;
  Connect();
  endpoint_->done_at_once = true;
  endpoint_->space = 3 * kMany;
  for (const uint64_t streams : {uint64_t{0}, uint64_t{1}, uint64_t{15}}) {
    std::vector<TransferPtr> records;
    for (uint64_t id = 1; id <= kMany; ++id) {
      records.push_back(Make(streams * kMany + id));
      if (streams > 0) records.back()->layer_stream = 1 + id % streams;
      Set().Submit(records.back(), absl::OkStatus());
    }
    const auto ended = [&] {
      return std::ranges::count_if(records, [](const TransferPtr& one) { return one->ended(); });
    };
    int64_t before = 0;
    for (int calls = 0; calls < 100 && before < static_cast<int64_t>(kMany); ++calls) {
      if (calls > 0) {
        ASSERT_LE(Set().NextTimer(true), runtime_.now) << before << ", and nobody calls again";
      }
      Post();
      const int64_t now = ended();
      EXPECT_GT(now, before);
      EXPECT_LE(now - before, static_cast<int64_t>(Sender::kMaxDone)) << streams << " streams";
      before = now;
    }
    EXPECT_EQ(before, static_cast<int64_t>(kMany));
    ExpectNothingLeft();
  }
}

TEST_F(TransferSetTest, ANotificationIsDeliveredByTheTargetsWord) {
  Link& link = Connect();
  ASSERT_OK(Says(FrameType::kCredit, CreditFrame{.notifications = 1, .bytes = 100}));
  const TransferPtr record = Submit(1, "text");
  Post();
  Complete(link);
  EXPECT_THAT(Frames(), ElementsAre(FrameType::kOpen));
  EXPECT_FALSE(record->ended());
  EXPECT_OK(Says(FrameType::kReleased, ReleasedFrame{.arrived = {1}}));
  EXPECT_EQ(record->state(), TransferState::kDone);
  EXPECT_EQ(record->end().delivery, Delivery::kDelivered);
  ExpectNothingLeft();
}

TEST_F(TransferSetTest, WhatIsRefusedAtOnceHoldsNothing) {
  const TransferPtr record = Make(1);
  Set().Submit(record, absl::CancelledError("removed"));
  EXPECT_EQ(record->state(), TransferState::kFailed);
  EXPECT_TRUE(absl::IsCancelled(record->end().status));
  ExpectNothingLeft();
}

TEST_F(TransferSetTest, ATransferCanBeCancelledBeforeAndAfterItBegins) {
  const TransferPtr queued = Submit(1);
  Set().Cancel(1, absl::CancelledError("no more"));
  EXPECT_EQ(queued->state(), TransferState::kCancelled);
  Link& link = Connect();
  const TransferPtr begun = Submit(2);
  Post();
  Set().Cancel(2, absl::CancelledError("no more"));
  EXPECT_THAT(endpoint_->fences, ElementsAre(FenceScope{.transfer = 2}));
  EXPECT_FALSE(begun->ended()) << "its op is in flight";
  Complete(link, absl::CancelledError("fenced"));
  EXPECT_EQ(begun->state(), TransferState::kCancelled);
  EXPECT_FALSE(begun->quarantined());
  Set().Cancel(3, absl::CancelledError("unknown"));
  ExpectNothingLeft();
}

TEST_F(TransferSetTest, ADeadlineInTheQueueSaysWhatWasWaitedFor) {
  const TransferPtr record = Submit(1);
  EXPECT_EQ(Set().NextTimer(true), record->deadline);
  Set().OnTimer(record->deadline - Duration(1));
  EXPECT_FALSE(record->ended());
  Set().OnTimer(record->deadline);
  EXPECT_EQ(record->state(), TransferState::kDeadlineExceeded);
  EXPECT_THAT(std::string(record->end().status.message()),
              HasSubstr("transfer 1 to peer decode-0 not done within"));
  EXPECT_THAT(std::string(record->end().status.message()), HasSubstr("not connected"));
  ExpectNothingLeft();
}

TEST_F(TransferSetTest, ADeadlineOnTheWireSaysHowFarItCame) {
  Link& link = Connect();
  const TransferPtr record = Submit(1);
  Post();
  Set().OnTimer(record->deadline);
  EXPECT_FALSE(record->ended());
  Complete(link, absl::CancelledError("fenced"));
  EXPECT_EQ(record->state(), TransferState::kDeadlineExceeded);
  EXPECT_THAT(std::string(record->end().status.message()),
              HasSubstr("sending, 1 slices posted, 1 not complete"));
  ExpectNothingLeft();
}

TEST_F(TransferSetTest, AnOpThatFailsFailsItsTransfer) {
  Link& link = Connect();
  const TransferPtr record = Submit(1);
  Post();
  Complete(link, absl::PermissionDeniedError("no right"));
  EXPECT_EQ(record->state(), TransferState::kFailed);
  EXPECT_THAT(std::string(record->end().status.message()),
              HasSubstr("transfer 1 to peer decode-0 over tcp"));
  ExpectNothingLeft();
}

TEST_F(TransferSetTest, ALostLinkFailsWhatItCarriedAndKeepsWhatIsQueued) {
  Link& link = Connect();
  const TransferPtr carried = Submit(1);
  Post();
  const TransferPtr queued = Submit(2);
  Complete(link, absl::AbortedError("lost"));
  Set().OnLinkLost(link, absl::UnavailableError("cable"));
  Set().Settle();
  EXPECT_EQ(carried->state(), TransferState::kFailed);
  EXPECT_FALSE(queued->ended());
  Set().EndQueued([](const auto& record) { return record.id == 2; }, TransferState::kFailed,
                  absl::UnavailableError("session lost"));
  EXPECT_THAT(std::string(queued->end().status.message()), HasSubstr("session lost"));
  ExpectNothingLeft();
}

TEST_F(CountedTransferSetTest, WhatTheTargetOnlyHasToConfirmSurvivesNoLostLink) {
  Link& link = ConnectWithSlots();
  const TransferPtr record = Submit(1);
  Post();
  Complete(link);
  EXPECT_THAT(Frames(), ElementsAre(FrameType::kOpen));
  Set().OnLinkLost(link, absl::UnavailableError("cable"));
  Set().Settle();
  EXPECT_EQ(record->state(), TransferState::kFailed);
  EXPECT_THAT(std::string(record->end().status.message()),
              HasSubstr("connection to peer decode-0 lost over tcp: cable"));
  EXPECT_EQ(record->end().stats.path, "") << "its link is no more";
  // The target has not answered ABORT: it may still get bytes.
  EXPECT_TRUE(record->quarantined());
  EXPECT_THAT(Frames(), ElementsAre(FrameType::kAbort));
  EXPECT_TRUE(Set().waits());
  EXPECT_OK(Says(FrameType::kReleased, ReleasedFrame{.aborted = {{.transfer = 1}}}));
  EXPECT_FALSE(record->quarantined());
  ExpectNothingLeft();
}

TEST_F(CountedTransferSetTest, AQuarantineOfALostSessionEndsWithTheNextConnection) {
  Link& link = ConnectWithSlots();
  const TransferPtr record = Submit(1);
  Post();
  Complete(link);
  tracker_.OnSessionLost(absl::UnavailableError("forgotten"), now_);
  Set().Settle();
  session_.End(now_);
  session_.OnLinkDown(now_);
  session_.Renew();
  tracker_.NewSession();
  Set().OnNewSession();
  EXPECT_EQ(record->state(), TransferState::kFailed);
  EXPECT_TRUE(record->quarantined());
  EXPECT_FALSE(Set().active());
  EXPECT_TRUE(Set().waits());
  // A peer that is added again takes it over.
  Session session({.name = "here"}, {.name = "decode-0"}, 99, now_);
  SendTracker tracker(&session.channel(), kTimeout);
  RemoteRegions regions;
  regions.Learn(metadata_);
  PathSet paths(&runtime_, &metadata_, &regions, this);
  TransferSet heir({.runtime = &runtime_,
                    .peer = &metadata_,
                    .paths = &paths,
                    .regions = &regions,
                    .session = &session,
                    .tracker = &tracker,
                    .ready = &ready_});
  heir.Inherit(*set_);
  EXPECT_TRUE(record->quarantined());
  EXPECT_TRUE(heir.waits());
  heir.OnLinkUp(link);
  EXPECT_FALSE(record->quarantined());
  EXPECT_FALSE(heir.waits());
}

TEST_F(CountedTransferSetTest, QuestionsOfALostSessionAreNotAnsweredInTheNext) {
  Link& link = ConnectWithSlots();
  Submit(1);
  Post();
  ASSERT_OK(Says(FrameType::kQuiesce, QuiesceFrame{.id = 5, .all_regions = true}));
  tracker_.OnSessionLost(absl::UnavailableError("forgotten"), now_);
  Set().Settle();
  session_.End(now_);
  session_.OnLinkDown(now_);
  session_.Renew();
  tracker_.NewSession();
  Set().OnNewSession();
  EXPECT_TRUE(Set().active()) << "its op is in flight";
  Complete(link, absl::CancelledError("lost"));
  EXPECT_FALSE(Set().active());
  EXPECT_THAT(Frames(), IsEmpty());
}

TEST_F(CountedTransferSetTest, ANewConnectionFencesWhatTheTargetIsAskedAbout) {
  Link& link = ConnectWithSlots();
  Submit(1);
  Post();
  Complete(link);
  Set().Cancel(1, absl::CancelledError("no more"));
  endpoint_->fences.clear();
  Set().OnLinkUp(link);
  EXPECT_THAT(endpoint_->fences, ElementsAre(FenceScope{.transfer = 1}));
}

TEST_F(TransferSetTest, AQuestionWaitsForTransfersThatTouchWhatItNames) {
  Link& link = Connect();
  const TransferPtr record = Submit(1);
  Post();
  EXPECT_OK(Says(FrameType::kQuiesce, QuiesceFrame{.id = 5, .regions = {2}}));
  EXPECT_THAT(Frames(), ElementsAre(FrameType::kQuiet)) << "it touches region 1 only";
  EXPECT_OK(Says(FrameType::kQuiesce, QuiesceFrame{.id = 6, .regions = {1}}));
  EXPECT_OK(Says(FrameType::kQuiesce, QuiesceFrame{.id = 7, .all_regions = true}));
  EXPECT_THAT(Frames(), IsEmpty());
  Complete(link);
  EXPECT_EQ(record->state(), TransferState::kDone);
  EXPECT_THAT(Frames(), ElementsAre(FrameType::kQuiet, FrameType::kQuiet));
}

TEST_F(TransferSetTest, ARevokedRegionFailsWhatIsQueuedAndClosesItsKey) {
  Link& link = Connect();
  const TransferPtr begun = Submit(1);
  Post();
  const TransferPtr queued = Submit(2);
  const TransferPtr late = Make(3);
  EXPECT_OK(Says(FrameType::kQuiesce, QuiesceFrame{.id = 5, .revoke = true, .regions = {1}}));
  EXPECT_EQ(queued->state(), TransferState::kFailed);
  EXPECT_THAT(std::string(queued->end().status.message()), HasSubstr("deregistered"));
  EXPECT_THAT(endpoint_->open, Contains(kHostRegion));
  EXPECT_THAT(Frames(), IsEmpty());
  Complete(link);
  EXPECT_EQ(begun->state(), TransferState::kDone);
  EXPECT_THAT(endpoint_->open, IsEmpty());
  EXPECT_THAT(Frames(), ElementsAre(FrameType::kQuiet));
  // What is posted later with it cannot begin.
  Set().Submit(late, absl::OkStatus());
  Post();
  EXPECT_EQ(late->state(), TransferState::kFailed);
  ExpectNothingLeft();
}

TEST_F(TransferSetTest, WhatNoHonestTargetSaysBreaksTheProtocol) {
  Link& link = Connect();
  Submit(1);
  Post();
  EXPECT_FALSE(Says(FrameType::kReleased, ReleasedFrame{.arrived = {1}}).ok());
  EXPECT_FALSE(Says(FrameType::kKvAnswer, KvAnswerFrame{.transfer = 1, .why = "no"}).ok());
  EXPECT_FALSE(Says(FrameType::kLeaseAnswer, LeaseAnswerFrame{.transfer = 1}).ok());
  EXPECT_FALSE(Says(FrameType::kStageLend, StageLendFrame{.buffers = {0}}).ok());
  EXPECT_FALSE(Says(FrameType::kHello, HelloFrame{}).ok());
  // Of transfers that are over nothing is checked.
  EXPECT_OK(Says(FrameType::kKvAnswer, KvAnswerFrame{.transfer = 9, .why = "no"}));
  EXPECT_OK(Says(FrameType::kLeaseAnswer, LeaseAnswerFrame{.transfer = 9}));
  Complete(link);
}

// Into GPU memory that the peer has to copy to: one op goes to one buffer.
class StagedTransferSetTest : public TransferSetTest {
 protected:
  StagedTransferSetTest() {
    MakeStaging();
    link_ = &Connect();
  }
  TransferPtr SubmitStaged(uint64_t id) {
    TransferPtr record = Make(id);
    const Descriptor local{.address = reinterpret_cast<uint64_t>(memory_[0].data()),
                           .bytes = kBytes};
    const Descriptor remote{.address = 0x20000, .bytes = kBytes};
    auto blocks = BlockList::FromDescriptors({.local = {&local, 1}, .remote = {&remote, 1}},
                                             Direction::kWrite, *record->local, *record->remote);
    EXPECT_OK(blocks);
    record->blocks = *std::move(blocks);
    Set().Submit(record, absl::OkStatus());
    return record;
  }
  void PostAndGiveBack() {
    Post();
    Set().TellStagedEnds();
    Set().GiveBackRecalled();
  }
  // The target lends, and recalls at once, because others wait too.
  void LendAndRecall(std::vector<uint32_t> buffers) {
    ASSERT_OK(Says(FrameType::kStageLend, StageLendFrame{.buffers = std::move(buffers)}));
    ASSERT_OK(Says(FrameType::kStageRecall, StageRecallFrame{}));
  }
  // The child is over at both ends.
  void EndChild() {
    ASSERT_EQ(endpoint_->ops.size(), 1u);
    const uint64_t child = endpoint_->ops.front().transfer;
    Complete(*link_);
    EXPECT_THAT(Frames(), Contains(FrameType::kStage));
    ASSERT_OK(Says(FrameType::kStaged, StagedFrame{.transfer = child, .good = true}));
  }

  Link* link_ = nullptr;
};

TEST_F(StagedTransferSetTest, ABufferThatIsRecalledAsItIsLentIsUsedOnce) {
  const TransferPtr first = SubmitStaged(1);
  const TransferPtr second = SubmitStaged(2);
  PostAndGiveBack();
  EXPECT_THAT(Frames(), ElementsAre(FrameType::kStageAsk));
  for (const auto& record : {first, second}) {
    LendAndRecall({3});
    PostAndGiveBack();
    EndChild();
    PostAndGiveBack();
    EXPECT_EQ(record->state(), TransferState::kDone);
    EXPECT_THAT(Frames(), Contains(FrameType::kStageBack));
  }
  ExpectNothingLeft();
}

TEST_F(StagedTransferSetTest, ARecalledBufferThatNobodyUsesGoesBack) {
  SubmitStaged(1);
  PostAndGiveBack();
  EXPECT_THAT(Frames(), ElementsAre(FrameType::kStageAsk));
  LendAndRecall({2, 3});
  PostAndGiveBack();
  EXPECT_THAT(Frames(), ElementsAre(FrameType::kStageBack)) << "one of them is in use";
  EndChild();
  EXPECT_THAT(Frames(), ElementsAre(FrameType::kStageBack));
  Set().TellStagedEnds();
  ExpectNothingLeft();
}

TEST_F(TransferSetTest, AKeyOnItsWayIsLookedForSoon) {
  Link& link = Connect();
  EndpointOf(link).imports_as = absl::UnavailableError("not yet");
  const TransferPtr record = Submit(1);
  Post();
  EXPECT_LT(Set().NextTimer(true), Now() + kMs);
  EndpointOf(link).imports_as = absl::OkStatus();
  Post();
  EXPECT_EQ(endpoint_->ops.size(), 1u);
  EXPECT_GT(Set().NextTimer(true), Now() + kMs);
  Complete(link);
}

}  // namespace
}  // namespace kvxfer::testing
