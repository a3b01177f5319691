// Scattered copies by a GPU: what they move, when they end, and what happens when they cannot. Over
// the kernel, where this was built with one, and over copies of the driver.
#include "src/cuda/copier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "src/cuda/copy_kernel.h"
#include "src/cuda/copy_units.h"
#include "src/cuda/pinned.h"
#include "tests/support/child_process.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"
#include "tests/unit/cuda/test_util.h"

namespace kvxfer::cuda {
namespace {

using namespace api;  // NOLINT(google-build-using-namespace): the driver's own names
using absl::StatusCode;
using kvxfer::testing::Eventually;
using kvxfer::testing::Fails;
using kvxfer::testing::kAmple;
using kvxfer::testing::kSlow;
using kvxfer::testing::RunChild;
using kvxfer::testing::Scaled;
using kvxfer::testing::TestSeed;
using ::testing::HasSubstr;

// The next end; fails the test where there is none in time.
Copier::End Next(Copier& copier) {
  std::optional<Copier::End> end;
  EXPECT_TRUE(Eventually(kAmple, [&] { return (end = copier.Poll()).has_value(); }));
  return end.value_or(Copier::End{.batch = 0, .status = absl::UnknownError("no end came")});
}

void Fill(std::byte* data, size_t bytes, std::mt19937_64& random) {
  for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(random());
}

// The parameter: without a kernel.
class CudaCopierTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    hooks_ = &StandIn();
    if (!GetParam() && CopyKernelImage().empty()) {
      GTEST_SKIP() << "built without nvcc: there is no CUDA kernel to run";
    }
    copier_ = Make();
    ASSERT_NE(copier_, nullptr);
  }
  void TearDown() override {
    StandIn().kvxfer_standin_pause(0);
    StandIn().kvxfer_standin_fail_none();
  }

  std::unique_ptr<Copier> Make(int device = 0) {
    if (GetParam()) {
      hooks_->kvxfer_standin_fail("cuModuleLoadData", 1, CUDA_ERROR_NO_BINARY_FOR_GPU);
    }
    auto copier = Copier::Create(&TheDriver(), device);
    hooks_->kvxfer_standin_fail_none();
    EXPECT_OK(copier);
    return copier.ok() ? *std::move(copier) : nullptr;
  }
  // The driver's call that moves bytes.
  const char* call() const { return GetParam() ? "cuMemcpyAsync" : "cuLaunchKernel"; }

  const cuda_driver::Hooks* hooks_ = nullptr;
  std::unique_ptr<Copier> copier_;
};
INSTANTIATE_TEST_SUITE_P(By, CudaCopierTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Driver" : "Kernel"; });

TEST_P(CudaCopierTest, SaysHowItCopies) {
  if (GetParam()) {
    EXPECT_THAT(copier_->Describe(), HasSubstr("driver copies, a call each (cuModuleLoadData: "
                                               "CUDA_ERROR_NO_BINARY_FOR_GPU"));
  } else {
    EXPECT_EQ(copier_->Describe(), "copy kernel, 2 streams");
  }
  EXPECT_THAT(copier_->Describe(), HasSubstr("2 streams"));
}

// On few multiprocessors one batch follows the other.
TEST_P(CudaCopierTest, OccupiesAsManyMultiprocessorsAsItMay) {
  if (GetParam()) return;  // the driver's copies use none
  ASSERT_OK_AND_ASSIGN(const auto copier, Copier::Create(&TheDriver(), 0, 2));
  EXPECT_EQ(copier->Describe(), "copy kernel on 2 SMs, 1 stream");
  const GpuMemory memory(1 << 20);
  std::memset(memory.alias() + (1 << 19), 7, 1 << 19);
  const Piece piece{.to = memory.at(), .from = memory.at() + (1 << 19), .bytes = 1 << 19};
  ASSERT_OK(copier->Start({.pieces = {&piece, 1}}));
  ASSERT_OK(copier->Start({.pieces = {&piece, 1}}));
  EXPECT_OK(Next(*copier).status);
  EXPECT_OK(Next(*copier).status);
  EXPECT_EQ(memory.alias()[(1 << 19) - 1], std::byte{7});
}

TEST_P(CudaCopierTest, AnEmptyBatchEndsToo) {
  EXPECT_TRUE(copier_->idle());
  EXPECT_FALSE(copier_->Poll().has_value());
  const GpuMemory memory(64);
  ASSERT_OK_AND_ASSIGN(const uint64_t first, copier_->Start({}));
  const Piece none{.to = memory.at(), .from = memory.at(), .bytes = 0};
  ASSERT_OK_AND_ASSIGN(const uint64_t second, copier_->Start({.pieces = {&none, 1}}));
  EXPECT_FALSE(copier_->idle());
  EXPECT_GT(second, first);
  for (const uint64_t batch : {first, second}) {
    const Copier::End end = Next(*copier_);
    EXPECT_EQ(end.batch, batch);
    EXPECT_OK(end.status);
  }
  EXPECT_TRUE(copier_->idle());
}

// Random pieces between memory of this GPU, of a peer, and of the host.
TEST_P(CudaCopierTest, MovesThePiecesAndNothingElse) {
  std::mt19937_64 random(TestSeed());
  constexpr size_t kBytes = 400000;
  ASSERT_OK(TheDriver().EnablePeerAccess(0, 1));
  const GpuMemory own(kBytes, 0);
  const GpuMemory target(kBytes, 0);
  const GpuMemory peer(kBytes, 1);
  ASSERT_OK_AND_ASSIGN(HostBuffer host, HostBuffer::Allocate(kBytes));
  ASSERT_OK_AND_ASSIGN(const Pinned pinned, Pinned::Pin(&TheDriver(), 0, host.data(), host.size()));
  struct Place {
    uint64_t at;
    std::byte* seen;
  };
  const Place places[] = {{own.at(), own.alias()},
                          {target.at(), target.alias()},
                          {peer.at(), peer.alias()},
                          {reinterpret_cast<uint64_t>(host.data()), host.data()}};
  const auto below = [&](uint64_t end) { return random() % end; };
  for (int round = 0; round < Scaled(40); ++round) {
    const size_t a = below(4);
    const size_t b = (a + 1 + below(3)) % 4;
    const Place& from = places[a];
    const Place& to = places[b];
    Fill(from.seen, kBytes, random);
    Fill(to.seen, kBytes, random);
    std::vector<std::byte> wanted(to.seen, to.seen + kBytes);
    std::vector<Piece> pieces;
    uint64_t offset_to = below(40);
    uint64_t offset_from = below(40);
    const uint64_t longest = round % 2 == 0 ? 700 : 40000;
    while (true) {
      const uint64_t bytes = below(3) == 0 ? below(longest) : 16 * below(longest / 16);
      const uint64_t count = 1 + below(2) * below(30);
      const uint64_t gap_to = below(2) * below(100);
      const uint64_t gap_from = below(2) * 16 * below(5);
      if (offset_to + count * (bytes + gap_to) > kBytes ||
          offset_from + count * (bytes + gap_from) > kBytes) {
        break;
      }
      for (uint64_t i = 0; i < count; ++i) {
        pieces.push_back({.to = to.at + offset_to, .from = from.at + offset_from, .bytes = bytes});
        std::memcpy(wanted.data() + offset_to, from.seen + offset_from, bytes);
        offset_to += bytes + gap_to;
        offset_from += bytes + gap_from;
      }
    }
    std::shuffle(pieces.begin(), pieces.end(), random);
    ASSERT_OK_AND_ASSIGN(const uint64_t batch, copier_->Start({.pieces = pieces}));
    std::fill(pieces.begin(), pieces.end(), Piece{});  // read during the call only
    const Copier::End end = Next(*copier_);
    EXPECT_EQ(end.batch, batch);
    ASSERT_OK(end.status);
    ASSERT_EQ(std::memcmp(to.seen, wanted.data(), kBytes), 0)
        << "round " << round << ", from " << a << " to " << b;
  }
}

// The most pieces of a batch: several launches, one end.
TEST_P(CudaCopierTest, TakesTheMostPiecesAndNoMore) {
  std::mt19937_64 random(TestSeed());
  constexpr size_t kMost = Copier::kMaxPieces;
  const GpuMemory from(kMost * 48);
  const GpuMemory to(kMost * 32);
  Fill(from.alias(), from.bytes(), random);
  std::vector<Piece> pieces;
  std::vector<uint32_t> order(kMost);
  for (uint32_t i = 0; i < kMost; ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), random);
  for (uint32_t i = 0; i < kMost; ++i) {
    pieces.push_back({.to = to.at() + uint64_t{i} * 32,
                      .from = from.at() + uint64_t{order[i]} * 48,
                      .bytes = 32});
  }
  const uint64_t launches = hooks_->kvxfer_standin_calls("cuLaunchKernel");
  ASSERT_OK(copier_->Start({.pieces = pieces}));
  if (!GetParam()) {
    EXPECT_LE(hooks_->kvxfer_standin_calls("cuLaunchKernel") - launches, 8U);
  }
  ASSERT_OK(Next(*copier_).status);
  const std::byte* const source = from.alias();
  const std::byte* const target = to.alias();
  for (size_t i = 0; i < kMost; ++i) {
    ASSERT_EQ(std::memcmp(target + i * 32, source + size_t{order[i]} * 48, 32), 0) << i;
  }
  pieces.push_back(pieces.front());
  EXPECT_TRUE(Fails(copier_->Start({.pieces = pieces}), StatusCode::kResourceExhausted,
                    {"32769", "32768"}));
  EXPECT_TRUE(copier_->idle());
}

TEST_P(CudaCopierTest, BatchesAreToldInTheirOrderAndBounded) {
  const GpuMemory memory(1 << 16);
  hooks_->kvxfer_standin_pause(1);
  std::vector<uint64_t> batches;
  for (size_t i = 0; i < Copier::kMaxBatches; ++i) {
    const Piece piece{.to = memory.at() + 512 * i, .from = memory.at() + 32768, .bytes = 512};
    const auto batch = copier_->Start({.pieces = {&piece, 1}});
    ASSERT_OK(batch);
    batches.push_back(*batch);
    EXPECT_FALSE(copier_->Poll().has_value());
  }
  EXPECT_TRUE(std::is_sorted(batches.begin(), batches.end()));
  const Piece piece{.to = memory.at(), .from = memory.at() + 32768, .bytes = 1};
  EXPECT_TRUE(Fails(copier_->Start({.pieces = {&piece, 1}}), StatusCode::kResourceExhausted,
                    {"under way"}));
  hooks_->kvxfer_standin_pause(0);
  for (const uint64_t batch : batches) EXPECT_EQ(Next(*copier_).batch, batch);
  EXPECT_TRUE(copier_->idle());
  EXPECT_OK(copier_->Start({.pieces = {&piece, 1}}));
  EXPECT_OK(Next(*copier_).status);
}

// Paged blocks by ids, between regions of unequal strides, as one piece and as a grid of pieces;
// some pairs share their ids, some have their own; beside a list of pieces.
TEST_P(CudaCopierTest, MovesPagedBlocksByTheirIds) {
  std::mt19937_64 random(TestSeed());
  const auto below = [&](uint64_t end) { return random() % end; };
  constexpr uint64_t kBytes = 4 << 20;
  const GpuMemory source(kBytes);
  const GpuMemory target(kBytes);
  std::byte* const seen = target.alias();
  for (int round = 0; round < Scaled(30); ++round) {
    Fill(source.alias(), kBytes, random);
    std::memset(seen, 0, kBytes);
    std::vector<std::byte> wanted(kBytes);
    std::vector<std::vector<uint32_t>> ids;
    std::vector<BlockPieces> grids(40);
    std::vector<PagedCopy> paged;
    std::vector<Piece> pieces;
    const uint64_t regions = 1 + below(2) * below(40);
    const uint64_t room = kBytes / (regions + 1);
    for (uint64_t region = 0; region < regions; ++region) {
      BlockPieces& grid = grids[region];
      // A block of 1 to 4 dims; its pieces lie apart at the source and together at the target.
      const bool whole = below(2) == 0;
      const uint64_t width = below(3) == 0 ? 1 + below(100) : 16 * (1 + below(40));
      grid = {.bytes = whole ? 1 + below(9000) : width};
      uint64_t at_source = grid.bytes + below(2) * 16;
      uint64_t at_target = grid.bytes;
      if (!whole) {
        grid.dim_count = 1 + static_cast<uint32_t>(below(BlockPieces::kMaxDims));
        for (uint32_t dim = grid.dim_count; dim-- > 0;) {
          grid.dims[dim] = {
              .count = 1 + below(4), .local_stride = at_source, .remote_stride = at_target};
          at_source *= grid.dims[dim].count;
          at_target *= grid.dims[dim].count;
        }
      }
      const uint64_t stride = std::max(at_source, at_target) + 16 * below(3);
      const uint64_t count = room / stride;
      if (count == 0) continue;
      if (ids.empty() || below(2) == 0 || ids.back().size() > count || ids.back().empty()) {
        std::vector<uint32_t> order(count);
        for (uint32_t i = 0; i < count; ++i) order[i] = i;
        std::shuffle(order.begin(), order.end(), random);
        order.resize(1 + below(count));
        ids.push_back(order);
        std::shuffle(order.begin(), order.end(), random);
        ids.push_back(order);
      }
      const std::vector<uint32_t>& to_ids = ids[ids.size() - 2];
      if (*std::max_element(to_ids.begin(), to_ids.end()) >= count) continue;
      paged.push_back({.to = {target.at() + region * room, stride, to_ids.data()},
                       .from = {source.at() + region * room, stride, ids.back().data()},
                       .count = static_cast<uint32_t>(to_ids.size()),
                       .bytes = grid.bytes,
                       .pieces = whole ? nullptr : &grid});
      std::vector<Piece> expanded;
      AddPieces(paged.back(), expanded);
      for (const Piece& piece : expanded) {
        std::memcpy(wanted.data() + (piece.to - target.at()),
                    source.alias() + (piece.from - source.at()), piece.bytes);
      }
    }
    for (uint64_t i = 0; i < below(3) * 50; ++i) {
      const uint64_t offset = regions * room + i * 40;
      pieces.push_back({.to = target.at() + offset, .from = source.at() + offset, .bytes = 24});
      std::memcpy(wanted.data() + offset, source.alias() + offset, 24);
    }
    ASSERT_OK(copier_->Start({.pieces = pieces, .paged = paged}));
    // Read during the call only.
    for (std::vector<uint32_t>& some : ids) std::fill(some.begin(), some.end(), UINT32_MAX);
    std::fill(grids.begin(), grids.end(), BlockPieces());
    ASSERT_OK(Next(*copier_).status);
    ASSERT_EQ(std::memcmp(seen, wanted.data(), kBytes), 0) << "round " << round;
  }
}

TEST_P(CudaCopierTest, TakesTheMostBlocksAndNoMore) {
  constexpr uint32_t kMost = Copier::kMaxBlocks;
  const GpuMemory from(kMost * 16);
  const GpuMemory to(kMost * 16);
  std::vector<uint32_t> ids(kMost + 1);
  for (uint32_t i = 0; i <= kMost; ++i) ids[i] = kMost - 1 - i;
  for (uint32_t i = 0; i < kMost * 16; ++i)
    from.alias()[i] = static_cast<std::byte>(i / 16 * 3 + i);
  PagedCopy copy{.to = {to.at(), 16, ids.data()},
                 .from = {from.at(), 16, ids.data()},
                 .count = kMost,
                 .bytes = 16};
  const uint64_t launches = hooks_->kvxfer_standin_calls("cuLaunchKernel");
  ASSERT_OK(copier_->Start({.paged = {&copy, 1}}));
  ASSERT_OK(copier_->Start({.paged = {&copy, 1}}));
  if (!GetParam()) {
    EXPECT_EQ(hooks_->kvxfer_standin_calls("cuLaunchKernel") - launches, 2U);
  }
  ASSERT_OK(Next(*copier_).status);
  ASSERT_OK(Next(*copier_).status);
  EXPECT_EQ(std::memcmp(from.alias(), to.alias(), kMost * 16), 0);
  ++copy.count;
  EXPECT_TRUE(Fails(copier_->Start({.paged = {&copy, 1}}), StatusCode::kResourceExhausted,
                    {"131073", "131072"}));
  copy.count = 2;
  copy.bytes = Copier::kMaxPagedBytes;
  EXPECT_TRUE(
      Fails(copier_->Start({.paged = {&copy, 1}}), StatusCode::kResourceExhausted, {"of at most"}));
  EXPECT_TRUE(copier_->idle());
}

// The end is a word of memory: looking for it costs nothing, and neither does the end.
TEST_P(CudaCopierTest, ABatchCostsTwoCallsAndLookingForItsEndNone) {
  if (GetParam()) return;  // an event tells of the driver's copies
  const GpuMemory memory(1 << 20);
  const std::vector<uint32_t> ids{3, 1, 2, 0};
  std::vector<PagedCopy> paged;
  for (uint64_t region = 0; region < kMaxParts; ++region) {
    paged.push_back({.to = {memory.at() + region * 8192, 2048, ids.data()},
                     .from = {memory.at() + (1 << 19) + region * 8192, 2048, ids.data()},
                     .count = 4,
                     .bytes = 2048});
  }
  std::atomic<int> own_calls = -1;
  std::thread([&] {
    ContextScope::OwnThread();
    EXPECT_OK(ContextScope(TheDriver(), 0).status());  // the first of the thread
    hooks_->kvxfer_standin_pause(1);
    const uint64_t before = hooks_->kvxfer_standin_calls(nullptr);
    EXPECT_OK(copier_->Start({.paged = paged}));
    for (int i = 0; i < 3; ++i) EXPECT_FALSE(copier_->Poll().has_value());
    own_calls = static_cast<int>(hooks_->kvxfer_standin_calls(nullptr) - before);
    hooks_->kvxfer_standin_pause(0);
    EXPECT_OK(Next(*copier_).status);
  }).join();
  // The context is current, the launch, the word.
  EXPECT_EQ(own_calls, 3);
}

// When to look: first shortly before the end that is predicted, then without rest, then ever less
// often.
TEST_P(CudaCopierTest, TheNextPollIsNearTheEnd) {
  EXPECT_FALSE(copier_->NextPoll().has_value());
  const GpuMemory memory(4096);
  const Piece piece{.to = memory.at(), .from = memory.at() + 2048, .bytes = 2048};
  hooks_->kvxfer_standin_pause(1);
  ASSERT_OK(copier_->Start({.pieces = {&piece, 1}}));
  ASSERT_TRUE(copier_->NextPoll().has_value());
  EXPECT_LE(*copier_->NextPoll(), Now());
  EXPECT_TRUE(Eventually(kAmple, [&] {
    EXPECT_FALSE(copier_->Poll().has_value());
    return *copier_->NextPoll() > Now() + std::chrono::microseconds(500);
  }));
  EXPECT_LE(*copier_->NextPoll(), Now() + std::chrono::milliseconds(1));
  hooks_->kvxfer_standin_pause(0);
  EXPECT_OK(Next(*copier_).status);
  EXPECT_FALSE(copier_->NextPoll().has_value());
}

// Whatever lies with whom, the list's memory goes round many times.
TEST_P(CudaCopierTest, ManyBatchesOfAllSizesUnderWay) {
  std::mt19937_64 random(TestSeed());
  constexpr size_t kCells = 40000;
  const GpuMemory from(kCells * 64);
  const GpuMemory to(kCells * 64);
  Fill(from.alias(), from.bytes(), random);
  const std::byte* const source = from.alias();
  std::byte* const received = to.alias();
  std::memset(received, 0, to.bytes());
  std::vector<uint32_t> cells(kCells);
  for (uint32_t i = 0; i < kCells; ++i) cells[i] = i;
  std::shuffle(cells.begin(), cells.end(), random);
  const int rounds = kSlow ? 2 : 8;
  for (int round = 0; round < rounds; ++round) {
    for (size_t next = 0; next < kCells;) {
      const size_t count = std::min<size_t>(kCells - next, 1 + random() % 15000);
      std::vector<Piece> pieces;
      pieces.reserve(count);
      for (size_t i = next; i < next + count; ++i) {
        const uint64_t offset = uint64_t{cells[i]} * 64;
        pieces.push_back({.to = to.at() + offset, .from = from.at() + offset, .bytes = 40});
      }
      const auto batch = copier_->Start({.pieces = pieces});
      if (batch.ok()) {
        next += count;
        continue;
      }
      ASSERT_EQ(batch.status().code(), StatusCode::kResourceExhausted);
      ASSERT_OK(Next(*copier_).status);
    }
    while (!copier_->idle()) ASSERT_OK(Next(*copier_).status);
    for (size_t i = 0; i < kCells; ++i) {
      ASSERT_EQ(std::memcmp(received + i * 64, source + i * 64, 40), 0);
      ASSERT_EQ(received[i * 64 + 40], std::byte{0});
    }
    std::memset(received, 0, to.bytes());
  }
}

TEST_P(CudaCopierTest, UsesItsOwnStreamsOnly) {
  const uint64_t before = hooks_->kvxfer_standin_default_stream_uses();
  const uint64_t pageable = hooks_->kvxfer_standin_pageable_copies();
  const GpuMemory memory(4096);
  const Piece piece{.to = memory.at(), .from = memory.at() + 2048, .bytes = 2048};
  ASSERT_OK(copier_->Start({.pieces = {&piece, 1}}));
  ASSERT_OK(Next(*copier_).status);
  copier_.reset();
  EXPECT_EQ(hooks_->kvxfer_standin_default_stream_uses(), before);
  EXPECT_EQ(hooks_->kvxfer_standin_pageable_copies(), pageable);
}

TEST_P(CudaCopierTest, LeavesNothingBehindAndWaitsForWhatRuns) {
  copier_.reset();
  cuda_driver::LiveObjects before;
  hooks_->kvxfer_standin_live(&before);
  for (int i = 0; i < 3; ++i) {
    const GpuMemory memory(1 << 20);
    std::memset(memory.alias(), 0, 1 << 19);
    std::memset(memory.alias() + (1 << 19), 5, 1 << 19);
    auto copier = Make();
    // Two that are under way at once have no place in common.
    constexpr uint64_t kHalf = 1 << 18;
    const Piece first{.to = memory.at(), .from = memory.at() + 2 * kHalf, .bytes = kHalf};
    const Piece second{.to = memory.at() + kHalf, .from = memory.at() + 3 * kHalf, .bytes = kHalf};
    ASSERT_OK(copier->Start({.pieces = {&first, 1}}));
    ASSERT_OK(copier->Start({.pieces = {&second, 1}}));
    if (i == 0) {
      ASSERT_OK(Next(*copier).status);
    }
    copier.reset();
    EXPECT_EQ(memory.alias()[(1 << 19) - 1], std::byte{5});
  }
  cuda_driver::LiveObjects after;
  hooks_->kvxfer_standin_live(&after);
  EXPECT_EQ(before, after);
}

// Nothing moved, nothing stays: the next one works.
TEST_P(CudaCopierTest, ABatchThatTheDriverRefusesMovesNothing) {
  const GpuMemory memory(4096);
  std::byte* const seen = memory.alias();
  std::memset(seen, 0, 4096);
  std::memset(seen + 2048, 9, 2048);
  const Piece piece{.to = memory.at(), .from = memory.at() + 2048, .bytes = 2048};
  LeaveContexts();  // so that a scope makes one current
  for (const char* const failing : {call(), "cuCtxPushCurrent_v2"}) {
    const auto fresh = Make();
    hooks_->kvxfer_standin_fail(failing, 1, CUDA_ERROR_INVALID_VALUE);
    EXPECT_FALSE(fresh->Start({.pieces = {&piece, 1}}).ok()) << failing;
    hooks_->kvxfer_standin_fail_none();
    EXPECT_TRUE(fresh->idle());
    EXPECT_EQ(seen[0], std::byte{0}) << failing;
  }
  ASSERT_OK(copier_->Start({.pieces = {&piece, 1}}));
  ASSERT_OK(Next(*copier_).status);
  EXPECT_EQ(seen[0], std::byte{9});
}

TEST_P(CudaCopierTest, ABatchOfWhichSomeIsRefusedEndsWithTheError) {
  const GpuMemory memory(1 << 20);
  std::vector<Piece> pieces;
  for (uint64_t i = 0; i < 8192; ++i) {  // two launches
    pieces.push_back(
        {.to = memory.at() + i * 64, .from = memory.at() + (1 << 19) + i * 64 + 16, .bytes = 16});
  }
  hooks_->kvxfer_standin_fail(call(), 2, CUDA_ERROR_INVALID_VALUE);
  ASSERT_OK_AND_ASSIGN(const uint64_t batch, copier_->Start({.pieces = pieces}));
  const Copier::End end = Next(*copier_);
  EXPECT_EQ(end.batch, batch);
  EXPECT_TRUE(Fails(end.status, StatusCode::kInvalidArgument, {call()}));
  ASSERT_OK(copier_->Start({.pieces = pieces}));
  EXPECT_OK(Next(*copier_).status);
}

TEST_P(CudaCopierTest, WithoutAWordAnEventTellsOfTheEnd) {
  const GpuMemory memory(4096);
  const Piece piece{.to = memory.at(), .from = memory.at() + 2048, .bytes = 2048};
  hooks_->kvxfer_standin_fail("cuStreamWriteValue32_v2", 1, CUDA_ERROR_NOT_SUPPORTED);
  const uint64_t before = hooks_->kvxfer_standin_calls("cuEventQuery");
  ASSERT_OK(copier_->Start({.pieces = {&piece, 1}}));
  EXPECT_OK(Next(*copier_).status);
  EXPECT_GT(hooks_->kvxfer_standin_calls("cuEventQuery"), before);
}

TEST_P(CudaCopierTest, WithoutAnEventTheStreamTellsOfTheEnd) {
  const GpuMemory memory(4096);
  std::memset(memory.alias(), 3, 4096);
  const Piece piece{.to = memory.at(), .from = memory.at() + 2048, .bytes = 2048};
  hooks_->kvxfer_standin_pause(1);
  hooks_->kvxfer_standin_fail("cuStreamWriteValue32_v2", 1, CUDA_ERROR_NOT_SUPPORTED);
  hooks_->kvxfer_standin_fail("cuEventRecord", 1, CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_OK(copier_->Start({.pieces = {&piece, 1}}));
  EXPECT_FALSE(copier_->Poll().has_value());
  hooks_->kvxfer_standin_pause(0);
  EXPECT_OK(Next(*copier_).status);
}

// An error of a mere question passes; what is told of has ended all the same.
TEST_P(CudaCopierTest, AQuestionThatFailsOnceEndsOneBatch) {
  const GpuMemory memory(4096);
  std::byte* const seen = memory.alias();
  std::memset(seen, 0, 2048);
  std::memset(seen + 2048, 8, 2048);
  const Piece one{.to = memory.at(), .from = memory.at() + 2048, .bytes = 1024};
  const Piece other{.to = memory.at() + 1024, .from = memory.at() + 3072, .bytes = 1024};
  hooks_->kvxfer_standin_fail("cuStreamWriteValue32_v2", 1, CUDA_ERROR_NOT_SUPPORTED);
  ASSERT_OK_AND_ASSIGN(const uint64_t first, copier_->Start({.pieces = {&one, 1}}));
  ASSERT_OK_AND_ASSIGN(const uint64_t second, copier_->Start({.pieces = {&other, 1}}));
  hooks_->kvxfer_standin_fail("cuEventQuery", 1, CUDA_ERROR_UNKNOWN);
  const Copier::End failed = Next(*copier_);
  EXPECT_EQ(failed.batch, first);
  EXPECT_TRUE(Fails(failed.status, StatusCode::kInternal, {"a copy of the GPU"}));
  EXPECT_EQ(seen[1023], std::byte{8});
  const Copier::End fine = Next(*copier_);
  EXPECT_EQ(fine.batch, second);
  EXPECT_OK(fine.status);
}

// A ruined context, in a child: it stays so.
int Ruin(bool by_driver) {
  if (by_driver) StandIn().kvxfer_standin_fail("cuModuleLoadData", 1, CUDA_ERROR_NO_BINARY_FOR_GPU);
  auto copier = Copier::Create(&TheDriver(), 0);
  CHILD_EXPECT(copier.ok());
  const GpuMemory memory(4096);
  const Piece piece{.to = memory.at(), .from = memory.at() + 2048, .bytes = 2048};
  StandIn().kvxfer_standin_pause(1);
  CHILD_EXPECT((*copier)->Start({.pieces = {&piece, 1}}).ok());
  CHILD_EXPECT((*copier)->Start({.pieces = {&piece, 1}}).ok());
  StandIn().kvxfer_standin_fail_async(1, CUDA_ERROR_ILLEGAL_ADDRESS);
  StandIn().kvxfer_standin_pause(0);
  for (uint64_t batch = 1; batch <= 2; ++batch) {
    const Copier::End end = Next(**copier);
    // The first may have been through before the second ruined it.
    CHILD_EXPECT(end.batch == batch);
    CHILD_EXPECT(batch == 1 || end.status.code() == StatusCode::kInternal);
  }
  CHILD_EXPECT((*copier)->idle());
  const auto refused = (*copier)->Start({.pieces = {&piece, 1}});
  CHILD_EXPECT(refused.status().code() == StatusCode::kInternal);
  CHILD_EXPECT(refused.status().message().find("restart the process") != std::string::npos);
  copier->reset();  // waits for nothing
  return 0;
}
KVXFER_CHILD(CudaRuinedByKernel) { return Ruin(false); }
KVXFER_CHILD(CudaRuinedByDriver) { return Ruin(true); }

TEST_P(CudaCopierTest, ARuinedContextEndsEveryBatch) {
  EXPECT_EQ(RunChild(GetParam() ? "CudaRuinedByDriver" : "CudaRuinedByKernel", {}, kAmple), 0);
}

// Each call fails once, at each of its first uses: an error or an end, and then all is well.
TEST_P(CudaCopierTest, EachCallThatFailsIsAnAnswer) {
  const GpuMemory memory(4096);
  std::byte* const seen = memory.alias();
  const Piece piece{.to = memory.at(), .from = memory.at() + 2048, .bytes = 2048};
  copier_.reset();
  for (const char* const failing : cuda_driver::kCalls) {
    for (int nth = 1; nth <= 3; ++nth) {
      std::memset(seen, 0, 2048);
      std::memset(seen + 2048, 6, 2048);
      if (GetParam()) {
        hooks_->kvxfer_standin_fail("cuModuleLoadData", 1, CUDA_ERROR_NO_BINARY_FOR_GPU);
      }
      hooks_->kvxfer_standin_fail(failing, nth, CUDA_ERROR_UNKNOWN);
      auto copier = Copier::Create(&TheDriver(), 0);
      if (!copier.ok()) {
        EXPECT_TRUE(Fails(copier, StatusCode::kUnavailable, {"GPU 0 cannot be used to copy"}));
      } else if (const auto batch = (*copier)->Start({.pieces = {&piece, 1}}); batch.ok()) {
        const Copier::End end = Next(**copier);
        EXPECT_EQ(end.batch, *batch);
        if (end.status.ok()) {
          EXPECT_EQ(seen[2047], std::byte{6}) << failing;
        }
      }
      hooks_->kvxfer_standin_fail_none();
    }
  }
  copier_ = Make();
  ASSERT_OK(copier_->Start({.pieces = {&piece, 1}}));
  EXPECT_OK(Next(*copier_).status);
}

TEST(CudaCopierCreateTest, ADeviceThatIsNotThereIsRefused) {
  StandIn();
  EXPECT_TRUE(Fails(Copier::Create(&TheDriver(), 2), StatusCode::kInvalidArgument, {"sees 2"}));
}

}  // namespace
}  // namespace kvxfer::cuda
