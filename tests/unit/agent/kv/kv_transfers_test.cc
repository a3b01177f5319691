// Which members a transfer between KV caches has.
#include "src/agent/kv/kv_transfers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/agent/engine/transfer_group.h"
#include "tests/support/kv_nodes.h"
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
      ASSERT_OK(gate_.CallFor<absl::Status>([&] { return peers_.Install(metadata); }));
    }
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
  std::vector<std::string> group_ = {"d-0", "d-1"};
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

}  // namespace
}  // namespace kvxfer::testing
