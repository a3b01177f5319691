// What the verbs backend asks of devices: work requests, doorbells and completions for each block,
// and registrations that neither leak nor cost more the more of them there are.

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "kvxfer/agent.h"
#include "kvxfer/log.h"
#include "src/agent/engine/agent_factory.h"
#include "tests/resources/counted_allocations.h"
#include "tests/support/null_device.h"
#include "tests/support/open_files.h"
#include "tests/support/scale.h"
#include "tests/support/send_path.h"
#include "tests/support/status_macros.h"
#include "tests/support/test_backends.h"
#include "tests/support/verbs_fabric.h"

namespace kvxfer::testing {
namespace {

// Blocks that nothing coalesces, so that each is a work request.
TEST(VerbsCost, OfABlockIsAWorkRequestAndHardlyACompletion) {
  SetLogLevel(LogLevel::kError);
  constexpr uint32_t kBlocks = 8192;
  constexpr int kTransfers = 8;
  ASSERT_OK_AND_ASSIGN(
      const auto path,
      SendPath::Create({.ids = kBlocks, .backend = SendPathShape::Backend::kVerbs}));
  const DeviceCounts before = CountsOfNullDevices();
  for (int i = 0; i < kTransfers; ++i) ASSERT_OK(path->Send());
  const DeviceCounts made = CountsOfNullDevices() - before;
  const uint64_t blocks = uint64_t{kBlocks} * kTransfers;
  EXPECT_GE(made.requests, blocks - blocks / 100);  // by chance a few lie together
  EXPECT_LE(made.requests, blocks + 2 * kTransfers);
  EXPECT_LE(made.elements, blocks);
  // One for each op, which is 256 blocks here, at the initiator; one for a lane at the target.
  EXPECT_LE(made.send_entries, blocks / 256 + 2 * kTransfers);
  EXPECT_LE(made.receive_entries, 2u * kTransfers);
  EXPECT_GE(made.receive_entries, 1u * kTransfers);
  EXPECT_GE(made.requests, 200 * made.doorbells);
}

TEST(VerbsCost, OfOneSmallTransferIsOneDoorbell) {
  SetLogLevel(LogLevel::kError);
  constexpr int kTransfers = 100;
  ASSERT_OK_AND_ASSIGN(const auto path,
                       SendPath::Create({.ids = 1, .backend = SendPathShape::Backend::kVerbs}));
  const DeviceCounts before = CountsOfNullDevices();
  for (int i = 0; i < kTransfers; ++i) ASSERT_OK(path->Send());
  const DeviceCounts made = CountsOfNullDevices() - before;
  EXPECT_EQ(made.requests, 1u * kTransfers);
  EXPECT_EQ(made.doorbells, 1u * kTransfers);
  EXPECT_EQ(made.send_entries, 1u * kTransfers);
  EXPECT_EQ(made.receive_entries, 1u * kTransfers);
}

class VerbsRegions : public ::testing::Test {
 protected:
  void SetUp() override {
    SetLogLevel(LogLevel::kError);
    AgentOptions options;
    options.name = "a";
    options.backends = {"verbs"};
    auto made = internal::AgentFactory::Create(options, MakeTestBackend);
    ASSERT_OK(made.status());
    agent_ = *std::move(made);
    memory_.resize(kSpan);
  }
  RegionId Register() {
    auto id = agent_->RegisterMemory({.data = memory_.data(), .bytes = kSpan}, Access::kReadWrite);
    EXPECT_OK(id.status());
    return id.ok() ? *id : RegionId::kNone;
  }

  static constexpr size_t kSpan = 4096;
  static constexpr size_t kRegions = 10'000;
  VerbsFabric fabric_{
      {{.name = "d0", .ports = {RocePort(1, 1)}}, {.name = "d1", .ports = {RocePort(1, 2)}}}};
  ScopedFabric scope_{&fabric_};
  std::vector<std::byte> memory_;
  std::unique_ptr<Agent> agent_;
};

// Bytes allocated stand for cost: what is copied or looked through with every registration shows.
class Parts {
 public:
  void Add() {
    if (++count_ % kPart != 0) return;
    const uint64_t now = AllocationsEverywhere().bytes;
    parts_.push_back(now - last_);
    last_ = now;
  }
  void ExpectFlat() const {
    ASSERT_GE(parts_.size(), 2u);
    EXPECT_LE(parts_.back(), parts_.front() + parts_.front() / 2);
  }

 private:
  static constexpr size_t kPart = 1'000;
  size_t count_ = 0;
  uint64_t last_ = AllocationsEverywhere().bytes;
  std::vector<uint64_t> parts_;
};

TEST_F(VerbsRegions, TenThousandOneAfterTheOtherLeaveNothing) {
  ASSERT_OK(agent_->DeregisterMemory(Register(), kAmple));  // what is made once is made
  const size_t objects = fabric_.live_objects();
  const size_t files = OpenFiles();
  const uint64_t registered = fabric_.calls(Call::kRegMr);
  Parts parts;
  for (size_t i = 0; i < kRegions; ++i) {
    ASSERT_OK(agent_->DeregisterMemory(Register(), kAmple));
    parts.Add();
  }
  EXPECT_EQ(fabric_.live_objects(), objects);
  EXPECT_EQ(OpenFiles(), files);
  EXPECT_EQ(fabric_.calls(Call::kRegMr) - registered, 2 * kRegions);
  parts.ExpectFlat();
}

TEST_F(VerbsRegions, TenThousandAtOnceCostTheLastWhatTheFirstDid) {
  const size_t objects = fabric_.live_objects();
  std::vector<RegionId> ids;
  Parts made;
  for (size_t i = 0; i < kRegions; ++i) {
    ids.push_back(Register());
    made.Add();
  }
  made.ExpectFlat();
  EXPECT_EQ(fabric_.live_objects(), objects + 2 * kRegions);
  Parts gone;
  for (const RegionId id : ids) {
    ASSERT_OK(agent_->DeregisterMemory(id, kAmple));
    gone.Add();
  }
  gone.ExpectFlat();
  EXPECT_EQ(fabric_.live_objects(), objects);
}

}  // namespace
}  // namespace kvxfer::testing
