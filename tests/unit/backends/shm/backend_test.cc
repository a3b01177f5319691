// What a connection of the shm backend carries, with both sides in one process, driven by one
// thread: data, fences, messages, and the end of it all.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <random>

#include "kvxfer/memory.h"
#include "tests/unit/backends/shm/pair_util.h"
#include "tests/unit/backends/shm/test_util.h"

namespace kvxfer::shm_test {
namespace {

class ShmBackendTest : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Ways, ShmBackendTest, ::testing::Values(true, false),
                         [](const auto& way) { return way.param ? "mapped" : "attached"; });

TEST_P(ShmBackendTest, EverySizeIsWrittenAndReadWhole) {
  for (const size_t bytes :
       {size_t{1}, size_t{7}, size_t{4095}, size_t{4096}, size_t{65537}, kMiB, 64 * kMiB + 3}) {
    ImportedPair pair(GetParam(), bytes);
    ASSERT_NE(pair.key, nullptr);
    EXPECT_EQ(pair.there.key.substr(0, 6), GetParam() ? "mapped" : "attach");
    const Piece run = pair.Whole();
    Fill(pair.local.data(), bytes, bytes);
    ASSERT_TRUE(pair.Do(OpKind::kWrite, {&run, 1}).ok()) << bytes;
    EXPECT_EQ(FirstWrong(pair.remote.data(), bytes, bytes), bytes);
    Fill(pair.remote.data(), bytes, bytes + 99);
    ASSERT_TRUE(pair.Do(OpKind::kRead, {&run, 1}).ok()) << bytes;
    EXPECT_EQ(FirstWrong(pair.local.data(), bytes, bytes + 99), bytes);
  }
}

TEST_P(ShmBackendTest, ManyScatteredBlocksOfOddSizes) {
  constexpr size_t kBlocks = 100'000;
  constexpr size_t kStride = 304;
  ImportedPair pair(GetParam(), kBlocks * kStride);
  ASSERT_NE(pair.key, nullptr);
  std::vector<uint32_t> order(kBlocks);
  std::iota(order.begin(), order.end(), 0u);
  std::mt19937 random(5);
  std::shuffle(order.begin(), order.end(), random);
  Fill(pair.local.data(), pair.local.span.bytes, 1);
  std::vector<Piece> runs(kBlocks, pair.Whole());
  for (size_t i = 0; i < kBlocks; ++i) {
    runs[i].local += i * kStride;
    runs[i].remote += order[i] * kStride;
    runs[i].bytes = i % 301;
  }
  ASSERT_TRUE(pair.Do(OpKind::kWrite, runs).ok());
  size_t wrong = 0;
  for (size_t i = 0; i < kBlocks; ++i) {
    const std::byte* block = pair.remote.data() + order[i] * kStride;
    wrong += std::memcmp(block, pair.local.data() + i * kStride, i % 301) != 0;
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
  const Piece good = RunBetween(here, there.remote, 4096, write_key->get());
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
  ImportedPair pair(GetParam(), kMiB);
  ASSERT_NE(pair.key, nullptr);
  Fill(pair.local.data(), kMiB, 4);
  const RunBlocks all({pair.Whole()});
  std::vector<Op> ops;
  for (uint64_t i = 1; i <= 200; ++i) {
    ops.push_back({.kind = OpKind::kWrite, .id = i, .transfer = 1 + i % 2, .blocks = all.range()});
  }
  const size_t accepted = PostAll(pair.initiator, pair.out, ops);
  EXPECT_GT(accepted, 1u);
  EXPECT_LT(accepted, 200u);
  // Expect that Post copied nothing of a large op, and that the backend asks to be polled.
  EXPECT_EQ(std::count(pair.remote.data(), pair.remote.data() + kMiB, std::byte{0}), kMiB);
  EXPECT_FALSE(pair.initiator.backend->Arm());
  pair.initiator.Poll();
  const auto before = pair.initiator.completions;
  EXPECT_LT(before.size(), accepted);
  pair.out->Fence({.transfer = 2});
  ASSERT_TRUE(Drive({&pair.initiator}, [&] { return !pair.initiator.fenced.empty(); }));
  EXPECT_EQ(pair.initiator.fenced, std::vector<uint64_t>{2});
  ASSERT_TRUE(
      Drive({&pair.initiator}, [&] { return pair.initiator.completions.size() == accepted; }));
  for (const auto& [id, status] : pair.initiator.completions) {
    const bool fenced = id % 2 == 1 && !before.contains(id);
    EXPECT_EQ(status.code(), fenced ? absl::StatusCode::kCancelled : absl::StatusCode::kOk);
  }
  pair.in->Fence({.transfer = 2});
  ASSERT_TRUE(Drive({&pair.target}, [&] { return !pair.target.fenced.empty(); }));
  EXPECT_TRUE(pair.initiator.backend->Arm());
}

TEST_P(ShmBackendTest, ASmallOpIsDoneInPostUnlessOneWaits) {
  ImportedPair pair(GetParam(), kMiB);
  ASSERT_NE(pair.key, nullptr);
  Fill(pair.local.data(), kMiB, 4);
  Piece head = pair.Whole();
  head.bytes = kInlineCopyBytes;
  const RunBlocks small({head});
  const RunBlocks all({pair.Whole()});
  Op op{.kind = OpKind::kWrite, .id = 1, .transfer = 1, .blocks = small.range()};
  EXPECT_TRUE(pair.out->Post(op).done());
  EXPECT_EQ(FirstWrong(pair.remote.data(), kInlineCopyBytes, 4), kInlineCopyBytes);
  EXPECT_TRUE(pair.initiator.backend->Arm());
  const Op large{.kind = OpKind::kWrite, .id = 2, .transfer = 1, .blocks = all.range()};
  const Posted queued = pair.out->Post(large);
  EXPECT_TRUE(queued && !queued.done());
  op.id = 3;
  const Posted behind = pair.out->Post(op);
  EXPECT_TRUE(behind && !behind.done());
  // A run without a registration: refused by an event.
  const RunBlocks nowhere({{.local = head.local, .remote = head.remote, .bytes = 8}});
  const Posted refused = pair.out->Post({.id = 4, .transfer = 1, .blocks = nowhere.range()});
  EXPECT_TRUE(refused && !refused.done());
  ASSERT_TRUE(Drive({&pair.initiator}, [&] { return pair.initiator.completions.size() == 3; }));
  EXPECT_TRUE(pair.initiator.completions.at(2).ok());
  EXPECT_TRUE(pair.initiator.completions.at(3).ok());
  EXPECT_FALSE(pair.initiator.completions.at(4).ok());
}

// Small ones go in one batch, where the memory is attached.
TEST_P(ShmBackendTest, QueuedOpsFollowEachOther) {
  ImportedPair pair(GetParam(), kMiB);
  ASSERT_NE(pair.key, nullptr);
  Fill(pair.local.data(), kMiB, 4);
  Piece head = pair.Whole();
  Piece tail = head;
  head.bytes = 300'001;
  tail.local += head.bytes;
  tail.remote += head.bytes;
  tail.bytes -= head.bytes;
  const RunBlocks first({head});
  const RunBlocks last({tail});
  const std::array<Op, 3> ops = {
      Op{.kind = OpKind::kWrite, .id = 1, .transfer = 1, .blocks = first.range()},
      Op{.kind = OpKind::kWrite, .id = 2, .transfer = 2},
      Op{.kind = OpKind::kWrite, .id = 3, .transfer = 3, .blocks = last.range()}};
  ASSERT_EQ(PostAll(pair.initiator, pair.out, ops), ops.size());
  ASSERT_TRUE(Drive({&pair.initiator}, [&] { return pair.initiator.completions.size() == 3; }));
  for (const auto& [id, status] : pair.initiator.completions) EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(FirstWrong(pair.remote.data(), kMiB, 4), kMiB);
}

TEST_P(ShmBackendTest, NothingIsStoredAfterFenced) {
  ImportedPair pair(GetParam(), kMiB);
  ASSERT_NE(pair.key, nullptr);
  Fill(pair.local.data(), kMiB, 4);
  const RunBlocks all({pair.Whole()});
  std::vector<Op> ops;
  for (uint64_t i = 1; i <= 4; ++i) {
    ops.push_back({.kind = OpKind::kWrite, .id = i, .transfer = 9, .blocks = all.range()});
  }
  ASSERT_EQ(PostAll(pair.initiator, pair.out, ops), 4u);
  pair.initiator.Poll();  // some of it
  ASSERT_LT(std::count(pair.remote.data(), pair.remote.data() + kMiB, std::byte{0}), kMiB);
  ASSERT_LT(pair.initiator.completions.size(), 4u);
  pair.out->Fence({.transfer = 9});
  std::memset(pair.remote.data(), 0x55, kMiB);
  ASSERT_TRUE(Drive({&pair.initiator}, [&] { return pair.initiator.fenced.size() == 1; }));
  EXPECT_EQ(pair.initiator.completions.at(4).code(), absl::StatusCode::kCancelled);
  for (int i = 0; i < 10; ++i) pair.initiator.Poll();
  EXPECT_EQ(std::count(pair.remote.data(), pair.remote.data() + kMiB, std::byte{0x55}), kMiB);
}

TEST_P(ShmBackendTest, ARegionRegisteredLateIsThereWhenItsKeyIs) {
  Connected pair;
  for (int i = 0; i < 300; ++i) {
    const Memory remote(GetParam(), 4096);
    auto there = pair.target.RegisterWithoutTurn(remote.span);
    // Neither side has polled since, but a message that may have brought the key was sent.
    ASSERT_TRUE(Send(pair.in, "metadata"));
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
    const size_t before = OpenFiles();
    {
      ImportedPair pair(GetParam(), kMiB);
      ASSERT_NE(pair.key, nullptr);
      const RunBlocks all({pair.Whole()});
      const Op op{.kind = OpKind::kWrite, .id = 1, .transfer = 9, .blocks = all.range()};
      ASSERT_TRUE(pair.out->Post(op));
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
      EXPECT_FALSE(pair.out->Post(op));
      EXPECT_FALSE(Send(pair.out, "late"));
      EXPECT_EQ(pair.initiator.after_down + pair.target.after_down, 0u);
    }
    EXPECT_EQ(OpenFiles(), before);
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

// Who is answered first may go on first: no connection is always before another.
TEST(ShmMessages, EachConnectionIsReadFirstInItsTurn) {
  Connected pair;
  Side other;
  auto dialled =
      other.backend->Connect(pair.target.backend->Describe().address, ReadHostIdentity());
  ASSERT_TRUE(dialled.ok()) << dialled.status();
  ASSERT_TRUE(Drive({&other, &pair.target},
                    [&] { return other.connected == 1 && pair.target.endpoints.size() == 2; }));
  pair.target.endpoints.back()->Authorize();
  ASSERT_TRUE(Send(pair.target.endpoints.back().get(), "hello"));
  ASSERT_TRUE(Drive({&other, &pair.target}, [&] { return other.messages.size() == 1; }));
  std::map<std::string, int> first;
  for (int round = 0; round < 10; ++round) {
    pair.target.messages.clear();
    ASSERT_TRUE(Send(pair.out, "one"));
    ASSERT_TRUE(Send(dialled->get(), "other"));
    ASSERT_TRUE(Drive({&pair.target}, [&] { return pair.target.messages.size() == 2; }));
    ++first[pair.target.messages.front()];
  }
  EXPECT_GE(first["one"], 3);
  EXPECT_GE(first["other"], 3);
}

TEST(ShmMessages, MemfdsAndMessagesKeepTheirOrderWhenTheSocketIsFull) {
  Connected pair;
  const Memory again(true, 4096);
  // Each time a memfd goes out and is forgotten: more than any socket holds.
  for (int i = 0; i < 5000; ++i) auto dropped = pair.target.Register(again.span);
  const Memory late(true, 4096);
  auto there = pair.target.Register(late.span);
  {
    const Memory gone(true, 4096);
    auto dropped = pair.target.Register(gone.span);
  }
  // Not in the socket yet: the Status says so, and a Poll of both sides brings it.
  EXPECT_EQ(pair.out->Import(there.remote, there.key).status().code(),
            absl::StatusCode::kUnavailable);
  // A message that names it must not come before it, though it needs no room in the socket.
  ASSERT_TRUE(Send(pair.in, "late"));
  ASSERT_TRUE(
      Drive({&pair.initiator, &pair.target}, [&] { return !pair.initiator.messages.empty(); }));
  EXPECT_TRUE(pair.out->Import(there.remote, there.key).ok());
  EXPECT_TRUE(pair.initiator.down.empty());
}

}  // namespace
}  // namespace kvxfer::shm_test
