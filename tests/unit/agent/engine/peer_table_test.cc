// Which peers an agent has, as metadata of them comes and they are removed.
#include "src/agent/engine/peer_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "src/agent/engine/transfer_group.h"
#include "tests/unit/agent/engine/engine_parts.h"

namespace kvxfer::testing {
namespace {

using ::testing::HasSubstr;

class PeerTableTest : public ::testing::Test, public EngineParts {
 protected:
  PeerTableTest() {
    MakeReachable();
    metadata_.last_region = 2;
    metadata_.host = {.hostname = "there", .boot_id = "boot", .pid = 1};
  }
  Peer& Peer0() { return *peers_.Find("decode-0"); }
  TransferPtr Submit(uint64_t id) {
    TransferPtr record = Notify(id);
    peers_.Find(record->peer)->Submit(record);
    return record;
  }
  size_t RegionsSeen() { return (*views_.Find("decode-0"))->regions->regions().size(); }
  // The peer's endpoint; the peer has dialled.
  FakeEndpoint* Dialled() {
    EXPECT_EQ(runtime_.users.size(), 1u);
    const Endpoint* const endpoint = runtime_.users.begin()->first;
    return static_cast<FakeEndpoint*>(const_cast<Endpoint*>(endpoint));
  }

  const absl::Status why_ = absl::CancelledError("no more");
};

TEST_F(PeerTableTest, AViewForThreads) {
  EXPECT_TRUE(Fails(views_.Find("decode-0"), absl::StatusCode::kNotFound, {"decode-0"}));
  ASSERT_OK(peers_.Install(metadata_));
  EXPECT_EQ((*views_.Find("decode-0"))->incarnation, metadata_.incarnation);
  EXPECT_NE(peers_.Find("decode-0"), nullptr);
  EXPECT_EQ(peers_.Find("decode-1"), nullptr);
}

TEST_F(PeerTableTest, OlderMetadataTakesNoRegionsAway) {
  metadata_.revision = 5;
  ASSERT_OK(peers_.Install(metadata_));
  ASSERT_EQ(RegionsSeen(), 2u);
  AgentMetadata older = metadata_;
  older.regions.pop_back();
  older.revision = 4;
  ASSERT_OK(peers_.Install(older));
  EXPECT_EQ(RegionsSeen(), 2u);
  older.revision = 6;
  older.last_region = 1;
  ASSERT_OK(peers_.Install(older));
  EXPECT_EQ(RegionsSeen(), 2u);
  older.last_region = 2;
  ASSERT_OK(peers_.Install(older));
  EXPECT_EQ(RegionsSeen(), 1u);
}

TEST_F(PeerTableTest, WhomNoBackendReachesIsNotAdded) {
  metadata_.backends.clear();
  EXPECT_FALSE(peers_.Install(metadata_).ok());
  EXPECT_EQ(peers_.Find("decode-0"), nullptr);
  EXPECT_FALSE(views_.Find("decode-0").ok());
}

TEST_F(PeerTableTest, OneIncarnationHasOneName) {
  ASSERT_OK(peers_.Install(metadata_));
  AgentMetadata other = metadata_;
  other.name = "decode-1";
  EXPECT_TRUE(Fails(peers_.Install(other), absl::StatusCode::kInvalidArgument,
                    {"decode-1", "known as peer decode-0"}));
  EXPECT_EQ(peers_.Find("decode-1"), nullptr);
  ASSERT_OK(peers_.Install(metadata_));
}

TEST_F(PeerTableTest, ANewIncarnationReplacesTheOld) {
  ASSERT_OK(peers_.Install(metadata_));
  const TransferPtr before = Submit(1);
  const Incarnation old = std::exchange(metadata_.incarnation, Incarnation::Random());
  ASSERT_OK(peers_.Install(metadata_));
  EXPECT_EQ(before->state(), TransferState::kFailed);
  EXPECT_THAT(before->end().status.message(), HasSubstr(old.ToString()));
  EXPECT_EQ((*views_.Find("decode-0"))->incarnation, metadata_.incarnation);
  EXPECT_FALSE(Submit(2)->ended());
}

TEST_F(PeerTableTest, AnUnreachableIncarnationReplacesNobody) {
  ASSERT_OK(peers_.Install(metadata_));
  const TransferPtr before = Submit(1);
  AgentMetadata lost = metadata_;
  lost.incarnation = Incarnation::Random();
  lost.backends.clear();
  EXPECT_FALSE(peers_.Install(lost).ok());
  EXPECT_FALSE(before->ended());
  EXPECT_EQ((*views_.Find("decode-0"))->incarnation, metadata_.incarnation);
}

TEST_F(PeerTableTest, RemovedOnce) {
  ASSERT_OK(peers_.Install(metadata_));
  const TransferPtr transfer = Submit(1);
  EXPECT_TRUE(peers_.Remove("decode-0", why_));
  EXPECT_EQ(transfer->state(), TransferState::kCancelled);
  EXPECT_FALSE(views_.Find("decode-0").ok());
  EXPECT_FALSE(peers_.Remove("decode-0", why_));
}

// Expect that a removed peer is there until its connection is down.
TEST_F(PeerTableTest, LeavingPeersCloseTheirConnections) {
  ASSERT_OK(peers_.Install(metadata_));
  Submit(1);
  peers_.Pump(Now());
  FakeEndpoint* const endpoint = Dialled();
  EXPECT_TRUE(peers_.Finished()) << "nobody leaves";
  peers_.Remove("decode-0", why_);
  peers_.Pump(Now());
  peers_.Sweep();
  EXPECT_FALSE(peers_.Finished());
  EXPECT_FALSE(endpoint->shut.ok());
  Event down{.kind = EventKind::kDown, .endpoint = endpoint, .status = why_};
  runtime_.users.at(endpoint)->OnEvent(down);
  EXPECT_TRUE(peers_.Finished());
  peers_.Sweep();
}

TEST_F(PeerTableTest, CloseEndsAllAndKeepsThemUntilTheyAreDown) {
  ASSERT_OK(peers_.Install(metadata_));
  metadata_.name = "decode-1";
  metadata_.incarnation = Incarnation::Random();
  ASSERT_OK(peers_.Install(metadata_));
  const TransferPtr transfer = Submit(1);
  EXPECT_FALSE(peers_.closed());
  peers_.Close(why_, kTimeout);
  EXPECT_TRUE(peers_.closed());
  EXPECT_EQ(transfer->state(), TransferState::kCancelled);
  EXPECT_EQ(peers_.Find("decode-1"), nullptr);
  EXPECT_TRUE(peers_.Finished());
  EXPECT_EQ(runtime_.timers.next(), Time::max());
}

class GroupTest : public PeerTableTest {
 protected:
  GroupTest() {
    std::vector<internal::TransferGroup::Member> names;
    for (const char* name : {"decode-0", "decode-1"}) {
      metadata_.name = name;
      metadata_.incarnation = Incarnation::Random();
      EXPECT_OK(peers_.Install(metadata_));
      members_.push_back(Notify(members_.size() + 1));
      members_.back()->whole = whole_;
      names.push_back({.peer = name, .id = members_.back()->id});
    }
    whole_->group = std::make_unique<internal::TransferGroup>(std::move(names));
    for (const TransferPtr& member : members_) peers_.Find(member->peer)->Submit(member);
  }

  const TransferPtr whole_ = std::make_shared<internal::TransferRecord>();
  std::vector<TransferPtr> members_;
};

TEST_F(GroupTest, CancellingTheWholeCancelsEachMember) {
  peers_.Cancel(*whole_, why_);
  for (const TransferPtr& member : members_) EXPECT_EQ(member->state(), TransferState::kCancelled);
  EXPECT_EQ(whole_->state(), TransferState::kCancelled);
}

TEST_F(GroupTest, AMemberThatFailsHasTheOthersCancelled) {
  peers_.Find("decode-0")->Cancel(members_[0]->id, absl::DataLossError("a rail failed"));
  ASSERT_TRUE(members_[0]->ended());
  EXPECT_FALSE(members_[1]->ended()) << "its peer may be in the middle of its own work";
  peers_.Pump(Now());
  EXPECT_EQ(members_[1]->state(), TransferState::kCancelled);
  EXPECT_TRUE(whole_->ended());
  EXPECT_THAT(whole_->end().status.message(), HasSubstr("a rail failed"));
}

}  // namespace
}  // namespace kvxfer::testing
