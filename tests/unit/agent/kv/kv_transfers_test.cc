// Which members a transfer between KV caches has.
#include "src/agent/kv/kv_transfers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/agent/engine/transfer_group.h"
#include "tests/support/kv_nodes.h"
#include "tests/support/scale.h"
#include "tests/unit/agent/engine/engine_parts.h"

namespace kvxfer::testing {
namespace {

using ::testing::ElementsAre;

class KvTransfersTest : public ::testing::Test, public EngineParts {
 protected:
  static constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  inline static const std::vector<uint32_t> kIds = {1, 0};

  KvTransfersTest() {
    MakeReachable();
    transfers_->Open(transfers_);
  }
  static KvSlab Slab(uint32_t heads, uint32_t rank, uint32_t ranks) {
    return {.model = {.layers = 2, .heads = heads, .k_size = 8, .v_size = 8},
            .shard = {.tp_rank = rank, .tp_size = ranks, .layers = 2},
            .blocks = 2,
            .block_tokens = 4};
  }
  static KvLayout LayoutOf(const KvSlab& slab) {
    const KvTensor tensor = slab.Tensor();
    return *KvLayout::FromTensors(slab.model, slab.shard, {&tensor, 1});
  }
  // This agent has all heads, or the share of its rank; the other instance has two ranks.
  void Register(uint32_t heads, uint32_t rank = 0, uint32_t ranks = 1) {
    const KvLayout own = LayoutOf(Slab(heads, rank, ranks));
    const auto address = reinterpret_cast<uint64_t>(memory_[0].data());
    ASSERT_OK(runtime_.kv.Register("kv", own, {&address, 1}, *runtime_.memory.table()));
    for (uint32_t other = 0; other < 2; ++other) {
      AgentMetadata metadata = metadata_;
      metadata.name = group_[other];
      metadata.incarnation = Incarnation::Random();
      const KvLayout layout = LayoutOf(Slab(heads, other, 2));
      metadata.kv_caches.emplace("kv",
                                 KvCacheInfo{.id = 7, .layout = layout, .tensors = {0x10000}});
      theirs_.push_back(metadata);
      ASSERT_OK(Tell(metadata));
    }
  }
  absl::Status Tell(const AgentMetadata& metadata) {
    return gate_.CallFor<absl::Status>([&] { return peers_.Install(metadata); });
  }
  absl::StatusOr<TransferPtr> Start(TransferKind kind, const KvOptions& options = {}) {
    return kv_.Start(kind, group_, blocks_, options);
  }
  // The peers of the members.
  static std::vector<std::string> Members(const TransferPtr& whole) {
    std::vector<std::string> peers;
    for (const auto& member : whole->group->members) peers.push_back(member.peer);
    return peers;
  }

  const std::shared_ptr<TransferService> transfers_ =
      std::make_shared<TransferService>(TransferService::Parts{
          .runtime = &runtime_, .gate = &gate_, .peers = &peers_, .views = &views_});
  KvTransfers kv_{
      {.runtime = &runtime_, .gate = &gate_, .views = &views_, .transfers = transfers_.get()}};
  absl::StatusOr<TransferPtr> WriteLayer(const internal::KvPrepared& prepared, uint32_t layer,
                                         const KvOptions& options = {}) {
    return kv_.WriteLayers(&prepared, layer, 1, options);
  }

  std::vector<std::string> group_ = {"d-0", "d-1"};
  std::vector<AgentMetadata> theirs_;  // what the peers said of themselves last
  KvBlocks blocks_{.cache = CacheName("kv"), .local_ids = kIds, .remote_ids = kIds, .tokens = 8};
};

TEST_F(KvTransfersTest, AMemberForEachRankThatHasAShare) {
  Register(2);
  ASSERT_OK_AND_ASSIGN(const TransferPtr write, Start(TransferKind::kWrite));
  EXPECT_THAT(Members(write), ElementsAre("d-0", "d-1"));
  EXPECT_EQ(write->peer, "d-0,d-1");
  for (const std::string& name : group_) EXPECT_EQ((*views_.Find(name))->queued->load(), 1u);
}

TEST_F(KvTransfersTest, NoneForARankThatHasNone) {
  Register(2, 1, 2);
  ASSERT_OK_AND_ASSIGN(const TransferPtr read, Start(TransferKind::kRead));
  EXPECT_THAT(Members(read), ElementsAre("d-1"));
}

// Both ranks have the one head, and one of them is read. The other one holds its blocks under the
// lease too, until somebody says that they are not needed.
TEST_F(KvTransfersTest, UnderALeaseThoseThatAreNotReadAreNotified) {
  Register(1);
  ASSERT_OK_AND_ASSIGN(const TransferPtr plain, Start(TransferKind::kRead));
  EXPECT_EQ(Members(plain).size(), 1u);
  ASSERT_OK_AND_ASSIGN(const TransferPtr leased,
                       Start(TransferKind::kRead, {.lease = LeaseName("l")}));
  EXPECT_THAT(Members(leased), ::testing::UnorderedElementsAre("d-0", "d-1"));
}

TEST_F(KvTransfersTest, NothingIsPostedWhereAMemberCannotBe) {
  Register(2);
  blocks_.tokens = 9;
  EXPECT_TRUE(Fails(Start(TransferKind::kWrite), kInvalid, {"9 tokens"}));
  blocks_.tokens = 8;
  blocks_.first_layer = 2;
  EXPECT_TRUE(Fails(Start(TransferKind::kWrite), kInvalid, {"the model has 2"}));
  blocks_.first_layer = 0;
  group_.pop_back();
  EXPECT_TRUE(Fails(Start(TransferKind::kWrite), kInvalid, {"missing"}));
  EXPECT_EQ((*views_.Find("d-0"))->queued->load(), 0u);
}

TEST_F(KvTransfersTest, TheDeliveryIsPendingOnlyWhereARequestIsNamed) {
  Register(2);
  ASSERT_OK_AND_ASSIGN(const TransferPtr plain, Start(TransferKind::kWrite));
  EXPECT_EQ(internal::TransferRecord::Handle(plain).delivery(), Delivery::kNone);
  ASSERT_OK_AND_ASSIGN(const TransferPtr named,
                       Start(TransferKind::kWrite, {.request = RequestName("r")}));
  EXPECT_EQ(internal::TransferRecord::Handle(named).delivery(), Delivery::kPending);
}

TEST_F(KvTransfersTest, ADrainingAgentTakesNone) {
  Register(2);
  gate_.StopWork();
  EXPECT_TRUE(
      Fails(Start(TransferKind::kWrite), absl::StatusCode::kFailedPrecondition, {"drained"}));
}

// --- layers of prepared blocks ---

class PreparedBlocksTest : public KvTransfersTest {
 protected:
  static constexpr auto kGone = absl::StatusCode::kNotFound;
  static constexpr auto kOther = absl::StatusCode::kFailedPrecondition;

  void SetUp() override {
    Register(2);
    ASSERT_OK_AND_ASSIGN(prepared_, kv_.Prepare(group_, blocks_));
  }
  uint32_t Queued(size_t rank) { return (*views_.Find(group_[rank]))->queued->load(); }
  // The peer says something new of itself, of the same incarnation.
  AgentMetadata& Newer(size_t rank) {
    ++theirs_[rank].revision;
    return theirs_[rank];
  }

  std::shared_ptr<const internal::KvPrepared> prepared_;
};

TEST_F(PreparedBlocksTest, ALayerHasTheMembersOfAPlainWrite) {
  EXPECT_EQ(Queued(0), 0u) << "preparing posts nothing";
  for (uint32_t layer = 0; layer < 2; ++layer) {
    ASSERT_OK_AND_ASSIGN(const TransferPtr write, WriteLayer(*prepared_, layer));
    EXPECT_THAT(Members(write), ElementsAre("d-0", "d-1"));
    EXPECT_EQ(internal::TransferRecord::Handle(write).delivery(), Delivery::kNone);
  }
  ASSERT_OK_AND_ASSIGN(const TransferPtr named,
                       WriteLayer(*prepared_, 0, {.request = RequestName("r")}));
  EXPECT_EQ(internal::TransferRecord::Handle(named).delivery(), Delivery::kPending);
}

TEST_F(PreparedBlocksTest, TheIdsAreCheckedOnce) {
  blocks_.tokens = 9;
  EXPECT_TRUE(Fails(kv_.Prepare(group_, blocks_), kInvalid, {"9 tokens"}));
  blocks_.tokens = 8;
  blocks_.first_layer = 2;
  EXPECT_TRUE(Fails(kv_.Prepare(group_, blocks_), kInvalid, {"the model has 2"}));
  blocks_.first_layer = 0;
  blocks_.cache = CacheName("other");
  EXPECT_TRUE(Fails(kv_.Prepare(group_, blocks_), kGone, {"this agent", "\"other\""}));
  group_.pop_back();
  blocks_.cache = CacheName("kv");
  EXPECT_TRUE(Fails(kv_.Prepare(group_, blocks_), kInvalid, {"missing"}));
}

TEST_F(PreparedBlocksTest, OnlyPreparedLayersAreWritten) {
  EXPECT_TRUE(Fails(WriteLayer(*prepared_, 2), kInvalid, {"1 layers from 2 on", "0 to 1"}));
  EXPECT_TRUE(Fails(kv_.WriteLayers(prepared_.get(), 1, 2, {}), kInvalid, {"2 layers from 1 on"}));
  EXPECT_TRUE(Fails(kv_.WriteLayers(prepared_.get(), 0, 0, {}), kInvalid, {"0 layers from 0 on"}));
  EXPECT_OK(kv_.WriteLayers(prepared_.get(), 0, kAllLayers, {}));
  blocks_.first_layer = 1;
  ASSERT_OK_AND_ASSIGN(const auto second, kv_.Prepare(group_, blocks_));
  EXPECT_TRUE(Fails(WriteLayer(*second, 0), kInvalid, {"1 to 1"}));
  EXPECT_OK(WriteLayer(*second, 1));
}

TEST_F(PreparedBlocksTest, OptionsAreCheckedInEachCall) {
  EXPECT_TRUE(Fails(WriteLayer(*prepared_, 0, {.lease = LeaseName("l")}), kInvalid, {"lease"}));
  EXPECT_TRUE(
      Fails(WriteLayer(*prepared_, 0, {.transfer = {.backend = "pigeon"}}), kInvalid, {"pigeon"}));
  gate_.StopWork();
  EXPECT_TRUE(Fails(WriteLayer(*prepared_, 0), kOther, {"drained"}));
}

TEST_F(PreparedBlocksTest, NoBlocksOrThoseOfAnotherAgentAreRefused) {
  EXPECT_TRUE(Fails(kv_.WriteLayers(nullptr, 0, 1, {}), kInvalid, {"this agent has prepared"}));
  ASSERT_OK(gate_.Call([&] { runtime_.incarnation = Incarnation::Random(); }));
  EXPECT_TRUE(Fails(WriteLayer(*prepared_, 0), kInvalid, {"this agent has prepared"}));
}

// What is as it was is no reason to fail: other regions, other caches.
TEST_F(PreparedBlocksTest, NewsThatDoNotConcernTheCacheChangeNothing) {
  AgentMetadata& metadata = Newer(1);
  metadata.kv_caches.emplace("scales", metadata.kv_caches.at("kv"));
  ASSERT_OK(Tell(metadata));
  const KvLayout layout = LayoutOf(Slab(2, 0, 1));
  const auto address = reinterpret_cast<uint64_t>(memory_[0].data());
  ASSERT_OK(gate_.CallFor<absl::Status>([&] {
    return runtime_.kv.Register("scales", layout, {&address, 1}, *runtime_.memory.table());
  }));
  EXPECT_OK(WriteLayer(*prepared_, 0));
}

TEST_F(PreparedBlocksTest, ACacheThatIsGoneOrAnotherIsNamed) {
  ASSERT_OK(gate_.CallFor<absl::Status>([&] { return runtime_.kv.Deregister("kv"); }));
  EXPECT_TRUE(Fails(WriteLayer(*prepared_, 0), kGone, {"this agent", "\"kv\""}));
  const KvLayout layout = LayoutOf(Slab(2, 0, 1));
  const auto address = reinterpret_cast<uint64_t>(memory_[0].data());
  ASSERT_OK(gate_.CallFor<absl::Status>([&] {
    return runtime_.kv.Register("kv", layout, {&address, 1}, *runtime_.memory.table());
  }));
  EXPECT_TRUE(Fails(WriteLayer(*prepared_, 0), kOther, {"this agent", "\"kv\" anew", "again"}));
  EXPECT_EQ(Queued(0) + Queued(1), 0u);
  ASSERT_OK_AND_ASSIGN(const auto again, kv_.Prepare(group_, blocks_));
  EXPECT_OK(WriteLayer(*again, 0));
}

TEST_F(PreparedBlocksTest, APeersCacheThatIsGoneOrAnotherIsNamed) {
  AgentMetadata& metadata = Newer(1);
  metadata.kv_caches.at("kv").id = 8;
  ASSERT_OK(Tell(metadata));
  EXPECT_TRUE(Fails(WriteLayer(*prepared_, 0), kOther, {"peer d-1", "\"kv\" anew", "again"}));
  Newer(1).kv_caches.clear();
  ASSERT_OK(Tell(metadata));
  EXPECT_TRUE(Fails(WriteLayer(*prepared_, 0), kGone, {"peer d-1", "\"kv\""}));
  EXPECT_EQ(Queued(0) + Queued(1), 0u) << "to no rank, if not to all";
}

TEST_F(PreparedBlocksTest, APeerThatIsGoneOrAnotherIsNamed) {
  theirs_[1].incarnation = Incarnation::Random();
  ASSERT_OK(Tell(theirs_[1]));
  EXPECT_TRUE(Fails(WriteLayer(*prepared_, 0), kOther, {"peer d-1", "incarnation", "again"}));
  views_.Remove("d-1");
  EXPECT_TRUE(Fails(WriteLayer(*prepared_, 0), kGone, {"peer d-1"}));
  EXPECT_EQ(Queued(0), 0u);
}

// The bound on what is queued is that of the peer as it is now.
TEST_F(PreparedBlocksTest, APeerThatIsAddedAgainBoundsItsLayersAgain) {
  ASSERT_OK(gate_.Call([&] { peers_.Remove("d-1", absl::CancelledError("removed")); }));
  ASSERT_OK(Tell(theirs_[1]));
  ASSERT_OK_AND_ASSIGN(const auto view, views_.Find("d-1"));
  view->queued->store(1u << 16);
  EXPECT_TRUE(Fails(WriteLayer(*prepared_, 0), absl::StatusCode::kResourceExhausted, {"d-1"}));
  view->queued->store(0);
  EXPECT_OK(WriteLayer(*prepared_, 0));
}

// The thread that drives sleeps, and is the one that sends.
TEST_F(PreparedBlocksTest, TheCallingThreadDoesNotSend) {
  const auto sends = [&](const KvOptions& options) {
    const int before = posts();
    EXPECT_OK(WriteLayer(*prepared_, 0, options));
    return posts() > before;
  };
  // Until the background thread drives, the calling thread does.
  EXPECT_TRUE(Eventually(kAmple, [&] { return !sends({}); }));
  // Nor for a layer that is not ready: others may have become ready meanwhile.
  std::atomic<uint32_t> ready{0};
  KvOptions options;
  options.transfer.ready = &ready;
  EXPECT_TRUE(Eventually(kAmple, [&] { return !sends(options); }));
  ready = 1;
  EXPECT_TRUE(Eventually(kAmple, [&] { return !sends(options); }));
  EXPECT_TRUE(Eventually(kAmple, [&] { return Queued(0) > 0; }));
}

}  // namespace
}  // namespace kvxfer::testing
