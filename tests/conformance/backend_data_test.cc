// Conformance of backends: bytes, immediates and messages arrive whole, once and in their place.

#include <algorithm>
#include <array>
#include <numeric>
#include <string>

#include "tests/conformance/backend_conformance.h"

namespace kvxfer::testing {
namespace {

constexpr std::array<uint64_t, 6> kSizes = {0, 1, 7, 4095, 4096, 1 << 20};

TEST_P(BackendConformance, WritesOfEverySize) {
  ASSERT_NO_FATAL_FAILURE(Start((1 << 20) + 1));
  size_t arrived = 0;
  for (const uint64_t bytes : kSizes) {
    const Pattern pattern(bytes);
    remote_->memory.Clear();
    pattern.Fill(local_->bytes().first(bytes));
    std::vector<Op> ops;
    const uint64_t step = std::max<uint64_t>(1, std::min<uint64_t>(bytes, caps().max_op_bytes));
    for (uint64_t at = 0; at < bytes || ops.empty(); at += step) {
      // One byte further at the target: no size is aligned on both sides.
      ops.push_back(out().Make(OpKind::kWrite, 1 + bytes,
                               {RunAt(at, at + 1, std::min(step, bytes - at))}, 7));
    }
    ASSERT_TRUE(pair_->PostAll(ops));
    arrived += ops.size();
    // Expect every byte once the write has ended and arrived, and nothing beside it.
    ASSERT_TRUE(Ended());
    ASSERT_TRUE(Arrived(arrived));
    EXPECT_EQ(pattern.Mismatch(remote_->bytes().subspan(1, bytes)), kNoMismatch) << bytes;
    EXPECT_EQ(FirstNonZero(remote_->bytes().first(1)), kNoMismatch);
    EXPECT_EQ(FirstNonZero(remote_->bytes().subspan(1 + bytes)), kNoMismatch);
  }
  EXPECT_EQ(out().failed(), 0u);
  EXPECT_EQ(in().immediates.size(), immediates() ? arrived : 0);
}

TEST_P(BackendConformance, ReadsOfEverySize) {
  ASSERT_NO_FATAL_FAILURE(Start((1 << 20) + 1));
  for (const uint64_t bytes : kSizes) {
    const Pattern pattern(bytes + 100);
    local_->memory.Clear();
    pattern.Fill(remote_->bytes().subspan(1, bytes));
    std::vector<Op> ops;
    const uint64_t step = std::max<uint64_t>(1, std::min<uint64_t>(bytes, caps().max_op_bytes));
    for (uint64_t at = 0; at < bytes || ops.empty(); at += step) {
      ops.push_back(
          out().Make(OpKind::kRead, 1 + bytes, {RunAt(at, at + 1, std::min(step, bytes - at))}));
    }
    ASSERT_TRUE(pair_->PostAll(ops));
    ASSERT_TRUE(Ended());
    EXPECT_EQ(pattern.Mismatch(local_->bytes().first(bytes)), kNoMismatch) << bytes;
    EXPECT_EQ(FirstNonZero(local_->bytes().subspan(bytes)), kNoMismatch);
  }
  EXPECT_EQ(out().failed(), 0u);
  EXPECT_TRUE(in().immediates.empty());
}

TEST_P(BackendConformance, MoreThanOneOpHolds) {
  constexpr uint64_t kBytes = (4u << 20) + 3;
  ASSERT_NO_FATAL_FAILURE(Start(kBytes));
  Pattern(1).Fill(local_->bytes());
  const uint64_t step = caps().max_op_bytes;
  const uint32_t rails = out().rails();
  for (const OpKind kind : {OpKind::kWrite, OpKind::kRead}) {
    std::vector<Op> ops;
    for (uint64_t at = 0; at < kBytes; at += step) {
      const auto rail = static_cast<uint32_t>(ops.size() % rails);
      ops.push_back(
          out().Make(kind, 1, {RunAt(at, std::min(step, kBytes - at))}, std::nullopt, rail));
      ops.back().has_immediate = kind == OpKind::kWrite;
    }
    ASSERT_TRUE(pair_->PostAll(ops));
    ASSERT_TRUE(Ended());
    if (kind == OpKind::kWrite) {
      ASSERT_TRUE(Arrived(ops.size()));
      EXPECT_EQ(Pattern(1).Mismatch(remote_->bytes()), kNoMismatch);
      Pattern(2).Fill(remote_->bytes());
    }
  }
  EXPECT_EQ(Pattern(2).Mismatch(local_->bytes()), kNoMismatch);
  EXPECT_EQ(out().failed(), 0u);
}

// The most runs an op may have, in another order at the target, both ways.
TEST_P(BackendConformance, ManyRuns) {
  const uint64_t count = 4096;
  constexpr uint64_t kRun = 513;
  ASSERT_NO_FATAL_FAILURE(Start(count * kRun));
  std::vector<uint64_t> place(count);
  std::iota(place.begin(), place.end(), 0);
  std::ranges::shuffle(place, random_);
  Pattern(1).Fill(local_->bytes());
  const uint64_t runs_of_op = std::min<uint64_t>(caps().max_op_pieces, caps().max_op_bytes / kRun);
  for (const OpKind kind : {OpKind::kWrite, OpKind::kRead}) {
    std::vector<Op> ops;
    for (uint64_t i = 0; i < count;) {
      std::vector<kvxfer::Run> runs;
      for (; i < count && runs.size() < runs_of_op; ++i) {
        runs.push_back(RunAt(i * kRun, place[i] * kRun, kRun));
      }
      ops.push_back(out().Make(kind, 1, runs));
      ops.back().has_immediate = kind == OpKind::kWrite;
    }
    ASSERT_TRUE(pair_->PostAll(ops));
    ASSERT_TRUE(Ended());
    if (kind == OpKind::kRead) break;
    ASSERT_TRUE(Arrived(ops.size()));
    for (uint64_t i = 0; i < count; ++i) {
      ASSERT_EQ(Pattern(1).Mismatch(remote_->bytes().subspan(place[i] * kRun, kRun), i * kRun),
                kNoMismatch);
    }
    local_->memory.Clear();
  }
  EXPECT_EQ(Pattern(1).Mismatch(local_->bytes()), kNoMismatch);
  EXPECT_EQ(out().failed(), 0u);
}

TEST_P(BackendConformance, ImmediatesComeOnceAndAfterTheirBytes) {
  const auto count = static_cast<size_t>(Scaled(2000));
  constexpr uint64_t kMost = 4096;
  ASSERT_NO_FATAL_FAILURE(Start(count * kMost));
  Pattern(1).Fill(local_->bytes());
  std::vector<uint64_t> bytes(count);
  for (uint64_t& b : bytes) b = random_() % (kMost + 1);
  std::vector<int> seen(count);
  size_t early = 0;
  pair_->target().on_immediate = [&](TestLink&, uint32_t immediate) {
    ASSERT_LT(immediate, count);
    ++seen[immediate];
    const auto received = remote_->bytes().subspan(immediate * kMost, bytes[immediate]);
    early += Pattern(1).Mismatch(received, immediate * kMost) != kNoMismatch;
  };
  std::vector<Op> ops;
  const uint32_t rails = out().rails();
  for (size_t i = 0; i < count; ++i) {
    const auto index = static_cast<uint32_t>(i);
    ops.push_back(
        out().Make(OpKind::kWrite, 1 + i % 5, {RunAt(i * kMost, bytes[i])}, index, index % rails));
  }
  ASSERT_TRUE(pair_->PostAll(ops));
  ASSERT_TRUE(Ended());
  ASSERT_TRUE(Arrived(count));
  pair_->Idle(std::chrono::milliseconds(5));
  EXPECT_EQ(early, 0u);
  for (size_t i = 0; i < count; ++i) ASSERT_EQ(seen[i], immediates() ? 1 : 0) << i;
  for (size_t i = 0; i < count; ++i) {
    ASSERT_EQ(Pattern(1).Mismatch(remote_->bytes().subspan(i * kMost, bytes[i]), i * kMost),
              kNoMismatch);
  }
}

// Where a rail keeps order, an empty write's immediate says that all before it are visible.
TEST_P(BackendConformance, AnEmptyWriteClosesALane) {
  ASSERT_NO_FATAL_FAILURE(Start(64 * 8192));
  const uint32_t last_rail = out().rails() - 1;
  for (uint32_t round = 0; round < 20; ++round) {
    const Pattern pattern(round);
    pattern.Fill(local_->bytes());
    bool whole = true;
    pair_->target().on_immediate = [&](TestLink&, uint32_t immediate) {
      EXPECT_EQ(immediate, round);
      if (caps().rail_keeps_order) whole = pattern.Mismatch(remote_->bytes()) == kNoMismatch;
    };
    std::vector<Op> ops;
    for (uint64_t i = 0; i < 64; ++i) {
      ops.push_back(out().Make(OpKind::kWrite, 1, {RunAt(i * 8192, 8192)}, {}, last_rail));
    }
    ops.push_back(out().Make(OpKind::kWrite, 1, {}, round, last_rail));
    ASSERT_TRUE(pair_->PostAll(ops));
    ASSERT_TRUE(Ended());
    ASSERT_TRUE(Arrived(round + 1));
    EXPECT_TRUE(whole);
  }
  EXPECT_EQ(in().immediates.size(), immediates() ? 20u : 0u);
}

TEST_P(BackendConformance, MessagesOfEverySizeBothWays) {
  ASSERT_NO_FATAL_FAILURE(Start(4096));
  ASSERT_GE(caps().max_message_bytes, 128u * 1024);
  std::vector<std::string> messages;
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{24}, size_t{4096}, size_t{65536 + 24},
                             caps().max_message_bytes}) {
    messages.emplace_back(bytes, static_cast<char>('a' + messages.size()));
  }
  for (int i = 0; i < 200; ++i) messages.push_back("message " + std::to_string(i));
  out().messages.clear();
  for (TestLink* link : {&out(), &in()}) {
    for (const std::string& message : messages) {
      ASSERT_TRUE(pair_->Until([&] { return link->Send(message); }));
    }
  }
  std::ranges::sort(messages);
  for (TestLink* link : {&out(), &in()}) {
    ASSERT_TRUE(pair_->Until([&] { return link->messages.size() >= messages.size(); }));
    pair_->Idle(std::chrono::milliseconds(2));
    std::ranges::sort(link->messages);
    EXPECT_TRUE(link->messages == messages);
  }
}

// A transfer in one write, with its message right behind: a backend may send both at once.
TEST_P(BackendConformance, SoleWritesWithTheirMessages) {
  constexpr uint64_t kBytes = 20'000;
  ASSERT_NO_FATAL_FAILURE(Start(kBytes));
  size_t round = 0;
  for (const uint64_t bytes : {1u, 100u, 4096u, 16384u, 20'000u}) {
    for (uint32_t rail = 0; rail < out().rails(); ++rail) {
      ++round;
      const Pattern pattern(round);
      remote_->memory.Clear();
      pattern.Fill(local_->bytes().first(bytes));
      const uint64_t half = caps().max_op_pieces > 1 ? bytes / 2 : 0;
      std::vector<kvxfer::Run> runs = {RunAt(half, bytes - half)};
      if (half > 0) runs.push_back(RunAt(0, half));
      Op op = out().Make(OpKind::kWrite, round, runs, static_cast<uint32_t>(round), rail);
      op.sole = true;
      ASSERT_TRUE(pair_->PostAll({&op, 1}));
      const std::string message = "of round " + std::to_string(round);
      ASSERT_TRUE(pair_->Until([&] { return out().Send(message); }));
      ASSERT_TRUE(Ended());
      ASSERT_TRUE(Arrived(round));
      // Expect every byte once it has arrived, and one immediate and one message a write.
      EXPECT_EQ(pattern.Mismatch(remote_->bytes().first(bytes)), kNoMismatch) << bytes;
      EXPECT_EQ(FirstNonZero(remote_->bytes().subspan(bytes)), kNoMismatch) << bytes;
      ASSERT_TRUE(pair_->Until([&] { return in().messages.size() >= round; }));
      EXPECT_EQ(in().messages.back(), message);
      if (!immediates()) continue;
      EXPECT_EQ(in().immediates.back(), round);
    }
  }
  EXPECT_EQ(out().failed(), 0u);
  EXPECT_EQ(in().immediates.size(), immediates() ? round : 0);
}

// The sender is not polled any more: what Send has accepted is on its way.
TEST_P(BackendConformance, SendDoesNotWaitForAPoll) {
  ASSERT_NO_FATAL_FAILURE(Start(4096));
  for (const size_t bytes : {size_t{24}, size_t{4096}}) {
    const std::string message(bytes, 'm');
    for (const bool to_target : {true, false}) {
      TestLink& to = to_target ? in() : out();
      const size_t before = to.messages.size();
      PartyThread listens(to_target ? &pair_->target() : &pair_->initiator(), [] {});
      ASSERT_TRUE((to_target ? out() : in()).Send(message));
      ASSERT_TRUE(Eventually(
          kAmple,
          [&] { return listens.WithLock([&] { return to.messages.size() == before + 1; }); }))
          << bytes << " bytes wait for a Poll of their sender";
      EXPECT_EQ(to.messages.back(), message);
    }
  }
}

// A sender that nobody listens to is told to wait, and goes on when it is heard.
TEST_P(BackendConformance, MessagesPressBack) {
  ASSERT_NO_FATAL_FAILURE(Start(4096));
  const std::string message(64 * 1024, 'x');
  size_t sent = 0;
  while (sent < 4096 && out().Send(message)) ++sent;
  EXPECT_LT(sent, 4096u) << "nothing bounds what waits";
  ASSERT_TRUE(pair_->Until([&] { return in().messages.size() >= sent; }));
  ASSERT_TRUE(pair_->Until([&] { return out().Send(message); }));
  EXPECT_TRUE(pair_->Until([&] { return in().messages.size() == sent + 1; }));
}

TEST_P(BackendConformance, OpsPressBack) {
  constexpr uint64_t kBytes = kInlineCopyBytes + 4096;  // not done in Post
  ASSERT_NO_FATAL_FAILURE(Start(kBytes));
  std::vector<Op> ops;
  for (size_t i = 0; i < 20000; ++i) {
    ops.push_back(out().Make(OpKind::kWrite, 1, {RunAt(0, kBytes)}, 1));
  }
  const size_t accepted = out().Post(ops);
  EXPECT_GT(accepted, 0u);
  ASSERT_LT(accepted + 300, ops.size()) << "nothing bounds what is queued";
  ASSERT_TRUE(pair_->PostAll(std::span(ops).subspan(accepted, 300)));
  ASSERT_TRUE(Ended());
  EXPECT_EQ(out().ended.size(), accepted + 300);
  EXPECT_EQ(out().failed(), 0u);
  EXPECT_TRUE(Arrived(accepted + 300));
}

TEST_P(BackendConformance, WritesAndReadsAtOnce) {
  constexpr uint64_t kOp = 32 * 1024;
  ASSERT_NO_FATAL_FAILURE(Start(128 * kOp));
  Pattern(1).Fill(local_->bytes().first(64 * kOp));
  Pattern(2).Fill(remote_->bytes().subspan(64 * kOp));
  std::vector<Op> ops;
  for (uint64_t i = 0; i < 64; ++i) {
    ops.push_back(out().Make(OpKind::kWrite, 1, {RunAt(i * kOp, kOp)}, 1));
    ops.push_back(out().Make(OpKind::kRead, 2, {RunAt((64 + i) * kOp, kOp)}));
  }
  ASSERT_TRUE(pair_->PostAll(ops));
  ASSERT_TRUE(Ended());
  ASSERT_TRUE(Arrived(64));
  EXPECT_EQ(out().failed(), 0u);
  EXPECT_EQ(Pattern(1).Mismatch(remote_->bytes().first(64 * kOp)), kNoMismatch);
  EXPECT_EQ(Pattern(2).Mismatch(local_->bytes().subspan(64 * kOp)), kNoMismatch);
}

// A region registered after the connection was made can be used like any other.
TEST_P(BackendConformance, ARegionRegisteredLate) {
  ASSERT_NO_FATAL_FAILURE(Start(4096));
  Pattern(3).Fill(local_->bytes());
  auto late = pair_->target().Register(8192);
  ASSERT_OK(late);
  const RemoteKey* const key = pair_->Import(**late);
  ASSERT_NE(key, nullptr);
  kvxfer::Run run = RunAt(0, 4096);
  run.remote = (*late)->address() + 4096;
  run.key = key;
  ASSERT_TRUE(pair_->PostAll(std::vector<Op>{out().Make(OpKind::kWrite, 1, {run}, 1)}));
  ASSERT_TRUE(Ended());
  ASSERT_TRUE(Arrived(1));
  EXPECT_EQ(out().failed(), 0u);
  EXPECT_EQ(Pattern(3).Mismatch((*late)->bytes().subspan(4096)), kNoMismatch);
  EXPECT_EQ(FirstNonZero((*late)->bytes().first(4096)), kNoMismatch);
}

}  // namespace
}  // namespace kvxfer::testing
