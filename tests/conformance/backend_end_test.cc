// Conformance of backends: how ops, transfers and connections end, and what is quiet afterwards.

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "tests/conformance/backend_conformance.h"

namespace kvxfer::testing {
namespace {

constexpr uint64_t kOp = 128 * 1024;

}  // namespace

// Writes of transfers 1 and 2 in turn, of which 1 was fenced and 2 was not; `rest` were not
// accepted yet. Expects transfer 1 to stay quiet while 2 goes on to its end: `digests` are those of
// its blocks, and `arrived` of its immediates had come, when the fence was answered.
void BackendConformance::ExpectQuiet(std::span<const Op> ops, std::span<const Op> rest,
                                     const std::vector<uint64_t>& digests, size_t arrived) {
  std::vector<Op> others;
  std::ranges::copy_if(rest, std::back_inserter(others),
                       [](const Op& op) { return op.transfer == 2; });
  ASSERT_TRUE(pair_->PostAll(others));
  ASSERT_TRUE(Ended());
  ASSERT_TRUE(Arrived(arrived + 32));
  EXPECT_EQ(EvenImmediates(), arrived);
  for (size_t i = 0; i < ops.size(); ++i) {
    const auto block = remote_->bytes().subspan(i * kOp, kOp);
    if (ops[i].transfer == 1) {
      EXPECT_EQ(Digest(block), digests[i / 2]) << i;
    } else {
      EXPECT_EQ(Pattern(1).Mismatch(block, i * kOp), kNoMismatch) << i;
      EXPECT_OK(out().ended[ops[i].id]);
    }
  }
}

namespace {

constexpr size_t kFew = 8;  // messages that every backend has space for

absl::Status Why() { return absl::CancelledError("closed by the test"); }

TEST_P(BackendConformance, EveryOpEndsOnceWhenTheInitiatorShutsDown) {
  for (int round = 0; round < 10; ++round) {
    ASSERT_NO_FATAL_FAILURE(Start(100 * kOp));
    const size_t accepted = out().Post(Stream(OpKind::kWrite, 1, 100, kOp));
    for (uint64_t turns = random_() % 20; turns > 0; --turns) pair_->Turn();
    out().endpoint->Shutdown(Why());
    ASSERT_TRUE(pair_->Until([&] { return out().down && in().down; }));
    EXPECT_EQ(out().ended.size(), accepted);
    // Expect no op to be taken after the last event: nothing could end it.
    EXPECT_FALSE(out().endpoint->Post(Stream(OpKind::kWrite, 2, 1, 1).front()));
    EXPECT_FALSE(out().Send("too late"));
  }
}

TEST_P(BackendConformance, EveryOpEndsOnceWhenTheTargetShutsDown) {
  for (int round = 0; round < 10; ++round) {
    ASSERT_NO_FATAL_FAILURE(Start(100 * kOp));
    size_t accepted = out().Post(Stream(OpKind::kWrite, 1, 50, kOp));
    std::vector<Op> reads;
    for (uint64_t i = 0; i < 50; ++i) {
      reads.push_back(out().Make(OpKind::kRead, 2, {RunAt((50 + i) * kOp, kOp)}));
    }
    for (uint64_t turns = random_() % 20; turns > 0; --turns) pair_->Turn();
    accepted += out().Post(reads);
    in().endpoint->Shutdown(Why());
    ASSERT_TRUE(pair_->Until([&] { return out().down && in().down; }));
    EXPECT_EQ(out().ended.size(), accepted);
  }
}

// kDown on the accepted side: no byte of that peer lands any more.
TEST_P(BackendConformance, NothingLandsAfterTheTargetIsDown) {
  for (int round = 0; round < (kSlow ? 3 : 10); ++round) {
    ASSERT_NO_FATAL_FAILURE(Start(100 * kOp));
    Pattern(1).Fill(local_->bytes());
    out().Post(Stream(OpKind::kWrite, 1, 100, kOp));
    for (uint64_t turns = random_() % 10; turns > 0; --turns) pair_->Turn();
    in().endpoint->Shutdown(Why());
    ASSERT_TRUE(pair_->Until([&] { return in().down; }));
    const uint64_t before = Digest(remote_->bytes());
    pair_->Idle(std::chrono::milliseconds(2));
    EXPECT_EQ(Digest(remote_->bytes()), before);
  }
}

// Both at once: still one kDown each, and it is the last event (which the parties check).
TEST_P(BackendConformance, BothSidesShutDown) {
  ASSERT_NO_FATAL_FAILURE(Start(100 * kOp));
  const size_t accepted = out().Post(Stream(OpKind::kWrite, 1, 100, kOp));
  EXPECT_TRUE(in().Send("going"));
  in().endpoint->Shutdown(Why());
  out().endpoint->Shutdown(Why());
  out().endpoint->Shutdown(Why());
  ASSERT_TRUE(pair_->Until([&] { return out().down && in().down; }));
  EXPECT_EQ(out().ended.size(), accepted);
  pair_->Idle(std::chrono::milliseconds(5));
}

// An agent that refuses a peer sends the reason and shuts down at once.
TEST_P(BackendConformance, MessagesBeforeShutdownArrive) {
  const std::string text(1000, 'r');
  for (const bool authorized : {false, true}) {
    for (const bool target_ends : {true, false}) {
      ASSERT_NO_FATAL_FAILURE(Start(kOp, authorized));
      TestLink& from = target_ends ? in() : out();
      TestLink& to = target_ends ? out() : in();
      const size_t before = to.messages.size();
      for (size_t i = 0; i < kFew; ++i) ASSERT_TRUE(from.Send(text));
      from.endpoint->Shutdown(Why());
      ASSERT_TRUE(pair_->Until([&] { return out().down && in().down; }));
      ASSERT_EQ(to.messages.size(), before + kFew);
      EXPECT_EQ(to.messages.back(), text);
    }
  }
}

// Also as many as the backend takes, to a peer that listens in its own thread.
TEST_P(BackendConformance, AllMessagesBeforeShutdownArrive) {
  const std::string text(64 * 1024, 'r');
  for (const bool target_ends : {true, false}) {
    ASSERT_NO_FATAL_FAILURE(Start(kOp));
    TestLink& from = target_ends ? in() : out();
    TestLink& to = target_ends ? out() : in();
    Party& sender = target_ends ? pair_->target() : pair_->initiator();
    Party& receiver = target_ends ? pair_->initiator() : pair_->target();
    const size_t before = to.messages.size();
    size_t sent = 0;
    while (sent < 4096 && from.Send(text)) ++sent;
    from.endpoint->Shutdown(Why());
    PartyThread listens(&receiver, [] {});
    EXPECT_TRUE(Eventually(kAmple, [&] {
      sender.Turn();
      return from.down && listens.WithLock([&] { return to.down; });
    }));
    EXPECT_EQ(to.messages.size(), before + sent);
  }
}

TEST_P(BackendConformance, AFenceEndsATransferAndNoOther) {
  for (int round = 0; round < Scaled(30); ++round) {
    ASSERT_NO_FATAL_FAILURE(Start(64 * kOp));
    Pattern(1).Fill(local_->bytes());
    // Transfers 1 and 2 in turn.
    std::vector<Op> ops = Stream(OpKind::kWrite, 1, 64, kOp);
    for (size_t i = 1; i < ops.size(); i += 2) ops[i].transfer = 2;
    std::span<const Op> rest = ops;
    // Fenced before, in the midst of and after its ops; early more often than late.
    if (round % 4 != 0) rest = rest.subspan(out().Post(rest));
    for (uint64_t turns = random_() % (1 + random_() % 60); turns > 0; --turns) {
      rest = rest.subspan(out().Post(rest));
      pair_->Turn();
    }
    out().Fence(1);
    ASSERT_TRUE(pair_->Until([&] { return out().fenced.contains(1); }));
    // Expect the source not to be read any more: what is put there now never arrives.
    for (size_t i = 0; i < ops.size(); i += 2) {
      Pattern(2).Fill(local_->bytes().subspan(i * kOp, kOp), i * kOp);
    }
    for (uint64_t turns = random_() % 40; turns > 0; --turns) pair_->Turn();
    in().Fence(1);
    ASSERT_TRUE(pair_->Until([&] { return in().fenced.contains(1); }));
    std::vector<uint64_t> digests;
    for (size_t i = 0; i < ops.size(); i += 2) {
      digests.push_back(Digest(remote_->bytes().subspan(i * kOp, kOp)));
      const auto block = remote_->bytes().subspan(i * kOp, kOp);
      EXPECT_NE(Pattern(2).Mismatch(block.last(8), (i + 1) * kOp - 8), kNoMismatch);
    }
    ASSERT_NO_FATAL_FAILURE(ExpectQuiet(ops, rest, digests, EvenImmediates()));
  }
}

// The accepting side's fence comes first, alone. Its answer is true all the same: from then on no
// byte is written and no immediate comes. With kCopied only the connecting side can say so.
TEST_P(BackendConformance, NothingIsWrittenFromTheTargetsFenceOn) {
  for (int round = 0; round < Scaled(20); ++round) {
    ASSERT_NO_FATAL_FAILURE(Start(64 * kOp));
    Pattern(1).Fill(local_->bytes());
    // Transfers 1 and 2 in turn.
    std::vector<Op> ops = Stream(OpKind::kWrite, 1, 64, kOp);
    for (size_t i = 1; i < ops.size(); i += 2) ops[i].transfer = 2;
    std::span<const Op> rest = ops;
    std::optional<std::vector<uint64_t>> quiet;  // digests of the blocks of transfer 1
    size_t arrived = 0;                          // of transfer 1
    const auto look = [&] {
      const bool is_quiet = in().fenced.contains(1) && (immediates() || out().fenced.contains(1));
      if (quiet || !is_quiet) return quiet.has_value();
      quiet.emplace();
      for (size_t i = 0; i < ops.size(); i += 2) {
        quiet->push_back(Digest(remote_->bytes().subspan(i * kOp, kOp)));
      }
      arrived = EvenImmediates();
      return true;
    };
    const auto post_for = [&](uint64_t turns) {
      for (; turns > 0; --turns) {
        rest = rest.subspan(out().Post(rest));
        pair_->Turn();
        look();
      }
    };
    post_for(random_() % 10);
    in().Fence(1);
    post_for(random_() % 60);
    out().Fence(1);
    ASSERT_TRUE(pair_->Until([&] { return look() && out().fenced.contains(1); }));
    ASSERT_NO_FATAL_FAILURE(ExpectQuiet(ops, rest, *quiet, arrived));
  }
}

TEST_P(BackendConformance, AFencedReadLandsNoMore) {
  for (int round = 0; round < Scaled(20); ++round) {
    ASSERT_NO_FATAL_FAILURE(Start(64 * kOp));
    Pattern(1).Fill(remote_->bytes());
    std::vector<Op> ops = Stream(OpKind::kRead, 1, 64, kOp);
    for (size_t i = 1; i < ops.size(); i += 2) ops[i].transfer = 2;
    const std::span<const Op> accepted = std::span(ops).first(out().Post(ops));
    for (uint64_t turns = random_() % (1 + random_() % 20); turns > 0; --turns) pair_->Turn();
    out().Fence(1);
    ASSERT_TRUE(pair_->Until([&] { return out().fenced.contains(1); }));
    std::vector<uint64_t> digests;
    for (size_t i = 0; i < ops.size(); ++i) {
      digests.push_back(Digest(local_->bytes().subspan(i * kOp, kOp)));
    }
    in().Fence(1);
    ASSERT_TRUE(Ended());
    ASSERT_TRUE(pair_->Until([&] { return in().fenced.contains(1); }));
    for (size_t i = 0; i < accepted.size(); ++i) {
      const auto block = local_->bytes().subspan(i * kOp, kOp);
      if (ops[i].transfer == 1) {
        EXPECT_EQ(Digest(block), digests[i]) << i;
        EXPECT_TRUE(!out().ended[ops[i].id].ok() ||
                    Pattern(1).Mismatch(block, i * kOp) == kNoMismatch);
      } else {
        EXPECT_OK(out().ended[ops[i].id]);
        EXPECT_EQ(Pattern(1).Mismatch(block, i * kOp), kNoMismatch) << i;
      }
    }
  }
}

// Fences of transfers that never were, or are long over, are answered like any other.
TEST_P(BackendConformance, AFenceOfNothing) {
  ASSERT_NO_FATAL_FAILURE(Start(kOp));
  ASSERT_TRUE(pair_->PostAll(Stream(OpKind::kWrite, 5, 1, kOp)));
  ASSERT_TRUE(Ended());
  ASSERT_TRUE(Arrived(1));
  for (uint64_t transfer = 1; transfer <= 600; ++transfer) {
    out().Fence(transfer);
    in().Fence(transfer);
    pair_->Turn();
  }
  EXPECT_TRUE(
      pair_->Until([&] { return out().fenced.size() == 600 && in().fenced.size() == 600; }));
  EXPECT_EQ(out().failed(), 0u);
}

TEST_P(BackendConformance, NothingPassesBeforeAuthorize) {
  ASSERT_NO_FATAL_FAILURE(Start(16 * kOp, /*authorize=*/false));
  Pattern(1).Fill(local_->bytes().first(8 * kOp));
  Pattern(2).Fill(remote_->bytes().subspan(8 * kOp));
  // Messages pass both ways.
  EXPECT_TRUE(out().Send("let me in"));
  EXPECT_TRUE(in().Send("who are you"));
  EXPECT_TRUE(pair_->Until([&] { return in().messages.size() + out().messages.size() == 2; }));
  // A backend that hands out no key before has nothing to post.
  auto key = out().endpoint->Import(remote_->remote(), remote_->registration->key);
  if (key.ok()) {
    key_ = key->get();
    std::vector<Op> ops = Stream(OpKind::kWrite, 1, 8, kOp);
    ops.push_back(out().Make(OpKind::kRead, 2, {RunAt(8 * kOp, 8 * kOp, kOp)}));
    const size_t accepted = out().Post(ops);
    pair_->Idle(std::chrono::milliseconds(30));
    // Expect memory on both sides untouched, and nothing counted.
    EXPECT_EQ(FirstNonZero(remote_->bytes().first(8 * kOp)), kNoMismatch);
    EXPECT_EQ(FirstNonZero(local_->bytes().subspan(8 * kOp)), kNoMismatch);
    EXPECT_TRUE(in().immediates.empty());
    pair_->Authorize();
    // Expect what waited to pass.
    ASSERT_TRUE(pair_->PostAll(std::span(ops).subspan(accepted)));
    ASSERT_TRUE(Ended());
    ASSERT_TRUE(Arrived(8));
    EXPECT_EQ(out().failed(), 0u);
    EXPECT_EQ(Pattern(1).Mismatch(remote_->bytes().first(8 * kOp)), kNoMismatch);
    out().keys.push_back(*std::move(key));
  } else {
    EXPECT_TRUE(absl::IsUnavailable(key.status())) << key.status();
    pair_->Authorize();
    EXPECT_NE(pair_->Import(*remote_), nullptr);
  }
}

TEST_P(BackendConformance, AnUnauthorisedPeerThatLeavesLeavesNothing) {
  ASSERT_NO_FATAL_FAILURE(Start(8 * kOp, /*authorize=*/false));
  Pattern(1).Fill(local_->bytes());
  auto key = out().endpoint->Import(remote_->remote(), remote_->registration->key);
  if (key.ok()) {
    key_ = key->get();
    out().Post(Stream(OpKind::kWrite, 1, 8, kOp));
  }
  pair_->Turn();
  in().endpoint->Shutdown(absl::PermissionDeniedError("not you"));
  ASSERT_TRUE(pair_->Until([&] { return out().down && in().down; }));
  EXPECT_TRUE(in().immediates.empty());
  EXPECT_EQ(FirstNonZero(remote_->bytes()), kNoMismatch);
}

}  // namespace
}  // namespace kvxfer::testing
