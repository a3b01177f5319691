#include "src/core/stream_copy.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

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
  StreamFence();
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

TEST(StreamCopyTest, TheFrontDoorAroundItsThreshold) {
  for (const size_t bytes : {size_t{0}, size_t{1}, kStreamCopyMin - 1, kStreamCopyMin,
                             kStreamCopyMin + 1, 64 * kStreamCopyMin}) {
    EXPECT_TRUE(CopiesExactly(StreamCopy, 1, 0, bytes, 4)) << bytes;
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
      while (published.load(std::memory_order_acquire) != round) std::this_thread::yield();
      for (uint64_t word : to) stale += word != round ? 1u : 0u;
      seen.store(round, std::memory_order_release);
    }
  });
  for (uint64_t round = 1; round <= 500; ++round) {
    std::fill(from.begin(), from.end(), round);
    StreamCopy(to.data(), from.data(), kBytes);
    StreamFence();
    published.store(round, std::memory_order_release);
    while (seen.load(std::memory_order_acquire) != round) std::this_thread::yield();
  }
  reader.join();
  EXPECT_EQ(stale.load(), 0u);
}

}  // namespace
}  // namespace kvxfer
