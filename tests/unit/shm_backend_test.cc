// The shm backend with both sides in one process, driven by one thread.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/un.h>

#include <numeric>
#include <random>

#include "kvxfer/memory.h"
#include "src/backends/shm/wire.h"
#include "tests/unit/shm_test_util.h"

namespace kvxfer::shm_test {
namespace {

constexpr size_t kMiB = 1024 * 1024;

uint64_t AddressOf(const void* p) { return reinterpret_cast<uintptr_t>(p); }

struct Connected {
  Side initiator;
  Side target;
  Endpoint* out = nullptr;
  Endpoint* in = nullptr;

  explicit Connected(bool authorise = true) {
    auto endpoint = initiator.backend->Connect(target.backend->Address(), ReadHostIdentity());
    EXPECT_TRUE(endpoint.ok()) << endpoint.status();
    initiator.endpoints.push_back(*std::move(endpoint));
    out = initiator.endpoints.front().get();
    EXPECT_TRUE(Drive({&initiator, &target},
                      [this] { return initiator.connected == 1 && target.endpoints.size() == 1; }));
    in = target.endpoints.front().get();
    if (authorise) {
      in->Authorize();
      EXPECT_TRUE(Send(in, "hello"));
      EXPECT_TRUE(Drive({&initiator, &target}, [this] { return initiator.messages.size() == 1; }));
      initiator.messages.clear();
    }
  }
  absl::Status Do(OpKind kind, std::span<const Piece> runs, uint64_t transfer = 1) {
    return Move({&initiator, &target}, initiator, out, kind, runs, transfer);
  }
};

// Memory of one way to reach it.
struct Memory {
  HostBuffer shared;
  std::vector<std::byte> plain;
  MemorySpan span;

  Memory(bool mapped, size_t bytes) {
    if (mapped) {
      shared = *HostBuffer::Allocate(bytes);
      span = shared.span();
    } else {
      plain.resize(bytes);
      span = {.data = plain.data(), .bytes = bytes};
    }
  }
  std::byte* data() const { return static_cast<std::byte*>(span.data); }
};

class ShmBackendTest : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Ways, ShmBackendTest, testing::Values(true, false),
                         [](const auto& way) { return way.param ? "mapped" : "attached"; });

TEST_P(ShmBackendTest, EverySizeIsWrittenAndReadWhole) {
  for (const size_t bytes :
       {size_t{1}, size_t{7}, size_t{4095}, size_t{4096}, size_t{65537}, kMiB, 64 * kMiB + 3}) {
    Connected pair;
    const Memory local(true, bytes);
    const Memory remote(GetParam(), bytes);
    auto here = pair.initiator.Register(local.span);
    auto there = pair.target.Register(remote.span);
    EXPECT_EQ(there.key.substr(0, 6), GetParam() ? "mapped" : "attach");
    auto key = pair.out->Import(there.remote, there.key);
    ASSERT_TRUE(key.ok()) << key.status();
    const std::vector<Piece> runs{{.local = AddressOf(local.data()),
                                   .remote = there.remote.base,
                                   .bytes = bytes,
                                   .registration = here.registration.get(),
                                   .key = key->get()}};
    Fill(local.data(), bytes, bytes);
    ASSERT_TRUE(pair.Do(OpKind::kWrite, runs).ok()) << bytes;
    EXPECT_EQ(FirstWrong(remote.data(), bytes, bytes), bytes);
    Fill(remote.data(), bytes, bytes + 99);
    ASSERT_TRUE(pair.Do(OpKind::kRead, runs).ok()) << bytes;
    EXPECT_EQ(FirstWrong(local.data(), bytes, bytes + 99), bytes);
  }
}

TEST_P(ShmBackendTest, ManyScatteredBlocksOfOddSizes) {
  constexpr size_t kBlocks = 100'000;
  constexpr size_t kStride = 304;
  Connected pair;
  const Memory local(true, kBlocks * kStride);
  const Memory remote(GetParam(), kBlocks * kStride);
  auto here = pair.initiator.Register(local.span);
  auto there = pair.target.Register(remote.span);
  auto key = pair.out->Import(there.remote, there.key);
  ASSERT_TRUE(key.ok()) << key.status();
  std::vector<uint32_t> order(kBlocks);
  std::iota(order.begin(), order.end(), 0u);
  std::mt19937 random(5);
  std::shuffle(order.begin(), order.end(), random);
  Fill(local.data(), local.span.bytes, 1);
  std::vector<Piece> runs;
  for (size_t i = 0; i < kBlocks; ++i) {
    runs.push_back({.local = AddressOf(local.data() + i * kStride),
                    .remote = there.remote.base + order[i] * kStride,
                    .bytes = i % 301,
                    .registration = here.registration.get(),
                    .key = key->get()});
  }
  ASSERT_TRUE(pair.Do(OpKind::kWrite, runs).ok());
  size_t wrong = 0;
  for (size_t i = 0; i < kBlocks; ++i) {
    const std::byte* block = remote.data() + order[i] * kStride;
    wrong += std::memcmp(block, local.data() + i * kStride, i % 301) != 0;
    for (size_t b = i % 301; b < kStride; ++b) wrong += block[b] != std::byte{0};
  }
  EXPECT_EQ(wrong, 0u) << "blocks or bytes between them";
}

TEST_P(ShmBackendTest, BoundsAndRightsAreCheckedBeforeAByteMoves) {
  Connected pair;
  const Memory local(true, 8192);
  const Memory remote(GetParam(), 8192);
  auto here = pair.initiator.Register(local.span);
  auto there = pair.target.Register(remote.span, Access::kRemoteRead);
  auto writable = pair.target.Register(remote.span, Access::kRemoteWrite);
  auto read_key = pair.out->Import(there.remote, there.key);
  auto write_key = pair.out->Import(writable.remote, writable.key);
  ASSERT_TRUE(read_key.ok() && write_key.ok());
  Fill(local.data(), 8192, 3);
  const Piece good{.local = AddressOf(local.data()),
                   .remote = there.remote.base,
                   .bytes = 4096,
                   .registration = here.registration.get(),
                   .key = write_key->get()};
  auto end = [&](OpKind kind, uint64_t local_at, uint64_t remote_at, uint64_t bytes,
                 const RemoteKey* key) {
    Piece run = good;
    run.local += local_at;
    run.remote += remote_at;
    run.bytes = bytes;
    run.key = key;
    const std::array<Piece, 2> runs{good, run};
    return Move({&pair.initiator}, pair.initiator, pair.out, kind, runs).code();
  };
  using absl::StatusCode;
  EXPECT_EQ(end(OpKind::kWrite, 0, 4097, 4096, write_key->get()), StatusCode::kInvalidArgument);
  EXPECT_EQ(end(OpKind::kWrite, 4097, 0, 4096, write_key->get()), StatusCode::kInvalidArgument);
  EXPECT_EQ(end(OpKind::kWrite, 0, uint64_t(-1), 1, write_key->get()),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(end(OpKind::kWrite, 0, 0, 1, read_key->get()), StatusCode::kPermissionDenied);
  EXPECT_EQ(end(OpKind::kRead, 0, 0, 1, write_key->get()), StatusCode::kPermissionDenied);
  EXPECT_EQ(end(OpKind::kWrite, 0, 0, 1, nullptr), StatusCode::kInvalidArgument);
  // Expect that not even the good first run of each op was copied.
  EXPECT_EQ(std::count(remote.data(), remote.data() + 8192, std::byte{0}), 8192);
}

TEST_P(ShmBackendTest, LargeOpsAreQueuedWithBackPressureAndFenced) {
  Connected pair;
  const Memory local(true, kMiB);
  const Memory remote(GetParam(), kMiB);
  auto here = pair.initiator.Register(local.span);
  auto there = pair.target.Register(remote.span);
  auto key = pair.out->Import(there.remote, there.key);
  ASSERT_TRUE(key.ok()) << key.status();
  Fill(local.data(), kMiB, 4);
  const Piece run{.local = AddressOf(local.data()),
                  .remote = there.remote.base,
                  .bytes = kMiB,
                  .registration = here.registration.get(),
                  .key = key->get()};
  std::vector<Op> ops;
  for (uint64_t i = 1; i <= 200; ++i) {
    ops.push_back({.kind = OpKind::kWrite, .id = i, .transfer = 1 + i % 2, .runs = {&run, 1}});
  }
  const size_t accepted = pair.out->Post(ops);
  EXPECT_GT(accepted, 1u);
  EXPECT_LT(accepted, 200u);
  // Expect that Post copied nothing of a large op, and that the backend asks to be polled.
  EXPECT_EQ(std::count(remote.data(), remote.data() + kMiB, std::byte{0}), kMiB);
  EXPECT_FALSE(pair.initiator.backend->Arm());
  pair.initiator.Poll();
  pair.out->Fence(2);
  ASSERT_TRUE(Drive({&pair.initiator}, [&] { return !pair.initiator.fenced.empty(); }));
  EXPECT_EQ(pair.initiator.fenced, std::vector<uint64_t>{2});
  ASSERT_TRUE(
      Drive({&pair.initiator}, [&] { return pair.initiator.completions.size() == accepted; }));
  for (const auto& [id, status] : pair.initiator.completions) {
    EXPECT_EQ(status.code(), id % 2 == 1 ? absl::StatusCode::kCancelled : absl::StatusCode::kOk);
  }
  pair.in->Fence(2);
  ASSERT_TRUE(Drive({&pair.target}, [&] { return !pair.target.fenced.empty(); }));
  EXPECT_TRUE(pair.initiator.backend->Arm());
}

TEST_P(ShmBackendTest, NothingIsStoredAfterFenced) {
  Connected pair;
  const Memory local(true, kMiB);
  const Memory remote(GetParam(), kMiB);
  auto here = pair.initiator.Register(local.span);
  auto there = pair.target.Register(remote.span);
  auto key = pair.out->Import(there.remote, there.key);
  ASSERT_TRUE(key.ok()) << key.status();
  Fill(local.data(), kMiB, 4);
  const Piece run{.local = AddressOf(local.data()),
                  .remote = there.remote.base,
                  .bytes = kMiB,
                  .registration = here.registration.get(),
                  .key = key->get()};
  const Op op{.kind = OpKind::kWrite, .id = 1, .transfer = 9, .runs = {&run, 1}};
  ASSERT_EQ(pair.out->Post({&op, 1}), 1u);
  pair.initiator.Poll();  // one slice
  ASSERT_TRUE(pair.initiator.completions.empty());
  pair.out->Fence(9);
  std::memset(remote.data(), 0x55, kMiB);
  ASSERT_TRUE(Drive({&pair.initiator}, [&] { return pair.initiator.fenced.size() == 1; }));
  EXPECT_EQ(pair.initiator.completions.at(1).code(), absl::StatusCode::kCancelled);
  for (int i = 0; i < 10; ++i) pair.initiator.Poll();
  EXPECT_EQ(std::count(remote.data(), remote.data() + kMiB, std::byte{0x55}), kMiB);
}

TEST_P(ShmBackendTest, ARegionRegisteredLateIsThereWhenItsKeyIs) {
  Connected pair;
  for (int i = 0; i < 300; ++i) {
    const Memory remote(GetParam(), 4096);
    auto there = pair.target.Register(remote.span);
    // Neither side has polled since.
    auto key = pair.out->Import(there.remote, there.key);
    ASSERT_TRUE(key.ok()) << key.status();
  }
  EXPECT_EQ(pair.initiator.down.size(), 0u);
}

TEST_P(ShmBackendTest, BeforeAuthorizeThereIsNothingToImport) {
  Connected pair(false);
  const Memory remote(GetParam(), 4096);
  auto there = pair.target.Register(remote.span);
  EXPECT_EQ(pair.out->Import(there.remote, there.key).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_TRUE(Send(pair.out, "who I am"));
  EXPECT_TRUE(Drive({&pair.target}, [&] { return pair.target.messages.size() == 1; }));
  pair.in->Authorize();
  auto key = pair.out->Import(there.remote, there.key);
  EXPECT_TRUE(key.ok()) << key.status();
}

TEST_P(ShmBackendTest, ShutdownOfEitherSideEndsBothAndLeaksNothing) {
  for (const bool by_target : {false, true}) {
    const size_t before = OpenDescriptors();
    {
      Connected pair;
      const Memory local(true, kMiB);
      const Memory remote(GetParam(), kMiB);
      auto here = pair.initiator.Register(local.span);
      auto there = pair.target.Register(remote.span);
      auto key = pair.out->Import(there.remote, there.key);
      ASSERT_TRUE(key.ok()) << key.status();
      const Piece run{.local = AddressOf(local.data()),
                      .remote = there.remote.base,
                      .bytes = kMiB,
                      .registration = here.registration.get(),
                      .key = key->get()};
      const Op op{.kind = OpKind::kWrite, .id = 1, .transfer = 9, .runs = {&run, 1}};
      ASSERT_EQ(pair.out->Post({&op, 1}), 1u);
      (by_target ? pair.in : pair.out)->Shutdown(absl::CancelledError("enough"));
      if (by_target) {
        // Expect no kDown at the target while the initiator has not said that it has stopped.
        for (int i = 0; i < 20; ++i) pair.target.Poll();
        EXPECT_TRUE(pair.target.down.empty());
      }
      ASSERT_TRUE(Drive({&pair.initiator, &pair.target}, [&] {
        return pair.initiator.down.size() == 1 && pair.target.down.size() == 1;
      }));
      EXPECT_FALSE(pair.initiator.completions.at(1).ok());
      const absl::Status heard =
          by_target ? pair.initiator.down.at(pair.out) : pair.target.down.at(pair.in);
      EXPECT_NE(heard.message().find("enough"), absl::string_view::npos) << heard;
      EXPECT_EQ(pair.out->Post({&op, 1}), 0u);
      EXPECT_FALSE(Send(pair.out, "late"));
      EXPECT_EQ(pair.initiator.after_down + pair.target.after_down, 0u);
    }
    EXPECT_EQ(OpenDescriptors(), before);
  }
}

TEST(ShmMessages, AllSizesInOrderWithBackPressure) {
  Connected pair;
  std::vector<std::string> sent;
  for (const size_t bytes :
       {size_t{0}, size_t{1}, size_t{61440}, size_t{61441}, size_t{131072}, size_t{262144}}) {
    std::string text(bytes, '\0');
    Fill(text.data(), bytes, bytes);
    ASSERT_TRUE(Send(pair.out, text));
    ASSERT_TRUE(Drive({&pair.target, &pair.initiator},
                      [&] { return pair.target.messages.size() == sent.size() + 1; }));
    sent.push_back(text);
  }
  EXPECT_EQ(pair.target.messages, sent);
  EXPECT_FALSE(Send(pair.out, std::string(256 * 1024 + 1, 'x')));
  // Expect that a reader that does not read is no reason to block or to keep without bound.
  pair.target.messages.clear();
  size_t accepted = 0;
  while (Send(pair.out, std::string(100'000, static_cast<char>('a' + accepted % 26)))) ++accepted;
  EXPECT_GT(accepted, 4u);
  EXPECT_LT(accepted, 40u);
  ASSERT_TRUE(Drive({&pair.target, &pair.initiator},
                    [&] { return pair.target.messages.size() == accepted; }));
  for (size_t i = 0; i < accepted; ++i) {
    EXPECT_EQ(pair.target.messages[i].back(), static_cast<char>('a' + i % 26));
  }
  EXPECT_TRUE(Send(pair.out, "again"));
}

TEST(ShmMessages, MemfdsAndMessagesKeepTheirOrderWhenTheSocketIsFull) {
  Connected pair;
  while (Send(pair.in, std::string(100'000, 'x'))) {
  }
  const Memory late(true, 4096);
  auto there = pair.target.Register(late.span);
  {
    const Memory gone(true, 4096);
    auto dropped = pair.target.Register(gone.span);
  }
  // Not in the socket yet: the Status says so, and a Poll of both sides brings it.
  EXPECT_EQ(pair.out->Import(there.remote, there.key).status().code(),
            absl::StatusCode::kUnavailable);
  ASSERT_TRUE(Drive({&pair.initiator, &pair.target},
                    [&] { return pair.out->Import(there.remote, there.key).ok(); }));
  EXPECT_TRUE(pair.initiator.down.empty());
}

TEST(ShmRegister, RegionsOfOneMemfdShareOneDescriptor) {
  Connected pair;
  const Memory buffer(true, 64 * 4096);
  const size_t before = OpenDescriptors();
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
  EXPECT_LE(OpenDescriptors(), before + 2);  // one at either side
  const std::vector<Piece> runs{{.local = AddressOf(local.data()),
                                 .remote = regions[5].remote.base,
                                 .bytes = 100,
                                 .registration = here.registration.get(),
                                 .key = key->get()}};
  ASSERT_TRUE(pair.Do(OpKind::kWrite, runs).ok());
  EXPECT_EQ(FirstWrong(buffer.data() + 5 * 4096 + 8, 100, 6), 100u);
  EXPECT_EQ(buffer.data()[5 * 4096 + 7], std::byte{0});
  EXPECT_EQ(buffer.data()[5 * 4096 + 108], std::byte{0});
  regions.clear();
  key->reset();
  for (int i = 0; i < 10; ++i) pair.initiator.Poll();
  EXPECT_EQ(OpenDescriptors(), before);
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
  const LocalRegion null{.id = RegionId{1},
                         .rkey = 1,
                         .span = {.data = nullptr, .bytes = 1},
                         .access = Access::kReadWrite};
  EXPECT_EQ(pair.target.backend->Register(null).status().code(),
            absl::StatusCode::kInvalidArgument);
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
  const std::vector<Piece> runs{{.local = AddressOf(local.data()),
                                 .remote = there.remote.base,
                                 .bytes = 4 * page,
                                 .registration = here.registration.get(),
                                 .key = key->get()}};
  const absl::Status status = pair.Do(OpKind::kWrite, runs);
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

TEST(ShmConnect, NobodyThereAndForeignAddresses) {
  Side side;
  auto endpoint = side.backend->Connect("1:1:1:kvxfer-shm-nobody", ReadHostIdentity());
  ASSERT_TRUE(endpoint.ok());
  ASSERT_TRUE(Drive({&side}, [&] { return side.down.size() == 1; }));
  EXPECT_EQ(side.connected, 0u);
  EXPECT_NE(side.down.begin()->second.message().find("refused"), absl::string_view::npos);
  for (const char* bad : {"", "1", "1:", "1:0:0:x", "2:1:1:x", "1:1:1:", "1:-1:1:x", "1:1:1"}) {
    EXPECT_FALSE(side.backend->Connect(bad, ReadHostIdentity()).ok()) << bad;
  }
  EXPECT_FALSE(side.backend->Connect("1:1:1:" + std::string(200, 'x'), ReadHostIdentity()).ok());
}

TEST(ShmConnect, StrangersOnTheSocketHurtNobody) {
  Connected pair;
  const auto address = shm::DecodeAddress(pair.target.backend->Address());
  ASSERT_TRUE(address.ok());
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path + 1, address->socket.data(), address->socket.size());
  const auto length =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + address->socket.size());
  std::vector<int> strangers;
  const size_t before = OpenDescriptors();
  std::mt19937 random(3);
  for (int i = 0; i < 200; ++i) {
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    ASSERT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&name), length), 0);
    std::string noise(random() % 100, '\0');
    for (char& c : noise) c = static_cast<char>(random());
    if (i % 2 == 0) {
      ASSERT_GE(send(fd, noise.data(), noise.size(), MSG_NOSIGNAL), 0);
    }
    strangers.push_back(fd);
    pair.target.Poll();
  }
  for (int i = 0; i < 50; ++i) pair.target.Poll();
  EXPECT_EQ(pair.target.endpoints.size(), 1u);
  EXPECT_LE(OpenDescriptors(), before + 200 + 64);  // the embryos that it keeps are bounded
  EXPECT_TRUE(Send(pair.out, "still here"));
  EXPECT_TRUE(Drive({&pair.target}, [&] { return pair.target.messages.size() == 1; }));
  for (int fd : strangers) close(fd);
}

TEST(ShmConnect, OutOfDescriptorsIsAStatusAndPasses) {
  Side initiator;
  Side target;
  rlimit old{};
  getrlimit(RLIMIT_NOFILE, &old);
  const int next = dup(0);
  close(next);
  rlimit low = old;
  low.rlim_cur = static_cast<rlim_t>(next);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  auto none = initiator.backend->Connect(target.backend->Address(), ReadHostIdentity());
  const bool buffer_failed =
      HostBuffer::Allocate(4096).status().code() == absl::StatusCode::kResourceExhausted;
  setrlimit(RLIMIT_NOFILE, &old);
  EXPECT_TRUE(buffer_failed);
  ASSERT_TRUE(none.ok());
  ASSERT_TRUE(Drive({&initiator}, [&] { return initiator.down.size() == 1; }));
  EXPECT_EQ(initiator.down.begin()->second.code(), absl::StatusCode::kResourceExhausted);

  // The dialler got its socket and pidfd, the acceptor gets none: it tries again by itself.
  low.rlim_cur = static_cast<rlim_t>(next) + 2;
  auto endpoint = initiator.backend->Connect(target.backend->Address(), ReadHostIdentity());
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  for (int i = 0; i < 10; ++i) target.Poll();
  EXPECT_TRUE(target.backend->Arm());
  EXPECT_TRUE(target.endpoints.empty());
  setrlimit(RLIMIT_NOFILE, &old);
  EXPECT_TRUE(Drive({&initiator, &target}, [&] { return target.endpoints.size() == 1; }));
}

TEST(ShmCapabilities, AreWhatTheInterfaceAsksFor) {
  Side side;
  const Capabilities& c = side.backend->capabilities();
  EXPECT_EQ(c.arrival, Arrival::kCopied);
  EXPECT_FALSE(c.needs_remote_cpu);
  EXPECT_GE(c.max_message_bytes, 128u * 1024);
  EXPECT_EQ(c.max_op_runs, 1024u);
  EXPECT_EQ(side.backend->name(), "shm");
}

TEST(ShmReachable, EachObstacleIsNamed) {
  Side side;
  const std::string address = side.backend->Address();
  const HostIdentity here = ReadHostIdentity();
  EXPECT_TRUE(side.backend->Reachable(address, here).ok());
  auto why = [&](auto change) {
    HostIdentity there = here;
    change(there);
    const absl::Status status = side.backend->Reachable(address, there);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_NE(status.message().find("tcp will be taken"), absl::string_view::npos);
    return std::string(status.message().data(), status.message().size());
  };
  EXPECT_NE(why([](HostIdentity& h) { h.boot_id = "other"; }).find("another host"),
            std::string::npos);
  EXPECT_NE(why([](HostIdentity& h) { ++h.net_namespace; }).find("network namespace"),
            std::string::npos);
  EXPECT_NE(why([](HostIdentity& h) { ++h.pid_namespace; }).find("pid namespace"),
            std::string::npos);
  EXPECT_NE(why([](HostIdentity& h) { h.uid += 5; }).find("uid"), std::string::npos);
}

}  // namespace
}  // namespace kvxfer::shm_test
