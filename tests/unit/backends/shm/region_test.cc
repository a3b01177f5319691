// The regions of the shm backend, with both sides in one process: how they are registered, imported
// and reached.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/unit/backends/shm/pair_util.h"
#include "tests/unit/backends/shm/test_util.h"

namespace kvxfer::shm_test {
namespace {

TEST(ShmRegister, RegionsOfOneMemfdShareOneDescriptor) {
  Connected pair;
  const Memory buffer(true, 64 * 4096);
  const size_t before = OpenFiles();
  std::vector<Side::Region> regions;
  for (size_t i = 0; i < 64; ++i) {
    MemorySpan part = buffer.span;
    part.data = buffer.data() + i * 4096 + 8;
    part.shared_offset = i * 4096 + 8;
    part.bytes = 100;
    regions.push_back(pair.target.Register(part));
  }
  const Memory local(false, 4096);
  auto here = pair.initiator.Register(local.span);
  Fill(local.data(), 4096, 6);
  auto key = pair.out->Import(regions[5].remote, regions[5].key);
  ASSERT_TRUE(key.ok()) << key.status();
  EXPECT_LE(OpenFiles(), before + 2);  // one at either side
  const Piece run = RunBetween(here, regions[5].remote, 100, key->get());
  ASSERT_TRUE(pair.Do(OpKind::kWrite, {&run, 1}).ok());
  EXPECT_EQ(FirstWrong(buffer.data() + 5 * 4096 + 8, 100, 6), 100u);
  EXPECT_EQ(buffer.data()[5 * 4096 + 7], std::byte{0});
  EXPECT_EQ(buffer.data()[5 * 4096 + 108], std::byte{0});
  regions.clear();
  key->reset();
  for (int i = 0; i < 10; ++i) pair.initiator.Poll();
  EXPECT_EQ(OpenFiles(), before);
}

TEST(ShmRegister, AnUnsealedMemfdIsAttachedInstead) {
  Connected pair;
  const int fd = memfd_create("unsealed", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(fd, 4096), 0);
  void* data = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ASSERT_NE(data, MAP_FAILED);
  auto region = pair.target.Register({.data = data, .bytes = 4096, .shared_fd = fd});
  EXPECT_EQ(region.key, "attached");
  region.registration.reset();
  munmap(data, 4096);
  close(fd);
  const LocalRegion null{
      .rkey = 1, .span = {.data = nullptr, .bytes = 1}, .access = Access::kReadWrite};
  EXPECT_EQ(pair.target.backend->Register(null).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// Expect that a target that sleeps sends the memfd of a region that another thread registers.
TEST(ShmRegister, AnyThreadWakesTheDriver) {
  Connected pair;
  ASSERT_TRUE(Drive({&pair.target}, [&] { return pair.target.backend->Arm(); }));
  pollfd wait{.fd = pair.target.backend->Describe().wait_fd, .events = POLLIN, .revents = 0};
  while (poll(&wait, 1, 0) > 0) pair.target.Poll();
  ASSERT_TRUE(pair.target.backend->Arm());
  const Memory remote(true, 4096);
  Side::Region there;
  std::thread other([&] { there = pair.target.RegisterWithoutTurn(remote.span); });
  EXPECT_EQ(poll(&wait, 1, 30'000), 1);
  other.join();
  EXPECT_FALSE(pair.target.backend->Arm());
  pair.target.Poll();
  EXPECT_TRUE(pair.target.backend->Arm());
  EXPECT_TRUE(pair.out->Import(there.remote, there.key).ok());
}

// Expect that each region of several threads can be imported once it is registered, and that
// nothing of them stays, while the driver goes on.
TEST(ShmRegister, ManyThreadsBesideTheDriver) {
  Connected pair;
  constexpr size_t kThreads = 4;
  constexpr size_t kEach = 32;
  const size_t before = OpenFiles();
  {
    const Memory common(true, 4096);
    std::vector<Memory> own;
    for (size_t i = 0; i < kThreads * kEach; ++i) own.emplace_back(i % 2 == 0, 4096);
    std::vector<Side::Region> regions(2 * kThreads * kEach);
    std::atomic<size_t> done = 0;
    std::vector<std::jthread> threads;
    for (size_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (size_t i = t * kEach; i < (t + 1) * kEach; ++i) {
          regions[2 * i] = pair.target.RegisterWithoutTurn(own[i].span);
          regions[2 * i + 1] = pair.target.RegisterWithoutTurn(common.span);
        }
        ++done;
      });
    }
    size_t sent = 0;
    ASSERT_TRUE(Drive({&pair.initiator, &pair.target}, [&] {
      if (done < kThreads && Send(pair.in, "meanwhile")) ++sent;
      return done == kThreads && pair.initiator.messages.size() == sent;
    }));
    threads.clear();
    pair.target.Poll();
    for (const Side::Region& region : regions) {
      EXPECT_TRUE(pair.out->Import(region.remote, region.key).ok()) << region.key;
    }
  }
  ASSERT_TRUE(Drive({&pair.initiator, &pair.target}, [&] { return OpenFiles() <= before; }));
}

TEST(ShmImport, AKeyThatReachesBeyondItsMemfdIsRefused) {
  Connected pair;
  const Memory buffer(true, 8192);
  auto region = pair.target.Register(buffer.span);
  RemoteRegion larger = region.remote;
  larger.bytes = 8193;
  EXPECT_EQ(pair.out->Import(larger, region.key).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(pair.out->Import(region.remote, "mapped:1:18446744073709551615").status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(pair.out->Import(region.remote, "mapped:77:0").status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(pair.out->Import(region.remote, "mapped:x").status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(pair.in->Import(region.remote, region.key).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(ShmAttach, UnmappedMemoryFailsTheOpAndNamesAddressAndRegion) {
  Connected pair;
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  auto* data = static_cast<std::byte*>(
      mmap(nullptr, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  const Memory local(true, 4 * page);
  auto here = pair.initiator.Register(local.span);
  auto there = pair.target.Register({.data = data, .bytes = 4 * page});
  auto key = pair.out->Import(there.remote, there.key);
  ASSERT_TRUE(key.ok()) << key.status();
  Fill(local.data(), 4 * page, 2);
  munmap(data + 2 * page, 2 * page);
  const Piece run = RunBetween(here, there.remote, 4 * page, key->get());
  const absl::Status status = pair.Do(OpKind::kWrite, {&run, 1});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find(
                absl::StrCat("remote address 0x", absl::Hex(AddressOf(data + 2 * page)))),
            absl::string_view::npos)
      << status;
  EXPECT_NE(status.message().find("region 1"), absl::string_view::npos) << status;
  EXPECT_EQ(FirstWrong(data, 2 * page, 2), 2 * page);  // the short count was resumed, then failed
  EXPECT_TRUE(pair.initiator.down.empty());
  munmap(data, 2 * page);
}

}  // namespace
}  // namespace kvxfer::shm_test
