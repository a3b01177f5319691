#include "src/backends/shm/attach_threads.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

namespace kvxfer::shm {
namespace {

constexpr uint64_t kBlock = 8192;
constexpr uint64_t kBlocks =
    512;  // 4 MiB: shares for three threads, and more than one slice for one

uint64_t AddressOf(const void* p) { return reinterpret_cast<uint64_t>(p); }

// This process writes into its own memory, which attach allows.
class AttachThreadsTest : public ::testing::Test {
 protected:
  AttachThreadsTest() : from_(kBlocks * kBlock) {
    to_ = static_cast<std::byte*>(
        mmap(nullptr, from_.size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    std::mt19937_64 random(testing::TestSeed());
    std::generate(from_.begin(), from_.end(), [&] { return static_cast<std::byte>(random()); });
    places_.resize(kBlocks);
    std::iota(places_.begin(), places_.end(), uint64_t{0});
    std::shuffle(places_.begin(), places_.end(), random);
  }
  ~AttachThreadsTest() override { munmap(to_, from_.size()); }

  // Offers all bytes from `done` on, block by block, and moves what was taken.
  absl::StatusOr<size_t> MoveOnce(AttachThreads& threads, uint64_t done) {
    threads.Begin(from_.size() - done);
    for (uint64_t at = done; at < from_.size();) {
      const uint64_t within = at % kBlock;
      const uint64_t taken =
          threads.Add(AddressOf(from_.data() + at),
                      AddressOf(to_ + places_[at / kBlock] * kBlock + within), kBlock - within);
      if (taken == 0) break;
      at += taken;
    }
    return threads.Move(OpKind::kWrite, static_cast<uint32_t>(getpid()));
  }

  bool Arrived(uint64_t block) const {
    return std::memcmp(from_.data() + block * kBlock, to_ + places_[block] * kBlock, kBlock) == 0;
  }

  std::vector<std::byte> from_;
  std::byte* to_ = nullptr;
  std::vector<uint64_t> places_;
};

TEST_F(AttachThreadsTest, AllBytesComeToTheirPlacesWhateverTheNumberOfThreads) {
  for (const uint32_t count : {1u, 2u, 3u, 8u}) {
    std::memset(to_, 0, from_.size());
    AttachThreads threads(count);
    uint64_t done = 0;
    int moves = 0;
    while (done < from_.size()) {
      ASSERT_OK_AND_ASSIGN(const size_t moved, MoveOnce(threads, done));
      ASSERT_GT(moved, 0u);
      done += moved;
      ++moves;
    }
    EXPECT_EQ(done, from_.size());
    EXPECT_EQ(moves, count == 1 ? 2 : 1) << count << " threads";
    for (uint64_t block = 0; block < kBlocks; ++block) ASSERT_TRUE(Arrived(block)) << block;
  }
}

TEST_F(AttachThreadsTest, AHoleEndsWhatIsToldWhereverTheSharesLie) {
  for (const uint64_t hole :
       {uint64_t{0}, uint64_t{1}, kBlocks / 2 - 1, kBlocks / 2, kBlocks - 1}) {
    std::byte* const page = to_ + places_[hole] * kBlock;
    ASSERT_EQ(mprotect(page, kBlock, PROT_NONE), 0);
    AttachThreads threads(2);
    uint64_t done = 0;
    absl::StatusOr<size_t> moved = MoveOnce(threads, done);
    while (moved.ok()) {
      done += *moved;
      ASSERT_LE(done, hole * kBlock);
      moved = MoveOnce(threads, done);
    }
    EXPECT_EQ(done, hole * kBlock);
    EXPECT_TRUE(absl::IsFailedPrecondition(moved.status())) << moved.status();
    ASSERT_EQ(mprotect(page, kBlock, PROT_READ | PROT_WRITE), 0);
    for (uint64_t block = 0; block < hole; ++block) ASSERT_TRUE(Arrived(block)) << block;
  }
}

}  // namespace
}  // namespace kvxfer::shm
