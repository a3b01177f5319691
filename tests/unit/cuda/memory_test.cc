// What lies behind a pointer: each kind of memory, and each span that is not what it is called.
#include "src/cuda/memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>
#include <memory>
#include <set>
#include <vector>

#include "src/cuda/pinned.h"
#include "tests/support/gpu_pieces.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"
#include "tests/unit/cuda/test_util.h"

namespace kvxfer::cuda {
namespace {

using namespace api;  // NOLINT(google-build-using-namespace): the driver's own names
using absl::StatusCode;
using kvxfer::testing::Fails;
using kvxfer::testing::GpuPieces;
using kvxfer::testing::IsOk;

constexpr size_t kGranule = GpuPieces::kGranule;

TEST(CudaMemoryTest, PlainMemoryIsOneAllocation) {
  const GpuMemory memory(100000, 1);
  ASSERT_OK_AND_ASSIGN(const DeviceSpan all, Examine(memory.span()));
  EXPECT_EQ(all.base, memory.at());
  EXPECT_EQ(all.bytes, 100000U);
  EXPECT_EQ(all.device, 1);
  ASSERT_EQ(all.parts.size(), 1U);
  const Allocation& part = all.parts[0];
  EXPECT_EQ(part.kind, AllocationKind::kDevice);
  EXPECT_EQ(part.base, memory.at());
  EXPECT_EQ(part.bytes, 100000U);
  EXPECT_EQ(part.allocation_base, memory.at());
  EXPECT_GE(part.allocation_bytes, 100000U);
  EXPECT_NE(part.buffer_id, 0U);
  EXPECT_TRUE(part.gpu_direct);
  EXPECT_FALSE(part.fd_handle || part.fabric_handle);

  // Some of it, as a tensor is of what its framework allocated.
  ASSERT_OK_AND_ASSIGN(const DeviceSpan some, Examine(CudaSpan(memory.at() + 4097, 1, 1)));
  ASSERT_EQ(some.parts.size(), 1U);
  EXPECT_EQ(some.parts[0].base, memory.at() + 4097);
  EXPECT_EQ(some.parts[0].bytes, 1U);
  EXPECT_EQ(some.parts[0].allocation_base, memory.at());
  EXPECT_EQ(some.parts[0].buffer_id, part.buffer_id);
}

TEST(CudaMemoryTest, KindsAreToldApart) {
  const GpuMemory managed(1 << 16, 0, GpuMemory::kManaged);
  ASSERT_OK_AND_ASSIGN(DeviceSpan span, Examine(managed.span()));
  ASSERT_EQ(span.parts.size(), 1U);
  EXPECT_EQ(span.parts[0].kind, AllocationKind::kManaged);
  EXPECT_EQ(span.parts[0].allocation_base, managed.at());

  const GpuMemory pool(1 << 16, 0, GpuMemory::kPool);
  ASSERT_OK_AND_ASSIGN(span, Examine(pool.span()));
  ASSERT_EQ(span.parts.size(), 1U);
  EXPECT_EQ(span.parts[0].kind, AllocationKind::kPool);

  std::set<std::string_view> names;
  for (const AllocationKind kind : {AllocationKind::kDevice, AllocationKind::kVirtual,
                                    AllocationKind::kPool, AllocationKind::kManaged}) {
    names.insert(ToString(kind));
  }
  EXPECT_EQ(names.size(), 4U);
}

// PyTorch's expandable segments: pieces of physical memory side by side in one reservation.
TEST(CudaMemoryTest, PiecesThatAreMappedSideBySideAreOneSpan) {
  StandIn();
  const std::array<size_t, 3> sizes = {kGranule, 3 * kGranule, 2 * kGranule};
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<GpuPieces> pieces, GpuPieces::Allocate(0, sizes));
  ASSERT_OK_AND_ASSIGN(const DeviceSpan all, Examine(pieces->span()));
  ASSERT_EQ(all.parts.size(), 3U);
  uint64_t at = pieces->address();
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(all.parts[i].kind, AllocationKind::kVirtual);
    EXPECT_EQ(all.parts[i].base, at);
    EXPECT_EQ(all.parts[i].bytes, sizes[i]);
    EXPECT_EQ(all.parts[i].allocation_base, at);
    EXPECT_EQ(all.parts[i].allocation_bytes, sizes[i]);
    at += sizes[i];
  }
  // From within the first into the second.
  ASSERT_OK_AND_ASSIGN(const DeviceSpan some, Examine(pieces->span(kGranule - 100, 300)));
  ASSERT_EQ(some.parts.size(), 2U);
  EXPECT_EQ(some.parts[0].bytes, 100U);
  EXPECT_EQ(some.parts[1].base, pieces->address() + kGranule);
  EXPECT_EQ(some.parts[1].bytes, 200U);
  EXPECT_EQ(some.parts[1].allocation_bytes, 3 * kGranule);
  // Handles that were retained to ask are given back.
  cuda_driver::LiveObjects live;
  StandIn().kvxfer_standin_live(&live);
  const uint64_t handles = live.handles;
  ASSERT_OK(Examine(pieces->span()));
  StandIn().kvxfer_standin_live(&live);
  EXPECT_EQ(live.handles, handles);
}

TEST(CudaMemoryTest, ASpanBeyondItsAllocationIsRefused) {
  const GpuMemory memory(kGranule);
  EXPECT_TRUE(Fails(Examine(CudaSpan(memory.at(), uint64_t{1} << 40)), StatusCode::kInvalidArgument,
                    {"run over the end of their allocation", "each allocation by itself"}));
  StandIn();
  const std::array<size_t, 2> sizes = {kGranule, kGranule};
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<GpuPieces> pieces, GpuPieces::Allocate(0, sizes));
  EXPECT_TRUE(Fails(Examine(CudaSpan(pieces->address() + kGranule, kGranule + 1)),
                    StatusCode::kInvalidArgument, {"run over the end"}));
}

// Two allocations that happen to be neighbours stay two. The stand-in keeps them apart, so the
// second of two pieces is taken for one that cuMemCreate did not make.
TEST(CudaMemoryTest, NeighboursByChanceAreNoRegion) {
  StandIn();
  const std::array<size_t, 2> sizes = {kGranule, kGranule};
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<GpuPieces> pieces, GpuPieces::Allocate(0, sizes));
  for (const int nth : {1, 2}) {
    StandIn().kvxfer_standin_fail("cuMemRetainAllocationHandle", nth, CUDA_ERROR_INVALID_VALUE);
    EXPECT_TRUE(Fails(Examine(pieces->span()), StatusCode::kInvalidArgument,
                      {"run over the end of their allocation", "into an unrelated one"}));
    StandIn().kvxfer_standin_fail_none();
  }
  // Two of its kind, both.
  StandIn().kvxfer_standin_fail("cuMemRetainAllocationHandle", 0, CUDA_ERROR_INVALID_VALUE);
  EXPECT_TRUE(Fails(Examine(pieces->span()), StatusCode::kInvalidArgument, {"an unrelated one"}));
  StandIn().kvxfer_standin_fail_none();
  EXPECT_OK(Examine(pieces->span()));
}

TEST(CudaMemoryTest, PiecesOfTwoDevicesAreNoRegion) {
  StandIn();
  const Calls& calls = TheDriver().calls();
  const ContextScope scope(TheDriver(), 0);
  CUdeviceptr at = 0;
  ASSERT_EQ(calls.cuMemAddressReserve(&at, 2 * kGranule, 0, 0, 0), CUDA_SUCCESS);
  for (int device = 0; device < 2; ++device) {
    CUmemAllocationProp prop{};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
    CUmemGenericAllocationHandle handle = 0;
    ASSERT_EQ(calls.cuMemCreate(&handle, kGranule, &prop, 0), CUDA_SUCCESS);
    ASSERT_EQ(calls.cuMemMap(at + static_cast<size_t>(device) * kGranule, kGranule, 0, handle, 0),
              CUDA_SUCCESS);
    ASSERT_EQ(calls.cuMemRelease(handle), CUDA_SUCCESS);
  }
  EXPECT_OK(Examine(CudaSpan(at, kGranule, 0)));
  EXPECT_OK(Examine(CudaSpan(at + kGranule, kGranule, 1)));
  EXPECT_TRUE(Fails(Examine(CudaSpan(at, kGranule + 1, 0)), StatusCode::kInvalidArgument,
                    {"run over the end", "into memory of GPU 1"}));
  for (const size_t offset : {size_t{0}, kGranule}) calls.cuMemUnmap(at + offset, kGranule);
  calls.cuMemAddressFree(at, 2 * kGranule);
}

TEST(CudaMemoryTest, HostMemoryThatIsCalledCudaIsRefused) {
  StandIn();
  std::vector<char> host(4096);
  EXPECT_TRUE(Fails(Examine(CudaSpan(reinterpret_cast<uint64_t>(host.data()), host.size())),
                    StatusCode::kInvalidArgument,
                    {"host memory", "was freed or never was", "MemoryKind::kHost"}));
  ASSERT_OK_AND_ASSIGN(HostBuffer buffer, HostBuffer::Allocate(8192));
  ASSERT_OK_AND_ASSIGN(const Pinned pinned,
                       Pinned::Pin(&TheDriver(), 0, buffer.data(), buffer.size()));
  EXPECT_TRUE(Fails(Examine(CudaSpan(reinterpret_cast<uint64_t>(buffer.data()), buffer.size())),
                    StatusCode::kInvalidArgument, {"pinned host memory", "MemoryKind::kHost"}));
}

TEST(CudaMemoryTest, ASpanThatIsNoneIsRefused) {
  const GpuMemory memory(4096);
  EXPECT_TRUE(Fails(Examine(CudaSpan(memory.at(), 0)), StatusCode::kInvalidArgument, {"empty"}));
  EXPECT_TRUE(Fails(Examine(CudaSpan(0, 4096)), StatusCode::kInvalidArgument, {"address"}));
  EXPECT_TRUE(Fails(Examine(CudaSpan(memory.at(), SIZE_MAX)), StatusCode::kInvalidArgument));
}

// The error names both devices; a wrong number makes no context on its device.
TEST(CudaMemoryTest, AWrongDeviceIsNamed) {
  const GpuMemory memory(4096, 1);
  const uint64_t before = StandIn().kvxfer_standin_calls("cuDevicePrimaryCtxRetain");
  EXPECT_TRUE(Fails(Examine(CudaSpan(memory.at(), 4096, 0)), StatusCode::kInvalidArgument,
                    {"are memory of GPU 1, not of GPU 0", "device_id"}));
  EXPECT_EQ(StandIn().kvxfer_standin_calls("cuDevicePrimaryCtxRetain"), before);
  for (const int none : {-1, 2}) {
    EXPECT_TRUE(Fails(Examine(CudaSpan(memory.at(), 4096, none)), StatusCode::kInvalidArgument,
                      {"no CUDA device", "sees 2"}));
  }
}

TEST(CudaMemoryTest, FreedMemoryIsRefusedAndKnownToBeGone) {
  GpuMemory memory(kGranule);
  const MemorySpan span = memory.span();
  ASSERT_OK_AND_ASSIGN(const DeviceSpan examined, Examine(span));
  EXPECT_OK(CheckAlive(TheDriver(), examined));
  memory.Free();
  EXPECT_TRUE(Fails(Examine(span), StatusCode::kInvalidArgument, {"freed"}));
  EXPECT_TRUE(Fails(CheckAlive(TheDriver(), examined), StatusCode::kFailedPrecondition,
                    {"were freed while they were registered", "deregister"}));
  // Others that come to lie at the same address are others.
  std::vector<std::unique_ptr<GpuMemory>> others;
  while (others.size() < 64 && (others.empty() || others.back()->at() != examined.base)) {
    others.push_back(std::make_unique<GpuMemory>(kGranule));
  }
  ASSERT_EQ(others.back()->at(), examined.base)
      << "the stand-in no longer uses an address for the second time";
  EXPECT_TRUE(Fails(CheckAlive(TheDriver(), examined), StatusCode::kFailedPrecondition));
}

TEST(CudaMemoryTest, OnePieceThatIsUnmappedIsKnownToBeGone) {
  StandIn();
  const std::array<size_t, 3> sizes = {kGranule, kGranule, kGranule};
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<GpuPieces> pieces, GpuPieces::Allocate(0, sizes));
  ASSERT_OK_AND_ASSIGN(const DeviceSpan examined, Examine(pieces->span()));
  ASSERT_OK(CheckAlive(TheDriver(), examined));
  const ContextScope scope(TheDriver(), 0);
  ASSERT_EQ(TheDriver().calls().cuMemUnmap(pieces->address() + kGranule, kGranule), CUDA_SUCCESS);
  EXPECT_TRUE(Fails(CheckAlive(TheDriver(), examined), StatusCode::kFailedPrecondition, {"freed"}));
  EXPECT_TRUE(Fails(Examine(pieces->span()), StatusCode::kInvalidArgument, {"run over the end"}));
  EXPECT_FALSE(Examine(pieces->span(kGranule, 1)).ok());  // reserved only
}

TEST(CudaMemoryTest, GpuMemoryThatIsCalledHostIsRefused) {
  const GpuMemory memory(4096, 1);
  const auto host = [](uint64_t at, size_t bytes) {
    return MemorySpan{.data = reinterpret_cast<void*>(at), .bytes = bytes};
  };
  EXPECT_TRUE(Fails(CheckHostSpan(host(memory.at() + 5, 10)), StatusCode::kInvalidArgument,
                    {"memory of GPU 1", "MemoryKind::kCuda", "device_id 1"}));
  // Host memory that runs into it.
  EXPECT_TRUE(Fails(CheckHostSpan(host(memory.at() - (1 << 20), (1 << 20) + 1)),
                    StatusCode::kInvalidArgument, {"GPU 1"}));
  std::vector<char> plain(4096);
  EXPECT_OK(CheckHostSpan(host(reinterpret_cast<uint64_t>(plain.data()), plain.size())));
  EXPECT_OK(CheckHostSpan(host(0, 0)));
  ASSERT_OK_AND_ASSIGN(HostBuffer buffer, HostBuffer::Allocate(8192));
  ASSERT_OK_AND_ASSIGN(const Pinned pinned,
                       Pinned::Pin(&TheDriver(), 0, buffer.data(), buffer.size()));
  EXPECT_OK(CheckHostSpan(buffer.span()));
  const GpuMemory managed(4096, 0, GpuMemory::kManaged);  // a CPU reaches it
  EXPECT_OK(CheckHostSpan(host(managed.at(), 4096)));
}

TEST(CudaMemoryTest, SyncMemopsAreSetWhereThereIsSuchAThing) {
  const GpuMemory memory(4096);
  ASSERT_OK_AND_ASSIGN(const DeviceSpan plain, Examine(memory.span()));
  EXPECT_OK(SetSyncMemops(TheDriver(), plain));
  unsigned on = 0;
  ASSERT_EQ(
      TheDriver().calls().cuPointerGetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, memory.at()),
      CUDA_SUCCESS);
  EXPECT_EQ(on, 1U);
  const std::array<size_t, 1> sizes = {kGranule};
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<GpuPieces> pieces, GpuPieces::Allocate(0, sizes));
  const GpuMemory pool(4096, 0, GpuMemory::kPool);
  const GpuMemory managed(4096, 0, GpuMemory::kManaged);
  for (const MemorySpan& span : {pieces->span(), pool.span(), managed.span()}) {
    ASSERT_OK_AND_ASSIGN(const DeviceSpan examined, Examine(span));
    EXPECT_OK(SetSyncMemops(TheDriver(), examined));
  }
  StandIn().kvxfer_standin_fail("cuPointerSetAttribute", 1, CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_OK(SetSyncMemops(TheDriver(), plain));
  StandIn().kvxfer_standin_fail("cuPointerSetAttribute", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_TRUE(Fails(SetSyncMemops(TheDriver(), plain), StatusCode::kInternal, {"SYNC_MEMOPS"}));
}

// Whichever question fails: a status, and nothing that stays.
TEST(CudaMemoryTest, EachCallThatFailsIsAnAnswer) {
  const std::array<size_t, 2> sizes = {kGranule, kGranule};
  StandIn();
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<GpuPieces> pieces, GpuPieces::Allocate(0, sizes));
  const GpuMemory memory(4096);
  for (const char* const call : cuda_driver::kCalls) {
    for (const MemorySpan& span : {memory.span(), pieces->span()}) {
      StandIn().kvxfer_standin_fail(call, 1, CUDA_ERROR_UNKNOWN);
      const absl::Status status = Examine(span).status();
      if (!status.ok()) {
        EXPECT_FALSE(status.message().empty()) << call;
      }
      StandIn().kvxfer_standin_fail_none();
      EXPECT_OK(Examine(span)) << call;
    }
  }
}

}  // namespace
}  // namespace kvxfer::cuda
