#include "src/transport/host/stream_copy.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/scale.h"

namespace kvxfer {
namespace {

constexpr unsigned char kGuard = 0xA5;

// Copies `bytes` between odd places and returns whether exactly those bytes have changed.
bool CopiesExactly(internal::StreamCopyFn copy, size_t to_at, size_t from_at, size_t bytes,
                   uint32_t seed) {
  constexpr size_t kMargin = 128;
  std::vector<unsigned char> from(from_at + bytes + kMargin);
  std::mt19937 random(seed);
  for (auto& byte : from) byte = static_cast<unsigned char>(random());
  std::vector<unsigned char> to(to_at + bytes + kMargin, kGuard);
  copy(to.data() + to_at, from.data() + from_at, bytes);
  StoreBarrier();
  std::vector<unsigned char> expected(to.size(), kGuard);
  std::copy_n(from.begin() + static_cast<ptrdiff_t>(from_at), bytes,
              expected.begin() + static_cast<ptrdiff_t>(to_at));
  return to == expected;
}

TEST(StreamCopyTest, EveryVariantCopiesExactlyWhatItIsTold) {
  for (const auto* variant = internal::StreamCopyVariants(); variant->name != nullptr; ++variant) {
    for (size_t bytes = 0; bytes < 600; ++bytes) {
      ASSERT_TRUE(CopiesExactly(variant->copy, bytes % 67, bytes % 61, bytes, 1))
          << variant->name << " " << bytes;
    }
    for (size_t to = 0; to < 64; ++to) {
      for (size_t from = 0; from < 64; from += 7) {
        ASSERT_TRUE(CopiesExactly(variant->copy, to, from, 4096 + to, 2)) << variant->name;
      }
    }
    EXPECT_TRUE(CopiesExactly(variant->copy, 3, 5, (size_t{1} << 20) + 3, 3)) << variant->name;
  }
}

// Memory whose neighbours cannot be touched, before and behind.
class GuardedPages {
 public:
  explicit GuardedPages(size_t pages) : page_(static_cast<size_t>(sysconf(_SC_PAGESIZE))) {
    bytes_ = pages * page_;
    space_ = static_cast<unsigned char*>(
        mmap(nullptr, bytes_ + 2 * page_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_NE(static_cast<void*>(space_), MAP_FAILED);
    EXPECT_EQ(mprotect(begin(), bytes_, PROT_READ | PROT_WRITE), 0);
  }
  ~GuardedPages() { munmap(space_, bytes_ + 2 * page_); }
  GuardedPages(const GuardedPages&) = delete;
  GuardedPages& operator=(const GuardedPages&) = delete;

  unsigned char* begin() const { return space_ + page_; }
  unsigned char* end() const { return begin() + bytes_; }
  size_t bytes() const { return bytes_; }

 private:
  const size_t page_;
  size_t bytes_ = 0;
  unsigned char* space_ = nullptr;
};

TEST(StreamCopyTest, NoVariantTouchesWhatLiesBeyondEitherEnd) {
  const GuardedPages from(1);
  const GuardedPages to(1);
  for (size_t i = 0; i < from.bytes(); ++i) from.begin()[i] = static_cast<unsigned char>(i * 7);
  for (const auto* variant = internal::StreamCopyVariants(); variant->name != nullptr; ++variant) {
    for (size_t bytes = 1; bytes <= 300; ++bytes) {
      variant->copy(to.begin(), from.end() - bytes, bytes);
      EXPECT_EQ(std::memcmp(to.begin(), from.end() - bytes, bytes), 0) << variant->name << bytes;
      variant->copy(to.end() - bytes, from.begin(), bytes);
      EXPECT_EQ(std::memcmp(to.end() - bytes, from.begin(), bytes), 0) << variant->name << bytes;
    }
  }
}

// The front door looks ahead: pages behind the last may not be there, and the hint may be anything.
TEST(StreamCopyTest, LooksAheadWithoutTouching) {
  const GuardedPages from(5);
  const GuardedPages to(5);
  for (size_t i = 0; i < from.bytes(); ++i) from.begin()[i] = static_cast<unsigned char>(i * 7);
  const auto* const nowhere = reinterpret_cast<const std::byte*>(from.end());
  for (const size_t bytes : {size_t{1}, kStreamCopyMin, size_t{4095}, size_t{4096}, size_t{4097},
                             size_t{8191}, size_t{12289}, from.bytes() - 77, from.bytes()}) {
    for (size_t odd = 0; odd + bytes <= from.bytes() && odd < 70; odd += 23) {
      unsigned char* const target = to.end() - bytes - odd;
      std::fill(to.begin(), to.end(), kGuard);
      StreamCopy(target, from.end() - bytes, bytes, std::span(nowhere, size_t{1} << 40));
      StoreBarrier();
      ASSERT_EQ(std::memcmp(target, from.end() - bytes, bytes), 0) << bytes << " " << odd;
      ASSERT_EQ(std::count(target + bytes, to.end(), kGuard), static_cast<ptrdiff_t>(odd));
      ASSERT_EQ(std::count(to.begin(), target, kGuard), target - to.begin());
    }
  }
}

TEST(StreamCopyTest, TheFrontDoorAroundItsThreshold) {
  const auto front = [](void* to, const void* from, size_t n) { StreamCopy(to, from, n); };
  for (const size_t bytes : {size_t{0}, size_t{1}, kStreamCopyMin - 1, kStreamCopyMin,
                             kStreamCopyMin + 1, 64 * kStreamCopyMin}) {
    EXPECT_TRUE(CopiesExactly(front, 1, 0, bytes, 4)) << bytes;
  }
  StreamCopy(nullptr, nullptr, 0);
  EXPECT_EQ(std::string(StreamCopyName()), internal::StreamCopyVariants()->name);
}

TEST(StreamCopyTest, AReaderThatSeesTheFlagSeesTheBytes) {
  constexpr size_t kBytes = 64 * 1024;
  std::vector<uint64_t> from(kBytes / 8);
  std::vector<uint64_t> to(kBytes / 8);
  std::atomic<uint64_t> published{0};
  std::atomic<uint64_t> seen{0};
  std::atomic<uint64_t> stale{0};
  std::thread reader([&] {
    for (uint64_t round = 1; round <= 500; ++round) {
      while (published.load(std::memory_order_acquire) != round) testing::Pause();
      for (uint64_t word : to) stale += word != round ? 1u : 0u;
      seen.store(round, std::memory_order_release);
    }
  });
  for (uint64_t round = 1; round <= 500; ++round) {
    std::fill(from.begin(), from.end(), round);
    StreamCopy(to.data(), from.data(), kBytes);
    StoreBarrier();
    published.store(round, std::memory_order_release);
    while (seen.load(std::memory_order_acquire) != round) testing::Pause();
  }
  reader.join();
  EXPECT_EQ(stale.load(), 0u);
}

}  // namespace
}  // namespace kvxfer
