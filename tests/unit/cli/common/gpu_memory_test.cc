// GPU memory of the program's caches, over the stand-in CUDA driver: checks read the real content,
// and writes of the CPU change no other bytes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "src/cli/bench/report.h"
#include "src/cli/common/cache_memory.h"
#include "src/cli/common/kv_cache.h"
#include "src/cli/demo/demo.h"
#include "tests/unit/cuda/test_util.h"

namespace kvxfer::cli {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr MemorySource kCuda = MemorySource::kCuda;

std::span<std::byte> Alias(const MemorySpan& span) {
  const auto at = reinterpret_cast<uint64_t>(span.data);
  return {cuda::StandIn().kvxfer_standin_alias(at, span.bytes), span.bytes};
}

uint64_t Calls(const char* name) { return cuda::StandIn().kvxfer_standin_calls(name); }

TEST(CliGpuMemory, IsZeroedAndGivenBack) {
  cuda::cuda_driver::LiveObjects before;
  cuda::StandIn().kvxfer_standin_live(&before);
  {
    const auto memory = GpuMemory::Allocate(1, 100'000);
    ASSERT_TRUE(memory.ok()) << memory.status();
    EXPECT_EQ(memory->span().kind, MemoryKind::kCuda);
    EXPECT_EQ(memory->span().device_id, 1);
    EXPECT_THAT(Alias(memory->span()), Each(std::byte{0}));
    const std::vector<std::byte> sent(777, std::byte{5});
    ASSERT_TRUE(memory->Write(1000, sent).ok());
    EXPECT_EQ(std::ranges::count(Alias(memory->span()), std::byte{5}), 777);
    std::vector<std::byte> got(779);
    ASSERT_TRUE(memory->Read(999, got).ok());
    EXPECT_EQ(std::ranges::count(got, std::byte{5}), 777);
    ASSERT_TRUE(memory->Zero(1000, 776).ok());
    EXPECT_EQ(std::ranges::count(Alias(memory->span()), std::byte{5}), 1);
  }
  cuda::cuda_driver::LiveObjects after;
  cuda::StandIn().kvxfer_standin_live(&after);
  EXPECT_EQ(after.allocations, before.allocations);
}

TEST(CliGpuMemory, EachCallThatFailsIsToldWithItsName) {
  struct Failing {
    const char* call;
    const char* says;
  };
  for (const Failing& c :
       {Failing{"cuMemAlloc_v2", "allocating 4 KiB of cuda:0: cuMemAlloc"},
        Failing{"cuMemsetD8_v2", "cuMemsetD8"}, Failing{"cuPointerSetAttribute", "SYNC_MEMOPS"}}) {
    cuda::StandIn().kvxfer_standin_fail(c.call, 1, cuda::api::CUDA_ERROR_OUT_OF_MEMORY);
    const auto memory = CacheMemory::Allocate(kCuda, 4096);
    EXPECT_EQ(memory.status().code(), absl::StatusCode::kResourceExhausted) << c.call;
    EXPECT_THAT(std::string(memory.status().message()), HasSubstr(c.says));
  }
  // A driver that does not know the attribute is no error.
  cuda::StandIn().kvxfer_standin_fail("cuPointerSetAttribute", 1,
                                      cuda::api::CUDA_ERROR_NOT_SUPPORTED);
  const auto memory = CacheMemory::Allocate(kCuda, 4096);
  ASSERT_TRUE(memory.ok()) << memory.status();
  const std::vector<Stretch> all = {{0, 4096}};
  const auto nothing = [](size_t, std::span<std::byte>) { return absl::OkStatus(); };
  // Unavailable is for lost peers only.
  cuda::StandIn().kvxfer_standin_fail("cuMemcpyDtoH_v2", 1, cuda::api::CUDA_ERROR_OPERATING_SYSTEM);
  const absl::Status read = memory->ForEach(all, Touch::kRead, nothing);
  EXPECT_EQ(read.code(), absl::StatusCode::kFailedPrecondition) << read;
  cuda::StandIn().kvxfer_standin_fail("cuMemcpyHtoD_v2", 1, cuda::api::CUDA_ERROR_INVALID_VALUE);
  EXPECT_FALSE(memory->ForEach(all, Touch::kWrite, nothing).ok());
  cuda::StandIn().kvxfer_standin_fail_none();
}

// Bytes in between are neither written nor saved: others may use them.
TEST(CacheMemoryOfGpu, WritesItsStretchesAlone) {
  const auto memory = CacheMemory::Allocate(kCuda, 1 << 20);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_TRUE(memory->host_bytes().empty());
  const std::span<std::byte> seen = Alias(memory->span());
  const std::vector<Stretch> stretches = {{0, 10}, {10, 10}, {30, 10}, {900'000, 1}};
  std::ranges::fill(seen, std::byte{7});
  const uint64_t before = Calls("cuMemcpyHtoD_v2");
  const auto write = [&](size_t i, std::span<std::byte> bytes) {
    // A peer writes meanwhile.
    seen[25] = std::byte{8};
    EXPECT_EQ(bytes.size(), stretches[i].bytes);
    std::ranges::fill(bytes, std::byte{9});
    return absl::OkStatus();
  };
  ASSERT_TRUE(memory->ForEach(stretches, Touch::kWrite, write).ok());
  EXPECT_EQ(Calls("cuMemcpyHtoD_v2") - before, 3u) << "what is adjacent goes together";
  EXPECT_EQ(seen[25], std::byte{8});
  EXPECT_EQ(std::ranges::count(seen, std::byte{9}), 31);
  EXPECT_EQ(std::ranges::count(seen, std::byte{7}), (1 << 20) - 32);
}

TEST(CacheMemoryOfGpu, ReadsWhatIsNearInOneCopy) {
  constexpr uint64_t kBytes = 24 << 20;
  const auto memory = CacheMemory::Allocate(kCuda, kBytes);
  ASSERT_TRUE(memory.ok()) << memory.status();
  const std::span<std::byte> seen = Alias(memory->span());
  std::vector<Stretch> stretches;
  for (uint64_t offset = 0; offset < (1 << 20); offset += 8192) stretches.push_back({offset, 4096});
  stretches.push_back({2 << 20, 16 << 20});  // longer than a window
  stretches.push_back({20 << 20, 4096});
  for (size_t i = 0; i < stretches.size(); ++i) {
    std::ranges::fill(seen.subspan(stretches[i].offset, stretches[i].bytes),
                      static_cast<std::byte>(i));
  }
  const uint64_t reads = Calls("cuMemcpyDtoH_v2");
  const uint64_t writes = Calls("cuMemcpyHtoD_v2");
  const auto look = [](size_t i, std::span<std::byte> bytes) {
    EXPECT_EQ(std::ranges::count(bytes, static_cast<std::byte>(i)),
              static_cast<std::ptrdiff_t>(bytes.size()))
        << i;
    bytes[0] = std::byte{77};  // of the copy
    return absl::OkStatus();
  };
  ASSERT_TRUE(memory->ForEach(stretches, Touch::kRead, look).ok());
  EXPECT_EQ(Calls("cuMemcpyDtoH_v2") - reads, 3u);
  EXPECT_EQ(Calls("cuMemcpyHtoD_v2"), writes);
  EXPECT_EQ(seen[0], std::byte{0});
}

TEST(KvCacheOfGpu, FindsEveryKindOfWrongContent) {
  for (const uint64_t gap : {0u, 64u}) {
    const auto cache = KvCache::Create(
        {.pieces = 3, .block_bytes = 1000, .blocks = 8, .gap = gap, .memory = kCuda});
    ASSERT_TRUE(cache.ok()) << cache.status();
    const std::vector<uint32_t> blocks = {5, 0, 7};
    ASSERT_TRUE(cache->FillRequest(3, blocks, 1).ok());
    EXPECT_TRUE(cache->CheckRequest(3, blocks, 1).ok());
    EXPECT_FALSE(cache->CheckRequest(3, std::vector<uint32_t>{0, 5, 7}, 1).ok());
    ASSERT_TRUE(cache->Corrupt(2, 7, 999).ok());
    const absl::Status wrong = cache->CheckRequest(3, blocks, 1);
    EXPECT_EQ(wrong.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(wrong.message()), HasSubstr("region 2, block 7"));
    EXPECT_TRUE(cache->CheckGuards().ok());
    // A byte behind the last block, and in front of the first.
    const PagedRegion& region = cache->regions()[1];
    for (const uint64_t beside : {region.base - 1, region.base + 8 * region.stride}) {
      std::byte* const at = cuda::StandIn().kvxfer_standin_alias(beside, 1);
      *at ^= std::byte{1};
      EXPECT_EQ(cache->CheckGuards().code(), absl::StatusCode::kDataLoss);
      *at ^= std::byte{1};
    }
    ASSERT_TRUE(cache->Clear().ok());
    EXPECT_TRUE(cache->CheckGuards().ok());
    const auto cleared = [](size_t, std::span<std::byte> bytes) {
      EXPECT_THAT(bytes, Each(std::byte{0}));
      return absl::OkStatus();
    };
    EXPECT_TRUE(cache->ForEachBlock(2, blocks, Touch::kRead, cleared).ok());
  }
}

TEST(CheckFitsGpus, EachByItself) {
  const std::vector<MemoryNeed> apart = {{MemoryChoice(kCuda, 0), uint64_t{10} << 30},
                                         {MemoryChoice(kCuda, 1), uint64_t{10} << 30}};
  EXPECT_TRUE(CheckFits(apart, "less").ok());
  const std::vector<MemoryNeed> together = {{MemoryChoice(kCuda, 1), uint64_t{10} << 30},
                                            {MemoryChoice(kCuda, 1), uint64_t{10} << 30}};
  const absl::Status refused = CheckFits(together, "a smaller --total");
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("the run needs 20 GiB, cuda:1 has 16 GiB"),
                    HasSubstr("use a smaller --total")));
  const std::vector<MemoryNeed> missing = {{MemoryChoice(kCuda, 2), 1}};
  EXPECT_THAT(std::string(CheckFits(missing, "less").message()), HasSubstr("no CUDA device 2"));
}

TEST(DemoMemoryOfGpus, TakesThemInTurn) {
  const auto turns = DemoMemoryOf("cuda", 3, 2);
  ASSERT_TRUE(turns.ok()) << turns.status();
  EXPECT_THAT(turns->prefill,
              ElementsAre(MemoryChoice(kCuda, 0), MemoryChoice(kCuda, 1), MemoryChoice(kCuda, 0)));
  EXPECT_THAT(turns->decode, ElementsAre(MemoryChoice(kCuda, 1), MemoryChoice(kCuda, 0)));
  const auto named = DemoMemoryOf("host,cuda:1", 1, 2);
  ASSERT_TRUE(named.ok()) << named.status();
  EXPECT_THAT(named->prefill, ElementsAre(MemoryChoice()));
  EXPECT_THAT(named->decode, Each(MemoryChoice(kCuda, 1)));
  EXPECT_FALSE(DemoMemoryOf("cuda:5", 1, 1).ok());
}

TEST(DeviceCopy, HasRatesWhereThereIsAGpu) {
  const auto host = MeasureDeviceCopy({}, 4096, 64);
  ASSERT_TRUE(host.ok()) << host.status();
  EXPECT_EQ(host->whole, 0);
  for (const MemorySides& sides : {MemorySides{MemoryChoice(kCuda, 0), MemoryChoice(kCuda, 1)},
                                   MemorySides{MemorySource::kMapped, MemoryChoice(kCuda, 1)}}) {
    const auto rates = MeasureDeviceCopy(sides, 4096, 64);
    ASSERT_TRUE(rates.ok()) << rates.status();
    EXPECT_GT(rates->whole, 0);
    EXPECT_GT(rates->scattered, 0);
  }
  // Too little memory for the copy: the measurement goes on without it.
  cuda::StandIn().kvxfer_standin_fail("cuMemAlloc_v2", 2, cuda::api::CUDA_ERROR_OUT_OF_MEMORY);
  const auto full = MeasureDeviceCopy({kCuda, kCuda}, 4096, 64);
  ASSERT_TRUE(full.ok()) << full.status();
  EXPECT_EQ(full->whole, 0);
  cuda::StandIn().kvxfer_standin_fail("cuStreamCreateWithPriority", 1,
                                      cuda::api::CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_THAT(std::string(MeasureDeviceCopy({kCuda, kCuda}, 4096, 64).status().message()),
              HasSubstr("the device's own copy: cuStreamCreateWithPriority"));
  cuda::StandIn().kvxfer_standin_fail_none();
  // Without pinned memory there is no copy kernel, which is no error of the peer.
  cuda::StandIn().kvxfer_standin_fail("cuMemHostRegister_v2", 0,
                                      cuda::api::CUDA_ERROR_OPERATING_SYSTEM);
  const absl::Status unpinned = MeasureDeviceCopy({kCuda, kCuda}, 4096, 64).status();
  EXPECT_FALSE(unpinned.ok());
  EXPECT_FALSE(absl::IsUnavailable(unpinned)) << unpinned;
  cuda::StandIn().kvxfer_standin_fail_none();
}

}  // namespace
}  // namespace kvxfer::cli
