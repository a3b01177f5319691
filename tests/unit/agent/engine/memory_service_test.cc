// Memory is registered whole or not at all, and deregistered once nobody uses it.
#include "src/agent/engine/memory_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "tests/unit/agent/engine/engine_parts.h"

namespace kvxfer::testing {
namespace {

using ::testing::ElementsAre;

// Refuses one region.
class PickyBackend : public FakeBackend {
 public:
  PickyBackend() : FakeBackend("tcp", kHostOnly) {}
  absl::StatusOr<std::unique_ptr<Registration>> Register(const LocalRegion& region) override {
    if (left-- == 0) return absl::ResourceExhaustedError("no more pinned memory");
    return FakeBackend::Register(region);
  }

  size_t left = SIZE_MAX;
};

class MemoryServiceTest : public ::testing::Test, public EngineParts {
 protected:
  static constexpr size_t kMany =
      3 * Deregistrations::kAtOnce / 2;  // more than one command handles

  MemoryServiceTest() {
    auto backend = std::make_unique<PickyBackend>();
    backend_ = backend.get();
    runtime_.backends.push_back(std::move(backend));
    for (std::byte& byte : bytes_) spans_.push_back({.data = &byte, .bytes = 1});
  }
  absl::StatusOr<std::vector<RegionId>> Register(size_t count) {
    return service_.Register(std::span(spans_).first(count), Access::kReadWrite);
  }
  size_t Open() { return runtime_.memory.table()->regions().size(); }

  std::vector<std::byte> bytes_{kMany};
  std::vector<MemorySpan> spans_;
  PickyBackend* backend_ = nullptr;
  MemoryService service_{&runtime_, &gate_, &inbound_};
};

TEST_F(MemoryServiceTest, AllAreThereAndPeersLearnOfThem) {
  const uint64_t revision = runtime_.revision;
  ASSERT_OK_AND_ASSIGN(const auto made, Register(kMany));
  EXPECT_EQ(made.size(), kMany);
  EXPECT_EQ(Open(), kMany);
  EXPECT_GT(runtime_.revision, revision);
}

TEST_F(MemoryServiceTest, OrNoneIs) {
  backend_->left = kMany - 1;
  EXPECT_TRUE(Fails(Register(kMany), absl::StatusCode::kResourceExhausted, {"pinned"}));
  EXPECT_EQ(Open(), 0u);
  EXPECT_EQ(runtime_.memory.live(), 0u);
}

TEST_F(MemoryServiceTest, WrongSpansAreRefusedBeforeAnythingIsRegistered) {
  spans_[1].bytes = 0;
  EXPECT_TRUE(Fails(Register(2), absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(backend_->left, SIZE_MAX);
}

TEST_F(MemoryServiceTest, AnAgentThatIsClosedOrDrainedRegistersNothing) {
  gate_.StopWork();
  EXPECT_TRUE(Fails(Register(1), absl::StatusCode::kFailedPrecondition, {"drained"}));
  runtime_.loop.Stop();
  EXPECT_TRUE(Fails(Register(1), absl::StatusCode::kFailedPrecondition, {"closed"}));
  EXPECT_EQ(backend_->left, SIZE_MAX);
}

TEST_F(MemoryServiceTest, WhatIsInUseStays) {
  ASSERT_OK_AND_ASSIGN(const auto made, Register(2));
  const auto table = runtime_.memory.table();
  const uint32_t used = 1;
  ASSERT_OK(runtime_.memory.Use(*table, {&used, 1}));
  std::vector<RegionId> in_use;
  EXPECT_TRUE(Fails(service_.Deregister(made, kMs, &in_use), absl::StatusCode::kOutOfRange,
                    {"in use", "transfers of this agent"}));
  EXPECT_THAT(in_use, ElementsAre(made[1]));
  EXPECT_EQ(runtime_.memory.live(), 0u) << "closed for new transfers";
  EXPECT_NE(runtime_.memory.Find(made[1], 0), nullptr);
  EXPECT_EQ(runtime_.memory.Find(made[0], 0), nullptr);

  runtime_.memory.Unuse(*table, {&used, 1});
  ASSERT_OK(service_.Deregister(in_use, 100 * kTimeout, nullptr));
  EXPECT_EQ(runtime_.memory.Find(made[1], 0), nullptr);
}

// Expect regions that only wait for their turn not to be reported as in use.
TEST_F(MemoryServiceTest, ManyGoWithoutTimeToWait) {
  ASSERT_OK_AND_ASSIGN(const auto made, Register(kMany));
  EXPECT_OK(service_.Deregister(made, Duration::zero(), nullptr));
  EXPECT_FALSE(service_.due());
}

}  // namespace
}  // namespace kvxfer::testing
