// Copies between slots of staging memory and GPU memory: what is made when, and what the driver is
// asked.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/agent/staging/peer_stage.h"
#include "src/agent/staging/staging.h"
#include "tests/support/child_process.h"
#include "tests/support/pattern.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"
#include "tests/unit/backends/cuda_ipc/util.h"

namespace kvxfer::testing {
namespace {

constexpr RegionId kRegion{1};
constexpr uint64_t kBytes = 64 * 1024;

struct Moved final : Staging::User {
  void OnMoved(uint64_t key, const absl::Status& status) override { ended.emplace(key, status); }
  std::map<uint64_t, absl::Status> ended;
};

// One region of many allocations.
class CudaStaging : public ::testing::Test {
 protected:
  static constexpr size_t kParts = 64;

  void SetUp() override {
    ASSERT_OK(staging_.Open(0));
    ASSERT_OK_AND_ASSIGN(cuda::DeviceSpan span, cuda::Examine(memory_.span()));
    ASSERT_EQ(span.parts.size(), kParts);
    staging_.AddRegion(kRegion, std::move(span));
  }
  void TearDown() override { staging_.Close(); }

  absl::Status Move(bool into_slot, const std::vector<uint64_t>& offsets) {
    std::vector<Staging::Piece> pieces;
    pieces.reserve(offsets.size());
    for (const uint64_t offset : offsets) {
      pieces.push_back(
          {.address = memory_.at() + offset, .bytes = kBytes, .region = kRegion, .device = 0});
    }
    staging_.Move(&moved_, ++key_, staging_.PlaceOf(0), into_slot, std::move(pieces));
    const bool ended = Eventually(kAmple, [&] {
      staging_.Poll();
      return moved_.ended.contains(key_);
    });
    return ended ? moved_.ended[key_] : absl::DeadlineExceededError("the copy does not end");
  }
  static uint64_t Calls(const char* call) { return StandInHooks().kvxfer_standin_calls(call); }

  GpuMemory memory_ = GpuMemory::Virtual(kParts, cuda::api::CU_MEM_HANDLE_TYPE_NONE);
  Staging staging_{Staging::kMinBytes};
  Moved moved_;
  uint64_t key_ = 0;
};

// What may wait for every stream of the GPU is made by Open, and nothing by a copy.
TEST_F(CudaStaging, ACopyMakesNothing) {
  std::map<std::string, uint64_t> before;
  for (const char* const call : {"cuStreamCreateWithPriority", "cuModuleLoadData",
                                 "cuModuleGetFunction", "cuMemHostRegister_v2"}) {
    before[call] = Calls(call);
    EXPECT_GT(before[call], 0u) << call;
  }
  EXPECT_GT(Calls("cuCtxGetStreamPriorityRange"), 0u);
  Pattern(1).Fill(memory_.bytes());
  EXPECT_NE(staging_.Describe().find("GPU 0"), std::string::npos);
  ASSERT_OK(Move(true, {0, 5 << 20}));
  ASSERT_OK(Move(false, {7 << 20, 9 << 20}));
  EXPECT_EQ(Pattern(1).Mismatch(memory_.bytes().first(kBytes)), kNoMismatch);
  for (const auto& [call, calls] : before) EXPECT_EQ(Calls(call.c_str()), calls) << call;
  // Once for a device.
  ASSERT_OK(staging_.Open(0));
  for (const auto& [call, calls] : before) EXPECT_EQ(Calls(call.c_str()), calls) << call;
}

TEST_F(CudaStaging, ADeviceThatWasNotOpenedIsRefused) {
  const GpuMemory other = GpuMemory::Plain(kBytes, 1);
  ASSERT_OK_AND_ASSIGN(cuda::DeviceSpan span, cuda::Examine(other.span()));
  staging_.AddRegion(RegionId{2}, std::move(span));
  staging_.Move(&moved_, 1, staging_.PlaceOf(0), true,
                {{.address = other.at(), .bytes = kBytes, .region = RegionId{2}, .device = 1}});
  EXPECT_LE(staging_.NextPoll(), Now()) << "its end is there, and Poll reports it";
  EXPECT_TRUE(staging_.Poll());
  EXPECT_EQ(staging_.NextPoll(), Time::max());
  EXPECT_TRUE(Fails(moved_.ended[1], absl::StatusCode::kFailedPrecondition, {"GPU 1"}));
}

// Of a region only the allocations that a copy touches are asked about, each once.
TEST_F(CudaStaging, AsksAboutWhatItTouchesOnly) {
  ASSERT_OK(Move(true, {0}));
  const uint64_t before = Calls("cuPointerGetAttribute");
  ASSERT_OK(Move(true, {0, kBytes, 2 * kBytes}));
  EXPECT_LT(Calls("cuPointerGetAttribute") - before, kParts / 2);
}

TEST_F(CudaStaging, FreedMemoryIsNotTouched) {
  GpuMemory freed = GpuMemory::Plain(kBytes);
  ASSERT_OK_AND_ASSIGN(cuda::DeviceSpan span, cuda::Examine(freed.span()));
  staging_.AddRegion(RegionId{2}, std::move(span));
  const uint64_t at = freed.at();
  freed.Free();
  for (int i = 0; i < 2; ++i) {
    staging_.Move(&moved_, ++key_, staging_.PlaceOf(0), true,
                  {{.address = memory_.at(), .bytes = kBytes, .region = kRegion, .device = 0},
                   {.address = at, .bytes = kBytes, .region = RegionId{2}, .device = 0}});
    EXPECT_TRUE(Eventually(kAmple, [&] {
      staging_.Poll();
      return moved_.ended.contains(key_);
    }));
    EXPECT_TRUE(Fails(moved_.ended[key_], absl::StatusCode::kFailedPrecondition, {"freed while"}));
  }
  EXPECT_OK(Move(true, {0}));
}

// One launch on the GPU, and one copy engine between it and the host; of few bytes the launch
// alone.
TEST_F(CudaStaging, ACopyEngineMovesWhatAKernelGathers) {
  Pattern(2).Fill(memory_.bytes());
  const auto counts = [&](bool into_slot, const std::vector<uint64_t>& offsets) {
    const uint64_t launches = Calls("cuLaunchKernel");
    const uint64_t copies = Calls("cuMemcpyAsync");
    EXPECT_OK(Move(into_slot, offsets));
    return std::pair(Calls("cuLaunchKernel") - launches, Calls("cuMemcpyAsync") - copies);
  };
  EXPECT_EQ(counts(true, {0, 6 << 20, 3 << 20}), std::pair(uint64_t{1}, uint64_t{1}));
  EXPECT_EQ(counts(false, {8 << 20, 9 << 20, 10 << 20}), std::pair(uint64_t{1}, uint64_t{1}));
  EXPECT_EQ(counts(true, {0}), std::pair(uint64_t{1}, uint64_t{0}));
  for (const auto& [from, to] : {std::pair(0, 8), {6, 9}, {3, 10}}) {
    EXPECT_EQ(std::memcmp(memory_.bytes().data() + (to << 20),
                          memory_.bytes().data() + (from << 20), kBytes),
              0)
        << to;
  }
}

// Those that have no part of the bounce wait for one.
TEST_F(CudaStaging, MoreCopiesThanTheBounceHasParts) {
  Pattern(3).Fill({staging_.At(0), Staging::kBufferBytes});
  constexpr int kCopies = 20;
  StandInHooks().kvxfer_standin_pause(1);
  for (int i = 0; i < kCopies; ++i) {
    const uint64_t at = memory_.at() + (uint64_t{2} << 20) * static_cast<uint64_t>(i);
    staging_.Move(&moved_, ++key_, staging_.PlaceOf(0), false,
                  {{.address = at, .bytes = 2 * kBytes, .region = kRegion, .device = 0}});
  }
  EXPECT_FALSE(staging_.Poll());
  StandInHooks().kvxfer_standin_pause(0);
  ASSERT_TRUE(Eventually(kAmple, [&] {
    staging_.Poll();
    return moved_.ended.size() == kCopies;
  }));
  for (const auto& [key, status] : moved_.ended) {
    EXPECT_OK(status);
    EXPECT_EQ(Pattern(3).Mismatch(memory_.bytes().subspan((key - 1) << 21, 2 * kBytes)),
              kNoMismatch)
        << key;
  }
}

// A GPU whose memory the application has used up: kernels copy to and from the host.
TEST_F(CudaStaging, WithoutABounceKernelsCopy) {
  Staging other(Staging::kMinBytes);
  StandInHooks().kvxfer_standin_fail("cuMemAlloc_v2", 1, cuda::api::CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_OK(other.Open(0));
  ASSERT_OK_AND_ASSIGN(cuda::DeviceSpan span, cuda::Examine(memory_.span()));
  other.AddRegion(kRegion, std::move(span));
  EXPECT_NE(other.Describe().find("no memory left for copy engines"), std::string::npos);
  Pattern(4).Fill(memory_.bytes());
  const uint64_t copies = Calls("cuMemcpyAsync");
  other.Move(&moved_, 1, other.PlaceOf(1), true,
             {{.address = memory_.at(), .bytes = 4 * kBytes, .region = kRegion, .device = 0}});
  EXPECT_TRUE(Eventually(kAmple, [&] { return other.Poll(); }));
  EXPECT_OK(moved_.ended[1]);
  EXPECT_EQ(Calls("cuMemcpyAsync"), copies);
  EXPECT_EQ(Pattern(4).Mismatch({other.At(1), 4 * kBytes}), kNoMismatch);
  other.Close();
}

// Copies of which nobody can say whether they have ended say so to who holds a connection for them.
// `closes`: they are waited for at the end of the agent.
int Ruin(bool closes) {
  const GpuMemory memory = GpuMemory::Plain(4 * kBytes);
  Staging staging(Staging::kMinBytes);
  CHILD_EXPECT(staging.Open(0).ok());
  auto span = cuda::Examine(memory.span());
  CHILD_EXPECT(span.ok());
  staging.AddRegion(kRegion, *std::move(span));
  const auto hold = std::make_shared<CopyHold>();
  const auto of_context = std::make_shared<CopyHold>();
  Moved moved;
  StandInHooks().kvxfer_standin_pause(1);
  for (const auto& held : {hold, of_context}) {
    staging.Move(&moved, held == hold ? 1 : 2, {.at = staging.At(0), .hold = held}, true,
                 {{.address = memory.at(), .bytes = kBytes, .region = kRegion, .device = 0}});
  }
  StandInHooks().kvxfer_standin_fail_async(1, cuda::api::CUDA_ERROR_ILLEGAL_ADDRESS);
  StandInHooks().kvxfer_standin_pause(0);
  if (closes) {
    staging.Close();
  } else {
    CHILD_EXPECT(Eventually(kAmple, [&] {
      staging.Poll();
      return moved.ended.size() == 2;
    }));
  }
  CHILD_EXPECT(of_context->doubt);
  CHILD_EXPECT(hold.use_count() == 1 && of_context.use_count() == 1);
  std::_Exit(0);  // memory cannot be freed any more
}
KVXFER_CHILD(StagingRuined) { return Ruin(false); }
KVXFER_CHILD(StagingRuinedAtItsEnd) { return Ruin(true); }

TEST_F(CudaStaging, ARuinedContextLeavesDoubt) {
  EXPECT_EQ(RunChild("StagingRuined", {}, kAmple), 0);
  EXPECT_EQ(RunChild("StagingRuinedAtItsEnd", {}, kAmple), 0);
}

// Under MPS nothing tells when the GPU has stopped for a process that was killed.
KVXFER_CHILD(StagingUnderMps) {
  CHILD_EXPECT(cuda::Driver::Get().ok());
  const bool on = (**cuda::Driver::Get()).devices()[0].mps == true;
  CHILD_EXPECT(PeerStage::Suits(0) != on);
  CHILD_EXPECT(!PeerStage::Suits(99));
  return on ? 0 : 3;
}
TEST_F(CudaStaging, UnderMpsNoGpuCopiesToAPeersBuffers) {
  EXPECT_EQ(RunChild("StagingUnderMps", {}, kAmple), 3);
  ::setenv("KVXFER_STANDIN_MPS", "1", 1);
  EXPECT_EQ(RunChild("StagingUnderMps", {}, kAmple), 0);
  ::unsetenv("KVXFER_STANDIN_MPS");
}

}  // namespace
}  // namespace kvxfer::testing
