// What a turn of the driver looks at while regions are deregistered.
#include "src/agent/engine/deregistrations.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "src/core/base/host_identity.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

constexpr size_t kMany = 1000;
constexpr size_t kAtOnce = 256;

class DeregistrationsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    BackendContext context{runtime_.options, Incarnation::Random(), ReadHostIdentity()};
    ASSERT_OK_AND_ASSIGN(auto backend, MakeBackend("loopback", context));
    runtime_.backends.push_back(std::move(backend));
    for (std::byte& byte : memory_) {
      const MemorySpan span{.data = &byte, .bytes = 1};
      MemoryRegistry::Made made = runtime_.memory.Make(span, Access::kReadWrite, runtime_.backends);
      ASSERT_OK_AND_ASSIGN(const RegionId region,
                           runtime_.memory.Add(std::move(made), runtime_.backends, {}));
      regions_.push_back(region);
      indices_.push_back(static_cast<uint32_t>(indices_.size()));
    }
  }
  void Publish() { runtime_.memory.Publish(regions_); }
  // As rounds do.
  void Finish() {
    do {
      closing_.Advance();
    } while (closing_.due());
  }
  size_t Left(const Deregistrations::Left& left) { return left->load(); }

  std::vector<std::byte> memory_{kMany};
  std::vector<uint32_t> indices_;
  std::vector<RegionId> regions_;
  Runtime runtime_{AgentOptions{.name = "one", .backends = {"loopback"}}};
  InboundHub inbound_{&runtime_};
  Deregistrations closing_{&runtime_, &inbound_};
};

TEST_F(DeregistrationsTest, ManyGoInSeveralTurns) {
  Publish();
  ASSERT_OK_AND_ASSIGN(const auto left, closing_.Begin(regions_));
  for (size_t gone = kAtOnce; gone < kMany; gone += kAtOnce) {
    EXPECT_EQ(Left(left), kMany - gone);
    EXPECT_TRUE(closing_.due());
    EXPECT_LE(closing_.Advance(), kAtOnce);
  }
  EXPECT_EQ(Left(left), 0u);
  EXPECT_FALSE(closing_.due());
  EXPECT_EQ(closing_.Advance(), 0u);
}

TEST_F(DeregistrationsTest, WhatIsInUseIsLookedAtWhenThatIsOver) {
  Publish();
  const auto table = runtime_.memory.table();
  ASSERT_OK(runtime_.memory.Use(*table, indices_));
  ASSERT_OK_AND_ASSIGN(const auto left, closing_.Begin(regions_));
  Finish();
  EXPECT_EQ(closing_.Advance(), 0u) << "nothing has happened";
  runtime_.memory.Unuse(*table, std::span(indices_).first(1));
  EXPECT_EQ(closing_.Advance(), 1u);
  EXPECT_EQ(Left(left), kMany - 1);

  // Expect that those that nobody waits for cost nothing, and are there for the next call.
  EXPECT_EQ(closing_.Leave(regions_).size(), kMany - 1);
  EXPECT_EQ(closing_.Advance(), 0u);
  runtime_.memory.Unuse(*table, std::span(indices_).subspan(1));
  Finish();
  EXPECT_EQ(closing_.Advance(), 0u);
  EXPECT_EQ(Left(left), kMany - 1);
  ASSERT_OK_AND_ASSIGN(const auto again, closing_.Begin(std::span(regions_).subspan(1)));
  Finish();
  EXPECT_EQ(Left(again), 0u);
}

// Expect that no transfer, no metadata and no call can find a region before it is published, and
// that peers do not take it for one that is gone.
// They are released while the first look at them is not over, which names them again. Expect the
// driver to be let go to sleep once they are gone.
TEST_F(DeregistrationsTest, WhatIsNamedTwiceLeavesNothingDue) {
  Publish();
  const auto table = runtime_.memory.table();
  ASSERT_OK(runtime_.memory.Use(*table, indices_));
  ASSERT_OK_AND_ASSIGN(const auto left, closing_.Begin(regions_));
  ASSERT_TRUE(closing_.due());
  runtime_.memory.Unuse(*table, indices_);
  for (size_t turn = 0; turn < 3 * kMany / kAtOnce; ++turn) closing_.Advance();
  EXPECT_EQ(Left(left), 0u);
  EXPECT_FALSE(closing_.due());
}

TEST_F(DeregistrationsTest, HiddenRegionsCanBeTakenBackAtOnce) {
  EXPECT_TRUE(runtime_.memory.table()->regions().empty());
  EXPECT_TRUE(runtime_.memory.Describe(runtime_.backends).empty());
  EXPECT_TRUE(Fails(closing_.Begin(regions_), absl::StatusCode::kNotFound));
  EXPECT_EQ(runtime_.memory.live(), kMany);
  EXPECT_EQ(runtime_.memory.Page(1, kMany, 1).live.size(), 1u);
  for (const RegionId region : regions_) runtime_.memory.Remove(region);
  EXPECT_EQ(runtime_.memory.live(), 0u);
  EXPECT_TRUE(runtime_.memory.Page(1, kMany, 1).live.empty());
}

}  // namespace
}  // namespace kvxfer::testing
