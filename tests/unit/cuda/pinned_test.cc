// Pinned host memory, and the flush of what NICs wrote.
#include "src/cuda/pinned.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "src/cuda/flush.h"
#include "tests/support/child_process.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"
#include "tests/unit/cuda/test_util.h"

namespace kvxfer::cuda {
namespace {

using namespace api;  // NOLINT(google-build-using-namespace): the driver's own names
using absl::StatusCode;
using kvxfer::testing::Fails;
using kvxfer::testing::IsOk;
using kvxfer::testing::kAmple;
using kvxfer::testing::RunChild;

uint64_t PinnedRanges() {
  cuda_driver::LiveObjects live;
  StandIn().kvxfer_standin_live(&live);
  return live.pinned;
}

TEST(CudaPinnedTest, PinsUntilItGoes) {
  StandIn();
  const uint64_t before = PinnedRanges();
  ASSERT_OK_AND_ASSIGN(HostBuffer a, HostBuffer::Allocate(1 << 20));
  ASSERT_OK_AND_ASSIGN(HostBuffer b, HostBuffer::Allocate(1 << 20));
  {
    ASSERT_OK_AND_ASSIGN(Pinned first, Pinned::Pin(&TheDriver(), 0, a.data(), a.size()));
    EXPECT_EQ(PinnedRanges(), before + 1);
    ASSERT_OK_AND_ASSIGN(Pinned second, Pinned::Pin(&TheDriver(), 1, b.data(), b.size()));
    EXPECT_EQ(PinnedRanges(), before + 2);
    first = std::move(second);  // lets go of its own
    EXPECT_EQ(PinnedRanges(), before + 1);
    Pinned third(std::move(first));
    first = Pinned();
    EXPECT_EQ(PinnedRanges(), before + 1);
    std::thread([moved = std::move(third)] {}).join();
    EXPECT_EQ(PinnedRanges(), before);
  }
  EXPECT_EQ(PinnedRanges(), before);
}

TEST(CudaPinnedTest, WhatCannotBePinnedSaysWhy) {
  StandIn();
  const Driver* const driver = &TheDriver();
  ASSERT_OK_AND_ASSIGN(HostBuffer buffer, HostBuffer::Allocate(1 << 20));
  const auto pin = [&] { return Pinned::Pin(driver, 0, buffer.data(), buffer.size()); };
  StandIn().kvxfer_standin_fail("cuMemHostRegister_v2", 1, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_TRUE(Fails(pin(), StatusCode::kResourceExhausted,
                    {"pinning 1048576 bytes of host memory for GPU 0", "RLIMIT_MEMLOCK",
                     "limit of the container"}));
  EXPECT_TRUE(Fails(Pinned::Pin(driver, 0, nullptr, 4096), StatusCode::kInvalidArgument));
  EXPECT_TRUE(Fails(Pinned::Pin(driver, 0, buffer.data(), 0), StatusCode::kInvalidArgument));
  EXPECT_TRUE(Fails(Pinned::Pin(driver, 5, buffer.data(), 4096), StatusCode::kInvalidArgument,
                    {"no CUDA device 5"}));
  const uint64_t before = PinnedRanges();
  StandIn().kvxfer_standin_fail("cuMemHostGetDevicePointer_v2", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_TRUE(Fails(pin(), StatusCode::kInternal, {"cuMemHostGetDevicePointer"}));
  EXPECT_EQ(PinnedRanges(), before);
  ASSERT_OK_AND_ASSIGN(const Pinned once, pin());
  EXPECT_TRUE(Fails(pin(), StatusCode::kAlreadyExists, {"ALREADY_REGISTERED"}));
}

// A driver is asked once how its devices order what NICs write: children see other ones.
KVXFER_CHILD(CudaOrders) {
  Flusher flusher;
  CHILD_EXPECT(flusher.Add(&TheDriver(), 0).ok());
  CHILD_EXPECT(!flusher.needed());
  CHILD_EXPECT(flusher.Flush().ok());
  CHILD_EXPECT(StandIn().kvxfer_standin_calls("cuFlushGPUDirectRDMAWrites") == 0);
  flusher.Remove(0);
  CHILD_EXPECT(!flusher.needed());
  return 0;
}
KVXFER_CHILD(CudaCannotFlush) {
  Flusher flusher;
  const absl::Status status = flusher.Add(&TheDriver(), 0);
  CHILD_EXPECT(status.code() == absl::StatusCode::kFailedPrecondition);
  CHILD_EXPECT(absl::StrContains(status.message(), "neither orders"));
  CHILD_EXPECT(absl::StrContains(status.message(), "staging"));
  CHILD_EXPECT(!flusher.needed());
  return 0;
}

TEST(CudaFlushTest, DevicesThatOrderNeedNoneAndThoseThatCannotAreRefused) {
  {
    const ScopedEnvironment ordering("KVXFER_STANDIN_WRITES_ORDERING", "100");
    const ScopedEnvironment options("KVXFER_STANDIN_FLUSH_OPTIONS", "0");
    EXPECT_EQ(RunChild("CudaOrders", {}, kAmple), 0);
  }
  {
    const ScopedEnvironment ordering("KVXFER_STANDIN_WRITES_ORDERING", "200");
    EXPECT_EQ(RunChild("CudaOrders", {}, kAmple), 0);
  }
  const ScopedEnvironment options("KVXFER_STANDIN_FLUSH_OPTIONS", "2");  // by streams only
  EXPECT_EQ(RunChild("CudaCannotFlush", {}, kAmple), 0);
}

TEST(CudaFlushTest, WhatNicsWroteIsVisibleAfterIt) {
  const GpuMemory a(4096, 0);
  const GpuMemory b(4096, 1);
  Flusher flusher;
  EXPECT_FALSE(flusher.needed());
  EXPECT_OK(flusher.Flush());
  ASSERT_OK(flusher.Add(&TheDriver(), 0));
  ASSERT_OK(flusher.Add(&TheDriver(), 0));
  ASSERT_OK(flusher.Add(&TheDriver(), 1));
  EXPECT_TRUE(flusher.needed());
  const char text[] = "written by a NIC";
  for (const GpuMemory* memory : {&a, &b}) {
    ASSERT_EQ(StandIn().kvxfer_standin_nic_write(memory->at(), text, sizeof(text)), 0);
    EXPECT_STRNE(reinterpret_cast<const char*>(memory->alias()), text);
  }
  EXPECT_OK(flusher.Flush());
  EXPECT_STREQ(reinterpret_cast<const char*>(a.alias()), text);
  EXPECT_STREQ(reinterpret_cast<const char*>(b.alias()), text);

  // A device whose last region goes is not asked any more.
  const uint64_t flushes = StandIn().kvxfer_standin_calls("cuFlushGPUDirectRDMAWrites");
  flusher.Remove(0);
  flusher.Remove(1);
  EXPECT_TRUE(flusher.needed());
  EXPECT_OK(flusher.Flush());
  EXPECT_EQ(StandIn().kvxfer_standin_calls("cuFlushGPUDirectRDMAWrites"), flushes + 1);
  flusher.Remove(0);
  flusher.Remove(0);  // of a device that is not there
  EXPECT_FALSE(flusher.needed());
}

TEST(CudaFlushTest, AFlushThatFailsIsAnError) {
  StandIn();
  Flusher flusher;
  ASSERT_OK(flusher.Add(&TheDriver(), 0));
  StandIn().kvxfer_standin_fail("cuFlushGPUDirectRDMAWrites", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_TRUE(Fails(flusher.Flush(), StatusCode::kInternal,
                    {"GPU 0", "not visible yet", "cuFlushGPUDirectRDMAWrites"}));
  EXPECT_OK(flusher.Flush());
}

}  // namespace
}  // namespace kvxfer::cuda
