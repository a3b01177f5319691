// Ids in GPU memory: the GPU reads them, and copies no block that is beyond its region.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "src/cuda/copier.h"
#include "src/cuda/copy_kernel.h"
#include "src/cuda/kernels.cuh"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"
#include "tests/unit/cuda/test_util.h"

namespace kvxfer::cuda {
namespace {

using kvxfer::testing::Eventually;
using kvxfer::testing::Fails;
using kvxfer::testing::kAmple;

constexpr uint32_t kBlocks = 8;
constexpr uint64_t kBytes = 4096;

class CudaCopierIds : public ::testing::Test {
 protected:
  void SetUp() override {
    StandIn();
    if (CopyKernelImage().empty()) {
      GTEST_SKIP() << "built without nvcc: there is no CUDA kernel to run";
    }
    auto copier = Copier::Create(&TheDriver(), 0);
    ASSERT_OK(copier);
    copier_ = *std::move(copier);
    for (uint64_t i = 0; i < kBlocks * kBytes; ++i) from_.alias()[i] = std::byte(i / kBytes + 1);
    std::memset(to_.alias(), 0, (kBlocks + 1) * kBytes);
  }
  void SetIds(const std::vector<uint32_t>& to, const std::vector<uint32_t>& from) {
    std::ranges::copy(std::as_bytes(std::span(to)), ids_.alias());
    std::ranges::copy(std::as_bytes(std::span(from)), ids_.alias() + 1024);
  }
  // `count` blocks by the ids in GPU memory.
  PagedCopy Blocks(uint32_t count) const {
    const auto ids = [&](uint64_t offset) {
      return reinterpret_cast<const uint32_t*>(ids_.at() + offset);
    };
    return {.to = {to_.at(), kBytes, ids(0), kBlocks - 1, true},
            .from = {from_.at(), kBytes, ids(1024), kBlocks - 1, true},
            .count = count,
            .bytes = kBytes};
  }
  absl::Status Copy(const std::vector<PagedCopy>& paged) {
    auto batch = copier_->Start({.paged = paged});
    if (!batch.ok()) return batch.status();
    std::optional<Copier::End> end;
    EXPECT_TRUE(Eventually(kAmple, [&] { return (end = copier_->Poll()).has_value(); }));
    return end->status;
  }
  // The first byte of each block of the target.
  std::vector<int> Seen() const {
    std::vector<int> seen;
    for (uint32_t i = 0; i <= kBlocks; ++i) {
      seen.push_back(std::to_integer<int>(to_.alias()[i * kBytes + kBytes - 1]));
    }
    return seen;
  }

  const GpuMemory from_{kBlocks * kBytes};
  const GpuMemory to_{(kBlocks + 1) * kBytes};
  const GpuMemory ids_{2048};
  std::unique_ptr<Copier> copier_;
};

// The stand-in runs the source; a GPU runs what is in here.
TEST(CudaKernelImage, HasTheKernelThatIsLookedFor) {
  const std::span<const std::byte> image = CopyKernelImage();
  if (image.empty()) GTEST_SKIP() << "built without nvcc";
  const std::string_view bytes(reinterpret_cast<const char*>(image.data()), image.size());
  EXPECT_NE(bytes.find(kCopyKernel), std::string_view::npos);
}

TEST_F(CudaCopierIds, AreReadByTheGpu) {
  SetIds({7, 0, 3}, {1, 2, 0});
  EXPECT_OK(Copy({Blocks(3)}));
  EXPECT_EQ(Seen(), (std::vector<int>{3, 0, 0, 1, 0, 0, 0, 2, 0}));
}

TEST_F(CudaCopierIds, OneSideMayHaveThemOnTheHost) {
  SetIds({7, 0, 3}, {});
  const std::vector<uint32_t> from{5, 6, 7};
  PagedCopy copy = Blocks(3);
  copy.from = {from_.at(), kBytes, from.data()};
  EXPECT_OK(Copy({copy}));
  EXPECT_EQ(Seen(), (std::vector<int>{7, 0, 0, 8, 0, 0, 0, 6, 0}));
}

// Neither side is left, not even by one; the other blocks are copied, and the next batch is well.
TEST_F(CudaCopierIds, ABlockBeyondItsRegionIsNotTouched) {
  SetIds({kBlocks, 0, UINT32_MAX, 4}, {0, 1, 2, kBlocks});
  EXPECT_TRUE(Fails(Copy({Blocks(4)}), absl::StatusCode::kInvalidArgument, {"id in GPU memory"}));
  EXPECT_EQ(Seen(), (std::vector<int>{2, 0, 0, 0, 0, 0, 0, 0, 0}));
  SetIds({1}, {7});
  EXPECT_OK(Copy({Blocks(1)}));
  EXPECT_EQ(Seen()[1], 8);
}

TEST_F(CudaCopierIds, EachBatchIsToldOfItsOwn) {
  SetIds({0, 1}, {0, kBlocks});
  const std::vector<PagedCopy> good{Blocks(1)};
  const std::vector<PagedCopy> bad{Blocks(2)};
  const std::vector<uint32_t> id{2};
  PagedCopy host{.to = {.base = to_.at(), .stride = kBytes, .ids = id.data()},
                 .from = {.base = from_.at(), .stride = kBytes, .ids = id.data()},
                 .count = 1,
                 .bytes = kBytes};
  ASSERT_OK(copier_->Start({.paged = bad}));
  ASSERT_OK(copier_->Start({.paged = good}));
  ASSERT_OK(copier_->Start({.paged = {&host, 1}}));
  std::vector<absl::StatusCode> ends;
  EXPECT_TRUE(Eventually(kAmple, [&] {
    while (const auto end = copier_->Poll()) ends.push_back(end->status.code());
    return ends.size() == 3;
  }));
  EXPECT_EQ(ends, (std::vector{absl::StatusCode::kInvalidArgument, absl::StatusCode::kOk,
                               absl::StatusCode::kOk}));
}

// Only the kernel reads them.
TEST_F(CudaCopierIds, WithoutTheKernelTheyAreRefused) {
  StandIn().kvxfer_standin_fail("cuModuleLoadData", 1, api::CUDA_ERROR_NO_BINARY_FOR_GPU);
  auto slow = Copier::Create(&TheDriver(), 0);
  StandIn().kvxfer_standin_fail_none();
  ASSERT_OK(slow);
  const std::vector<PagedCopy> copies{Blocks(1)};
  EXPECT_TRUE(Fails((*slow)->Start({.paged = copies}), absl::StatusCode::kUnimplemented,
                    {"need the copy kernel", "bring them to the host"}));
  EXPECT_TRUE((*slow)->idle());
}

}  // namespace
}  // namespace kvxfer::cuda
