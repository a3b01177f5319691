// What an application asks about its KV caches, by itself.
#include "src/agent/kv/kv_service.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <thread>
#include <vector>

#include "tests/support/kv_nodes.h"
#include "tests/support/scale.h"
#include "tests/unit/agent/engine/engine_parts.h"

namespace kvxfer::testing {
namespace {

class KvServiceTest : public ::testing::Test, public EngineParts {
 protected:
  static constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  static constexpr auto kNotFound = absl::StatusCode::kNotFound;

  KvServiceTest() {
    MakeReachable();
    const KvSlab slab{.model = {.layers = 2, .heads = 2, .k_size = 8, .v_size = 8},
                      .shard = {.layers = 2},
                      .blocks = 2,
                      .block_tokens = 4};
    const KvTensor tensor = slab.Tensor();
    layout_ = KvLayout::FromTensors(slab.model, slab.shard, {&tensor, 1});
  }
  absl::Status Register() {
    const auto address = reinterpret_cast<uint64_t>(memory_[0].data());
    return service_.Register("kv", *layout_, {&address, 1});
  }
  absl::Status Lease(const std::vector<uint32_t>& ids, Duration hold = kTimeout) {
    return service_.LeaseBlocks("kv", "lease", ids, hold, "");
  }

  absl::StatusOr<KvLayout> layout_ = absl::UnknownError("");
  KvService service_{&runtime_, &gate_, &inbound_};
};

TEST_F(KvServiceTest, PeersLearnOfACacheByANewRevision) {
  const uint64_t before = runtime_.revision;
  ASSERT_OK(Register());
  EXPECT_EQ(runtime_.kv.table()->count("kv"), 1u);
  const uint64_t with = runtime_.revision;
  EXPECT_GT(with, before);
  ASSERT_OK(service_.Deregister("kv"));
  EXPECT_EQ(runtime_.kv.table()->count("kv"), 0u);
  EXPECT_GT(runtime_.revision, with);
}

TEST_F(KvServiceTest, LeasesAreOfBlocksThatAreThere) {
  EXPECT_TRUE(Fails(Lease({0}), kNotFound, {"this agent", "kv"}));
  ASSERT_OK(Register());
  EXPECT_TRUE(Fails(Lease({}), kInvalid, {"no blocks"}));
  EXPECT_TRUE(Fails(Lease({0}, Duration::zero()), kInvalid, {"no time"}));
  EXPECT_TRUE(Fails(Lease({0, 2}), kInvalid, {"block 2", "has 2"}));
  ASSERT_OK(Lease({0, 1}));
  EXPECT_EQ(service_.Count()->leases_granted, 1u);
  EXPECT_OK(service_.RenewLease("lease", kTimeout));
  EXPECT_OK(service_.ReleaseLease("lease"));
  EXPECT_EQ(service_.Count()->leases_released, 1u);
}

TEST_F(KvServiceTest, ADrainingAgentGrantsNoLease) {
  ASSERT_OK(Register());
  gate_.StopWork();
  EXPECT_TRUE(Fails(Lease({0}), absl::StatusCode::kFailedPrecondition, {"drained"}));
}

TEST_F(KvServiceTest, WaitingForLayersHasATimeAndSaysWhatIsThere) {
  EXPECT_TRUE(Fails(service_.WaitLayers("kv", "r", 1, kMs), kNotFound));
  ASSERT_OK(Register());
  EXPECT_TRUE(Fails(service_.WaitLayers("kv", "r", 3, kMs), kInvalid));
  EXPECT_TRUE(Fails(service_.WaitLayers("kv", "r", 2, kMs), absl::StatusCode::kOutOfRange,
                    {"r", "0 of 2 layers"}));
}

// Expect a waiter to learn that there will be no more layers, without its time-out.
TEST_F(KvServiceTest, WaitingEndsWithTheCache) {
  ASSERT_OK(Register());
  std::thread waiter([&] {
    EXPECT_TRUE(Fails(service_.WaitLayers("kv", "r", 2, 1000 * kTimeout),
                      absl::StatusCode::kAborted, {"given up"}));
  });
  // It waits, or the cache is gone before it could: then it would be NotFound.
  while (*gate_.CallFor<absl::StatusOr<bool>>([&] {
    const auto watch = runtime_.kv.StartWatch("kv", "r", 1);
    const bool alone = (*watch)->watchers == 1;
    runtime_.kv.EndWatch("kv", "r", watch->get());
    return alone;
  })) {
    Pause();
  }
  ASSERT_OK(service_.Deregister("kv"));
  waiter.join();
}

}  // namespace
}  // namespace kvxfer::testing
