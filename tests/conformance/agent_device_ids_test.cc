// Transfers whose ids are in GPU memory: the GPU that copies reads them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "tests/support/agents.h"
#include "tests/support/flavour.h"
#include "tests/support/gpu_stream.h"
#include "tests/support/memory_view.h"
#include "tests/support/needs_stand_in.h"
#include "tests/support/pattern.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

constexpr uint64_t kBlock = 4096;
constexpr uint32_t kBlocks = 64;
constexpr uint64_t kIdBytes = 4096;

class AgentDeviceIds : public ::testing::Test {
 protected:
  void SetUp() override { Make(CudaIpcFlavour()); }

  void Make(const Flavour& flavour) {
    for (auto [node, name] : {std::pair{&pair_.a, "a"}, {&pair_.b, "b"}}) {
      ASSERT_OK_AND_ASSIGN(
          *node, Node::Create(OptionsFor(flavour, name), MemoryType::kCuda, kBlocks * kBlock));
    }
    ASSERT_OK(Introduce(*pair_.a.agent, *pair_.b.agent));
    ASSERT_OK_AND_ASSIGN(ids_, TestMemory::Allocate(MemoryType::kCuda, 2 * kIdBytes));
    ASSERT_OK_AND_ASSIGN(ids_region_, pair_.a.agent->RegisterMemory(ids_.span(), Access::kNone));
    Pattern(1).Fill(pair_.a.memory.bytes());
    Pattern(2).Fill(pair_.b.memory.bytes());
  }

  static PagedRegion Region(const Node& node) {
    return {
        .base = node.memory.address(), .block_bytes = kBlock, .stride = kBlock, .count = kBlocks};
  }
  void SetIds(uint64_t offset, const std::vector<uint32_t>& ids) {
    WriteView view(ids_.bytes());
    std::memcpy(view.bytes().data() + offset, ids.data(), ids.size() * sizeof(uint32_t));
  }
  absl::StatusOr<Transfer> Move(bool write, size_t count, TransferOptions options = Unhurried()) {
    const PagedRegion here = Region(pair_.a);
    const PagedRegion there = Region(pair_.b);
    const PagedBlocks blocks{
        .local = {&here, 1},
        .remote = {&there, 1},
        .local_device_ids = {.address = ids_.address(), .count = count},
        .remote_device_ids = {.address = ids_.address() + kIdBytes, .count = count}};
    return write ? pair_.a.agent->Write("b", blocks, options)
                 : pair_.a.agent->Read("b", blocks, options);
  }
  absl::Status Done(absl::StatusOr<Transfer> transfer) {
    return transfer.ok() ? transfer->Wait(kAmple) : transfer.status();
  }
  // Block `block` of `node` holds what block `other` held of the pattern `seed`.
  static bool Holds(const Node& node, uint32_t block, uint64_t seed, uint32_t other) {
    const ReadView view(node.memory.bytes().subspan(block * kBlock, kBlock));
    std::vector<std::byte> wanted(kBlocks * kBlock);
    Pattern(seed).Fill(wanted);
    return std::memcmp(view.bytes().data(), wanted.data() + other * kBlock, kBlock) == 0;
  }

  Pair pair_;
  TestMemory ids_;
  RegionId ids_region_{};
};

TEST_F(AgentDeviceIds, MoveTheBlocksTheyName) {
  SetIds(0, {5, 60, 7});
  SetIds(kIdBytes, {63, 0, 31});
  ASSERT_OK(Done(Move(true, 3)));
  EXPECT_TRUE(Holds(pair_.b, 63, 1, 5) && Holds(pair_.b, 0, 1, 60) && Holds(pair_.b, 31, 1, 7));
  EXPECT_TRUE(Holds(pair_.b, 1, 2, 1)) << "and no other";
  SetIds(0, {1, 2, 3});
  SetIds(kIdBytes, {10, 11, 63});
  ASSERT_OK(Done(Move(false, 3)));
  EXPECT_TRUE(Holds(pair_.a, 1, 2, 10) && Holds(pair_.a, 2, 2, 11) && Holds(pair_.a, 3, 1, 5));
  EXPECT_TRUE(pair_.a.memory.GuardsIntact() && pair_.b.memory.GuardsIntact());
}

// A kernel of the application may still write them when the transfer is posted.
TEST_F(AgentDeviceIds, AreReadAfterTheStreamThatWritesThem) {
  KVXFER_NEEDS_STAND_IN();
  SetIds(0, {0});
  SetIds(kIdBytes, {0});
  GpuStream stream;
  stream.Hold();
  TransferOptions options = Unhurried();
  options.after = stream;
  ASSERT_OK_AND_ASSIGN(const Transfer transfer, Move(true, 1, options));
  SetIds(0, {9});
  SetIds(kIdBytes, {8});
  stream.LetGo();
  ASSERT_OK(transfer.Wait(kAmple));
  EXPECT_TRUE(Holds(pair_.b, 8, 1, 9));
  EXPECT_TRUE(Holds(pair_.b, 0, 2, 0));
}

// Expect nothing outside of the regions to be touched, and the agents to go on.
TEST_F(AgentDeviceIds, AnIdBeyondItsRegionFailsTheTransfer) {
  for (const bool write : {true, false}) {
    SetIds(0, {1, kBlocks, 3, 0xffffffff});
    SetIds(kIdBytes, {kBlocks + 1, 2, 3, 4});
    EXPECT_TRUE(Fails(Done(Move(write, 4)), absl::StatusCode::kInvalidArgument,
                      {"an id in GPU memory is beyond its paged region"}));
    EXPECT_TRUE(pair_.a.memory.GuardsIntact() && pair_.b.memory.GuardsIntact());
  }
  SetIds(0, {4});
  SetIds(kIdBytes, {6});
  ASSERT_OK(Done(Move(true, 1)));
  EXPECT_TRUE(Holds(pair_.b, 6, 1, 4));
}

// Expect the GPU's word on ids to reach their transfer alone, though others share its batches.
TEST_F(AgentDeviceIds, AWrongIdFailsNoOtherTransfer) {
  KVXFER_NEEDS_STAND_IN();
  SetIds(0, {1, 2, 3, 4});
  SetIds(kIdBytes, {1, kBlocks, 3, 4});
  ASSERT_OK(Done(Move(true, 1)));
  const auto* const hooks = cuda_driver::FindHooks();
  ASSERT_NE(hooks, nullptr);
  hooks->kvxfer_standin_pause(1);
  std::vector<Transfer> transfers;
  const std::vector<size_t> counts{1, 1, 1, 1, 2, 1, 2, 1, 1};  // two of which name the wrong one
  for (const size_t count : counts) {
    ASSERT_OK_AND_ASSIGN(transfers.emplace_back(), Move(true, count));
  }
  hooks->kvxfer_standin_pause(0);
  for (size_t i = 0; i < counts.size(); ++i) {
    EXPECT_EQ(transfers[i].Wait(kAmple).code(),
              counts[i] == 1 ? absl::StatusCode::kOk : absl::StatusCode::kInvalidArgument)
        << i;
  }
}

TEST_F(AgentDeviceIds, OfMemoryThatIsNotThisAgentsAreRefused) {
  const PagedRegion here = Region(pair_.a);
  const PagedRegion there = Region(pair_.b);
  PagedBlocks blocks{.local = {&here, 1}, .remote = {&there, 1}};
  blocks.local_device_ids = {.address = pair_.b.memory.address(), .count = 1};
  blocks.remote_device_ids = {.address = ids_.address(), .count = 1};
  EXPECT_TRUE(Fails(pair_.a.agent->Write("b", blocks), absl::StatusCode::kInvalidArgument,
                    {"local_device_ids"}));
}

TEST_F(AgentDeviceIds, TheirMemoryIsInUseUntilTheEnd) {
  KVXFER_NEEDS_STAND_IN();
  SetIds(0, {1});
  SetIds(kIdBytes, {1});
  const auto* const hooks = cuda_driver::FindHooks();
  ASSERT_NE(hooks, nullptr);
  ASSERT_OK(Done(Move(true, 1)));
  hooks->kvxfer_standin_pause(1);
  ASSERT_OK_AND_ASSIGN(const Transfer transfer, Move(true, 1));
  EXPECT_TRUE(Fails(pair_.a.agent->DeregisterMemory(ids_region_, std::chrono::milliseconds(50)),
                    kTimedOut, {"still in use"}));
  hooks->kvxfer_standin_pause(0);
  ASSERT_OK(transfer.Wait(kAmple));
  EXPECT_OK(pair_.a.agent->DeregisterMemory(ids_region_, kAmple));
  EXPECT_TRUE(Fails(Done(Move(true, 1)), absl::StatusCode::kInvalidArgument, {"local_device_ids"}));
}

TEST_F(AgentDeviceIds, MemoryOfThemThatWasFreedIsNotRead) {
  SetIds(0, {1});
  SetIds(kIdBytes, {1});
  const uint64_t at = ids_.address();
  ids_ = {};
  const PagedRegion here = Region(pair_.a);
  const PagedRegion there = Region(pair_.b);
  const PagedBlocks blocks{.local = {&here, 1},
                           .remote = {&there, 1},
                           .local_device_ids = {.address = at, .count = 1},
                           .remote_device_ids = {.address = at + kIdBytes, .count = 1}};
  EXPECT_TRUE(Fails(Done(pair_.a.agent->Write("b", blocks, Unhurried())),
                    absl::StatusCode::kFailedPrecondition, {"were freed while"}));
}

TEST_F(AgentDeviceIds, OverAWayWithoutAGpuAreRefused) {
  pair_ = {};
  ASSERT_NO_FATAL_FAILURE(Make(TcpFlavour()));
  SetIds(0, {1});
  SetIds(kIdBytes, {1});
  EXPECT_TRUE(Fails(Done(Move(true, 1)), absl::StatusCode::kFailedPrecondition,
                    {"its ids are in GPU memory", "bring them to the host"}));
  EXPECT_TRUE(Holds(pair_.b, 1, 2, 1));
}

}  // namespace
}  // namespace kvxfer::testing
