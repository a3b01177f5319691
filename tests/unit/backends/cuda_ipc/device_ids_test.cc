// Ids in GPU memory that cuda_ipc cannot serve.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>

#include "kvxfer/agent.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"
#include "tests/unit/backends/cuda_ipc/util.h"

namespace kvxfer::testing {
namespace {

constexpr uint64_t kBlock = 4096;

// `count` blocks from `from` to `to`, by ids in `ids`.
absl::Status Write(const GpuMemory& from, const GpuMemory& to, const GpuMemory& ids,
                   uint64_t block = kBlock, uint64_t blocks = 2, uint64_t count = 1) {
  auto a = Agent::Create({.name = "a", .backends = {"cuda_ipc"}});
  auto b = Agent::Create({.name = "b", .backends = {"cuda_ipc"}});
  EXPECT_OK(a);
  EXPECT_OK(b);
  EXPECT_OK((*a)->RegisterMemory(from.span(), Access::kReadWrite));
  EXPECT_OK((*a)->RegisterMemory(ids.span(), Access::kNone));
  EXPECT_OK((*b)->RegisterMemory(to.span(), Access::kReadWrite));
  EXPECT_OK((*a)->AddPeer(*(*b)->Metadata()));
  const auto region = [&](const GpuMemory& memory) {
    return PagedRegion{.base = memory.at(), .block_bytes = block, .stride = block, .count = blocks};
  };
  const PagedRegion here = region(from);
  const PagedRegion there = region(to);
  const DeviceIds some{.address = ids.at(), .count = count};
  auto transfer = (*a)->Write("b", PagedBlocks{.local = {&here, 1},
                                               .remote = {&there, 1},
                                               .local_device_ids = some,
                                               .remote_device_ids = some});
  return transfer.ok() ? transfer->Wait(kAmple) : transfer.status();
}

TEST(CudaIpcDeviceIds, MustBeOnTheGpuThatCopies) {
  const GpuMemory from = GpuMemory::Plain(2 * kBlock);
  const GpuMemory to = GpuMemory::Plain(2 * kBlock);
  EXPECT_OK(Write(from, to, GpuMemory::Plain(64)));
  EXPECT_TRUE(Fails(Write(from, to, GpuMemory::Plain(64, 1)), absl::StatusCode::kFailedPrecondition,
                    {"not on the one GPU that copies", "bring the ids to the host"}));
}

TEST(CudaIpcDeviceIds, NeedRegionsOfOneAllocation) {
  const GpuMemory one = GpuMemory::Plain(2 * kBlock);
  const GpuMemory two = GpuMemory::Virtual(2, cuda::api::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  const GpuMemory ids = GpuMemory::Plain(64);
  for (const auto& [from, to] : {std::pair(&one, &two), {&two, &one}}) {
    EXPECT_TRUE(Fails(Write(*from, *to, ids), absl::StatusCode::kFailedPrecondition,
                      {"consists of several allocations"}));
  }
}

// More than one operation takes, with blocks that do not divide it.
TEST(CudaIpcDeviceIds, LargeTransfersAreCutBetweenBlocks) {
  constexpr uint64_t kOdd = 72 * 1024;
  constexpr uint64_t kCount = 1000;
  const GpuMemory from = GpuMemory::Plain(kCount * kOdd);
  const GpuMemory to = GpuMemory::Plain(kCount * kOdd);
  const GpuMemory ids = GpuMemory::Plain(kCount * sizeof(uint32_t));
  for (uint64_t i = 0; i < kCount; ++i) {
    const auto id = static_cast<uint32_t>(kCount - 1 - i);
    std::memcpy(ids.bytes().data() + i * sizeof(id), &id, sizeof(id));
    std::memset(from.bytes().data() + i * kOdd, static_cast<int>(i % 251 + 1), kOdd);
  }
  EXPECT_OK(Write(from, to, ids, kOdd, kCount, kCount));
  EXPECT_EQ(std::memcmp(from.bytes().data(), to.bytes().data(), kCount * kOdd), 0);
}

TEST(CudaIpcDeviceIds, ABlockBeyondAnOperationIsRefusedBeforeAnythingMoves) {
  constexpr uint64_t kHuge = uint64_t{40} << 20;
  const GpuMemory from = GpuMemory::Plain(2 * kHuge);
  const GpuMemory to = GpuMemory::Plain(2 * kHuge);
  from.bytes()[0] = std::byte{1};
  EXPECT_TRUE(Fails(Write(from, to, GpuMemory::Plain(64), kHuge, 2, 1),
                    absl::StatusCode::kFailedPrecondition, {"41943040 bytes", "at most 33554432"}));
  EXPECT_EQ(to.bytes()[0], std::byte{0});
}

}  // namespace
}  // namespace kvxfer::testing
