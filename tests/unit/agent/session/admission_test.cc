// Which transfers begin, in which order, and what keeps the others back.

#include "src/agent/session/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/agent/session/fake_peer.h"

namespace kvxfer::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class AdmissionTest : public ::testing::Test,
                      public FakePaths,
                      public Admission::User,
                      private StagerUser {
 protected:
  AdmissionTest() {
    backend_.capabilities_now().max_op_bytes = kBytes;
    metadata_.max_version = kMaxProtocolVersion;
    MakeRegions();
  }
  void OnRefused(const TransferPtr& record, absl::Status why) override {
    refused_.emplace_back(record->id, why);
  }
  absl::Status BeginChild(const TransferPtr& /*child*/, Link* /*link*/) override {
    return absl::OkStatus();
  }
  void EndChild(uint64_t /*child*/, const absl::Status& /*why*/, Time /*by*/) override {}
  void OnMoved() override {}
  void OnStaged(uint64_t /*op*/, const absl::Status& /*status*/) override {}
  void OnSettled(const TransferPtr& /*whole*/) override {}

  // The link, up, with keys.
  Link& Connect() {
    Link& link = Dial();
    EndpointOf(link).imports_as = absl::OkStatus();
    Prove(link);
    return link;
  }
  TransferPtr Write(uint64_t id) {
    TransferPtr record = std::make_shared<internal::TransferRecord>();
    Plan(*record, MemoryKind::kHost);
    record->id = id;
    record->incarnation = metadata_.incarnation;
    record->deadline = now_ + 100 * kTimeout;
    return record;
  }
  TransferPtr Notify(uint64_t id) {
    TransferPtr record = std::make_shared<internal::TransferRecord>();
    record->id = id;
    record->kind = TransferKind::kNotify;
    record->options.notification = "text";
    record->posted = now_;
    record->deadline = now_ + 100 * kTimeout;
    return record;
  }
  bool Admit() { return admission_.Admit(now_); }
  std::vector<uint64_t> Begun() {
    std::vector<uint64_t> ids;
    for (const Outbound& outbound : outbounds_) ids.push_back(outbound.record->id);
    return ids;
  }

  FakeBackend& backend_ = Both("tcp");
  ReliableChannel channel_;
  SendTracker tracker_{&channel_, kTimeout};
  SendQueue queue_;
  OutboundList outbounds_;
  Stager stager_{this, &runtime_, &channel_, &regions_};
  Sender sender_{&runtime_, &tracker_, &stager_, &admission_};
  Admission admission_{{.runtime = &runtime_,
                        .peer = &metadata_,
                        .paths = &Paths(),
                        .regions = &regions_,
                        .tracker = &tracker_,
                        .queue = &queue_,
                        .outbounds = &outbounds_,
                        .sender = &sender_},
                       this};
  std::vector<std::pair<uint64_t, absl::Status>> refused_;
};

TEST_F(AdmissionTest, NothingBeginsBeforeTheLinkIsUp) {
  queue_.Push(Write(1));
  EXPECT_TRUE(Admit());
  EXPECT_THAT(Begun(), IsEmpty());
  Connect();
  EXPECT_TRUE(Admit());
  EXPECT_THAT(Begun(), ElementsAre(1));
  EXPECT_TRUE(queue_.empty());
  const Outbound& begun = *outbounds_.begin();
  EXPECT_EQ(&OutboundOf(*begun.sending), &begun);
  EXPECT_EQ(begun.sending->request().link, begun.link->number);
  EXPECT_EQ(begun.limits.max_bytes, kBytes);
  EXPECT_EQ(begun.sending->state(), SendState::kSending);
}

TEST_F(AdmissionTest, ANotificationWaitsForCredit) {
  Connect();
  queue_.Push(Notify(1));
  queue_.Push(Write(2));
  EXPECT_TRUE(Admit());
  EXPECT_THAT(Begun(), IsEmpty()) << "the order is that of posting";
  tracker_.credit().OnCredit({.notifications = 1, .bytes = 100});
  EXPECT_TRUE(Admit());
  EXPECT_THAT(Begun(), ElementsAre(1, 2));
}

// What is on its way delays the answers to what the peer initiates.
TEST_F(AdmissionTest, ANotificationWaitsWhileMuchIsOnItsWay) {
  Connect();
  tracker_.credit().OnCredit({.notifications = 100, .bytes = 1 << 30});
  while (channel_.kept_bytes() < SendTracker::kMaxKeptBytes) {
    channel_.Push(FrameType::kOpen, std::string(64 * 1024, 'x'));
  }
  while (channel_.NextToSend() != nullptr) channel_.MessageSent();
  queue_.Push(Write(1));
  queue_.Push(Notify(2));
  EXPECT_TRUE(Admit());
  EXPECT_THAT(Begun(), ElementsAre(1));
  EXPECT_OK(channel_.OnAck(1));
  EXPECT_TRUE(Admit());
  EXPECT_THAT(Begun(), ElementsAre(1, 2));
}

TEST_F(AdmissionTest, AsManyAsTheOptionsAllowAreActive) {
  Connect();
  const size_t most = runtime_.options.max_active_transfers;
  for (uint64_t id = 1; id <= most + 1; ++id) queue_.Push(Write(id));
  Admit();
  EXPECT_EQ(outbounds_.size(), most);
  EXPECT_FALSE(queue_.empty());
}

TEST_F(AdmissionTest, AKeyThatIsOnItsWayIsWaitedFor) {
  Link& link = Connect();
  EndpointOf(link).imports_as = absl::UnavailableError("not yet");
  queue_.Push(Write(1));
  EXPECT_FALSE(Admit());
  EXPECT_THAT(Begun(), IsEmpty());
  EXPECT_FALSE(queue_.empty());
  EndpointOf(link).imports_as = absl::OkStatus();
  EXPECT_TRUE(Admit());
  EXPECT_THAT(Begun(), ElementsAre(1));
}

TEST_F(AdmissionTest, WhatCannotBeginIsRefusedAndHoldsUpNobody) {
  Link& link = Connect();
  EndpointOf(link).imports_as = absl::InvalidArgumentError("damaged");
  TransferPtr of_another = Write(2);
  of_another->incarnation = Incarnation::Random();
  queue_.Push(Write(1));
  queue_.Push(of_another);
  tracker_.credit().OnCredit({.notifications = 1, .bytes = 100});
  queue_.Push(Notify(3));
  EXPECT_TRUE(Admit());
  ASSERT_EQ(refused_.size(), 2u);
  EXPECT_THAT(std::string(refused_[0].second.message()), HasSubstr("damaged"));
  EXPECT_THAT(std::string(refused_[1].second.message()), HasSubstr("new incarnation"));
  EXPECT_THAT(Begun(), ElementsAre(3));
}

TEST_F(AdmissionTest, WithoutAPathItSaysWhy) {
  TransferPtr record = Write(1);
  record->options.backend = "verbs";
  queue_.Push(record);
  EXPECT_TRUE(Admit());
  ASSERT_EQ(refused_.size(), 1u);
  EXPECT_THAT(std::string(refused_[0].second.message()), HasSubstr("backend verbs is not offered"));
}

TEST_F(AdmissionTest, OfALayerStreamOneBeginsAfterTheOther) {
  Connect();
  for (uint64_t id = 1; id <= 3; ++id) {
    TransferPtr record = Write(id);
    record->layer_stream = 7;
    queue_.Push(record);
  }
  Admit();
  EXPECT_THAT(Begun(), ElementsAre(1));
  EXPECT_FALSE(admission_.TakeNextOfStream());
  admission_.OnLayerPosted(7);
  EXPECT_TRUE(admission_.TakeNextOfStream());
  EXPECT_FALSE(admission_.TakeNextOfStream());
  Admit();
  EXPECT_THAT(Begun(), ElementsAre(1, 2));
}

TEST_F(AdmissionTest, ALayerThatCannotBeginFreesItsStream) {
  Link& link = Connect();
  EndpointOf(link).imports_as = absl::InvalidArgumentError("damaged");
  for (uint64_t id = 1; id <= 2; ++id) {
    TransferPtr record = Write(id);
    record->layer_stream = 7;
    queue_.Push(record);
  }
  Admit();
  EXPECT_EQ(refused_.size(), 2u);
  EXPECT_TRUE(queue_.empty());
}

TEST_F(AdmissionTest, PlacesOfEndedTransfersAreUsedAgain) {
  Outbound& first = outbounds_.Add();
  first.prepared = 9;
  Outbound& second = outbounds_.Add();
  outbounds_.Erase(first);
  EXPECT_EQ(outbounds_.size(), 1u);
  EXPECT_EQ(&*outbounds_.begin(), &second);
  Outbound& third = outbounds_.Add();
  EXPECT_EQ(&third, &first);
  EXPECT_EQ(third.prepared, 0u);
}

}  // namespace
}  // namespace kvxfer::testing
