#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "kvxfer/memory.h"
#include "src/transport/host/shared_mapping.h"
#include "tests/support/child_process.h"
#include "tests/support/scale.h"

namespace kvxfer {
namespace {

bool Exhausted(size_t bytes) {
  return HostBuffer::Allocate(bytes).status().code() == absl::StatusCode::kResourceExhausted;
}

TEST(HostBufferTest, IsZeroedPageAlignedAndShared) {
  for (const size_t bytes : {size_t{1}, size_t{4096}, size_t{4097}, size_t{5} << 20}) {
    auto buffer = HostBuffer::Allocate(bytes);
    ASSERT_TRUE(buffer.ok()) << buffer.status();
    EXPECT_EQ(buffer->size(), bytes);
    EXPECT_EQ(
        reinterpret_cast<uintptr_t>(buffer->data()) % static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)),
        0u);
    EXPECT_EQ(std::count(buffer->data(), buffer->data() + bytes, std::byte{0}),
              static_cast<ptrdiff_t>(bytes));
    const MemorySpan span = buffer->span();
    EXPECT_EQ(span.data, buffer->data());
    EXPECT_EQ(span.bytes, bytes);
    // Expect that another mapping of the descriptor is the same memory.
    auto* other =
        static_cast<std::byte*>(mmap(nullptr, bytes, PROT_READ, MAP_SHARED, span.shared_fd, 0));
    ASSERT_NE(static_cast<void*>(other), MAP_FAILED);
    buffer->data()[bytes - 1] = std::byte{42};
    EXPECT_EQ(other[bytes - 1], std::byte{42});
    munmap(other, bytes);
  }
}

TEST(HostBufferTest, CannotBeResizedAndIsNotInherited) {
  const auto buffer = HostBuffer::Allocate(8192);
  ASSERT_TRUE(buffer.ok());
  const int fd = buffer->span().shared_fd;
  EXPECT_EQ(ftruncate(fd, 4096), -1);
  EXPECT_EQ(ftruncate(fd, 16384), -1);
  EXPECT_NE(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_EQ(fcntl(fd, F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
}

TEST(HostBufferTest, HasItsPagesFromTheStart) {
  constexpr size_t kBytes = size_t{8} << 20;
  const auto buffer = HostBuffer::Allocate(kBytes);
  ASSERT_TRUE(buffer.ok());
  struct stat info {};
  ASSERT_EQ(fstat(buffer->span().shared_fd, &info), 0);
  EXPECT_GE(static_cast<size_t>(info.st_blocks) * 512, kBytes);
}

// KiB that /proc/self/smaps counts under `label` for the mapping that begins at `data`.
uint64_t SmapsKib(const void* data, const std::string& label) {
  std::ostringstream begin;
  begin << std::hex << reinterpret_cast<uintptr_t>(data) << "-";
  std::ifstream smaps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(smaps, line);) {
    if (line.find('-') < line.find(' ')) inside = line.starts_with(begin.str());
    if (inside && line.starts_with(label)) return std::stoull(line.substr(label.size()));
  }
  return 0;
}

// What the kernel does here with the call that HostBuffer counts on.
bool KernelGathers() {
  constexpr size_t kHuge = size_t{2} << 20;
  void* space =
      mmap(nullptr, 2 * kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (space == MAP_FAILED) return false;
  const int fd = memfd_create("try", MFD_CLOEXEC);
  auto* at = static_cast<std::byte*>(space) + (0 - reinterpret_cast<uintptr_t>(space)) % kHuge;
  bool can = fd >= 0 && ftruncate(fd, kHuge) == 0 &&
             mmap(at, kHuge, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED;
  if (can) *at = std::byte{1};
  can = can && madvise(at, kHuge, 25 /* MADV_COLLAPSE */) == 0;
  munmap(space, 2 * kHuge);
  close(fd);
  return can;
}

TEST(HostBufferTest, HugePagesAreAskedForAndUsedOnBothSides) {
  constexpr size_t kBytes = (size_t{8} << 20) + 5000;
  const auto buffer = HostBuffer::Allocate(kBytes);
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  EXPECT_EQ(std::count(buffer->data(), buffer->data() + kBytes, std::byte{0}),
            static_cast<ptrdiff_t>(kBytes));
  if (HugePageBytes() != size_t{2} << 20 || !KernelGathers()) {
    GTEST_SKIP() << "this kernel gathers no huge pages of 2 MiB for shared memory";
  }
  EXPECT_EQ(SmapsKib(buffer->data(), "ShmemPmdMapped:"), 8192u);
  // Expect that a mapping of a part that begins at an odd page has them too.
  constexpr size_t kOffset = 12288;
  void* other = MapShared(buffer->span().shared_fd, kOffset, kBytes - kOffset, PROT_READ);
  ASSERT_NE(other, MAP_FAILED);
  ASSERT_EQ(madvise(other, kBytes - kOffset, 22 /* MADV_POPULATE_READ */), 0);
  EXPECT_EQ(SmapsKib(other, "ShmemPmdMapped:"), 6144u);
  buffer->data()[kOffset + 77] = std::byte{9};
  EXPECT_EQ(static_cast<std::byte*>(other)[77], std::byte{9});
  munmap(other, kBytes - kOffset);
}

// Calls of the kernel by a clock of the test's own; no memory is touched.
class FakeKernel {
 public:
  static constexpr size_t kHuge = size_t{2} << 20;

  explicit FakeKernel(Duration collapse) : collapse_(collapse) {}
  void Gather(size_t bytes) {
    const auto advise = [this](std::byte* data, size_t length, int advice) {
      if (advice == MADV_NOHUGEPAGE) {
        small_from_ = static_cast<size_t>(data - begin());
        small_bytes_ = length;
      }
      if (advice != 25 /* MADV_COLLAPSE */) return 0;
      ++collapsed_;
      now_ += collapse_;
      return 0;
    };
    GatherHugePages(
        begin(), bytes,
        {.huge_bytes = kHuge, .advise = advise, .now = [this]() -> Time { return now_; }});
  }

  Duration took() const { return now_ - Time{}; }
  size_t collapsed() const { return collapsed_; }
  size_t small_from() const { return small_from_; }
  size_t small_bytes() const { return small_bytes_; }

 private:
  static std::byte* begin() { return reinterpret_cast<std::byte*>(100 * kHuge); }

  const Duration collapse_;
  Time now_{};
  size_t collapsed_ = 0;
  size_t small_from_ = 0;
  size_t small_bytes_ = 0;
};

// A busy machine once took 18.6 s for these.
TEST(HostBufferTest, HugePagesAreAskedForWithinATime) {
  constexpr size_t kBytes = size_t{256} << 20;
  constexpr Duration kCollapse = std::chrono::milliseconds(145);
  FakeKernel kernel(kCollapse);
  kernel.Gather(kBytes);
  EXPECT_LE(kernel.took(), GatherWithin(kBytes) + kCollapse);
  EXPECT_LE(kernel.took(), std::chrono::milliseconds(600));
  // Expect small pages from there on.
  EXPECT_EQ(kernel.small_from(), kernel.collapsed() * FakeKernel::kHuge);
  EXPECT_EQ(kernel.small_from() + kernel.small_bytes(), kBytes);
}

TEST(HostBufferTest, HugePagesThatComeInTimeAreAllTaken) {
  for (const size_t bytes : {FakeKernel::kHuge, size_t{256} << 20, size_t{64} << 30}) {
    FakeKernel kernel(std::chrono::microseconds(1600));
    kernel.Gather(bytes);
    EXPECT_EQ(kernel.collapsed(), bytes / FakeKernel::kHuge);
    EXPECT_EQ(kernel.small_bytes(), 0u);
  }
}

TEST(HostBufferTest, SmallPagesAreLeftSmall) {
  const auto buffer = HostBuffer::Allocate(size_t{4} << 20, HostPages::kSmall);
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  std::string word;
  std::ifstream("/sys/kernel/mm/transparent_hugepage/shmem_enabled") >> word;
  if (word.starts_with("[")) GTEST_SKIP() << "shmem_enabled makes all shared memory huge";
  EXPECT_EQ(SmapsKib(buffer->data(), "ShmemPmdMapped:"), 0u);
}

TEST(HostBufferTest, ReservedPagesAreTakenOrSaidToBeMissing) {
  // More than any machine has set aside.
  const auto none = HostBuffer::Allocate(size_t{1} << 45, HostPages::kReserved);
  EXPECT_EQ(none.status().code(), absl::StatusCode::kResourceExhausted);
  const auto buffer = HostBuffer::Allocate(1, HostPages::kReserved);
  if (!buffer.ok()) {
    EXPECT_EQ(buffer.status().code(), absl::StatusCode::kResourceExhausted) << buffer.status();
    EXPECT_NE(buffer.status().ToString().find("vm.nr_hugepages"), std::string::npos);
    return;
  }
  EXPECT_EQ(buffer->size(), 1u);
  buffer->data()[4096] = std::byte{1};  // the whole page is there
}

TEST(HostBufferTest, MovesAndClosesOnce) {
  const int next = dup(0);
  close(next);
  {
    auto made = HostBuffer::Allocate(4096);
    ASSERT_TRUE(made.ok());
    HostBuffer a = *std::move(made);
    a.data()[7] = std::byte{9};
    HostBuffer b = std::move(a);
    EXPECT_EQ(a.data(), nullptr);  // NOLINT(bugprone-use-after-move): the state after is promised
    EXPECT_EQ(a.span().shared_fd, -1);
    EXPECT_EQ(b.data()[7], std::byte{9});
    const int replaced = b.span().shared_fd;
    b = *HostBuffer::Allocate(4096);
    EXPECT_EQ(fcntl(replaced, F_GETFD), -1);  // what it held is gone at once
  }
  const int again = dup(0);
  EXPECT_EQ(again, next);
  close(again);
}

TEST(HostBufferTest, WantOfMemoryIsAStatusAndNoSignal) {
  EXPECT_EQ(HostBuffer::Allocate(0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Exhausted(std::numeric_limits<size_t>::max()));
  EXPECT_TRUE(Exhausted(size_t{1} << 62));
  EXPECT_TRUE(Exhausted(size_t{1} << 46));  // 64 TiB: fits the address space, not the machine
}

// Arguments: the resource, and how much of it there is.
KVXFER_CHILD(AllocatesWithALimit) {
  const rlim_t limit = std::stoul(arguments[1]);
  const rlimit set{limit, limit};
  // The heap may be full to the last byte here, and the error's text needs some: it keeps this.
  std::vector<char>(64 * 1024).clear();
  CHILD_EXPECT(setrlimit(static_cast<__rlimit_resource>(std::stoi(arguments[0])), &set) == 0);
  // A leak checker would want descriptors at the end.
  _exit(Exhausted(size_t{1} << 20) ? 0 : 1);
}

TEST(HostBufferTest, LimitsOfTheProcessAreAStatus) {
  const auto limited = [](int resource, rlim_t limit) {
    return testing::RunChild("AllocatesWithALimit",
                             {std::to_string(resource), std::to_string(limit)}, testing::kAmple);
  };
  EXPECT_EQ(limited(RLIMIT_NOFILE, 3), 0);
  EXPECT_EQ(limited(RLIMIT_FSIZE, 4096), 0);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_EQ(limited(RLIMIT_AS, 1 << 20), 0);
#endif
}

}  // namespace
}  // namespace kvxfer
