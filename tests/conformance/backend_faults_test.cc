// That `faulty:` does what FaultOptions says: faults happen, at the agreed place, by the seed. That
// it stays a legal backend meanwhile is what BackendConformance shows.

#include <algorithm>
#include <set>
#include <string>

#include "tests/conformance/backend_conformance.h"

namespace kvxfer::testing {
namespace {

constexpr uint64_t kFaultyOp = 4096;

// Runs over the backends beneath; each case says which faults.
class BackendFaults : public BackendConformance {
 protected:
  void StartWith(const faulty::FaultOptions& faults, size_t bytes) {
    Flavour flavour = GetParam();
    flavour.backend = "faulty:" + flavour.backend;
    flavour.faults = faults;
    pair_ = BackendPair::Make(flavour);
    ASSERT_NE(pair_, nullptr);
    ASSERT_NO_FATAL_FAILURE(Prepare(bytes));
  }
};

TEST_P(BackendFaults, WithoutFaultsItIsTheBackendBeneath) {
  ASSERT_OK_AND_ASSIGN(std::unique_ptr<Party> plain, Party::Make(GetParam(), "plain"));
  ASSERT_NO_FATAL_FAILURE(StartWith({}, 64 * kFaultyOp));
  EXPECT_EQ(caps().rail_keeps_order, plain->capabilities().rail_keeps_order);
  EXPECT_EQ(caps().max_op_bytes, plain->capabilities().max_op_bytes);
  // Expect ops to be passed on within Post: nothing to wait for but the backend's own work.
  Pattern(1).Fill(local_->bytes());
  const std::vector<Op> ops = Stream(OpKind::kWrite, 1, 1, kFaultyOp);
  ASSERT_EQ(out().Post(ops), 1u);
  ASSERT_TRUE(Ended());
  ASSERT_TRUE(Arrived(1));
  EXPECT_EQ(Pattern(1).Mismatch(remote_->bytes().first(kFaultyOp)), kNoMismatch);
}

TEST_P(BackendFaults, AnInjectedErrorIsNotExecuted) {
  constexpr size_t kCount = 400;
  std::set<uint64_t> failed_before;
  // Expect the same fates from the same seed.
  for (int run = 0; run < 2; ++run) {
    ASSERT_NO_FATAL_FAILURE(StartWith({.seed = 5, .error_probability = 0.3}, kCount * kFaultyOp));
    Pattern(1).Fill(local_->bytes());
    const std::vector<Op> ops = Stream(OpKind::kWrite, 1, kCount, kFaultyOp);
    ASSERT_TRUE(pair_->PostAll(ops));
    ASSERT_TRUE(Ended());
    std::set<uint64_t> failed;
    for (const Op& op : ops) {
      const absl::Status& end = out().ended[op.id];
      if (end.ok()) continue;
      EXPECT_TRUE(Fails(end, absl::StatusCode::kUnavailable, {"injected"}));
      failed.insert(op.id);
    }
    EXPECT_GT(failed.size(), kCount / 10);
    EXPECT_LT(failed.size(), kCount / 2);
    ASSERT_TRUE(Arrived(kCount - failed.size()));
    for (size_t i = 0; i < kCount; ++i) {
      const auto block = remote_->bytes().subspan(i * kFaultyOp, kFaultyOp);
      if (failed.contains(ops[i].id)) {
        EXPECT_EQ(FirstNonZero(block), kNoMismatch) << i;
      } else {
        EXPECT_EQ(Pattern(1).Mismatch(block, i * kFaultyOp), kNoMismatch) << i;
      }
    }
    EXPECT_TRUE(run == 0 || failed == failed_before);
    failed_before = failed;
  }
}

TEST_P(BackendFaults, ACutEndsBothSides) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    Flavour flavour = GetParam();
    flavour.backend = "faulty:" + flavour.backend;
    flavour.faults = {.seed = seed, .reorder_window = 4, .cut_probability = 0.01};
    pair_ = BackendPair::Make(flavour, /*authorize=*/false);
    ASSERT_NE(pair_, nullptr);
    in().endpoint->Authorize();
    // Empty writes, for a cut may come before there is a key.
    size_t accepted = 0;
    ASSERT_TRUE(pair_->Until([&] {
      const Op op = out().Make(OpKind::kWrite, 1, {}, 1);
      if (!out().down) accepted += out().Post(std::span(&op, 1));
      return out().down && in().down;
    }));
    EXPECT_EQ(out().ended.size(), accepted);
    EXPECT_TRUE(Fails(out().why, absl::StatusCode::kUnavailable, {"injected cut"}));
    EXPECT_FALSE(in().why.message().empty());
  }
}

TEST_P(BackendFaults, ABlackHoleSwallowsAndSaysNothing) {
  ASSERT_NO_FATAL_FAILURE(StartWith({.blackhole_after = 20}, 64 * kFaultyOp));
  const size_t heard_by_target = in().messages.size();
  const std::vector<Op> ops = Stream(OpKind::kWrite, 1, 64, kFaultyOp);
  const size_t accepted = out().Post(std::span(ops).first(40));
  ASSERT_GT(accepted, 20u);
  EXPECT_TRUE(out().Send("swallowed"));
  EXPECT_TRUE(in().Send("not heard"));
  const size_t heard = out().messages.size();
  ASSERT_TRUE(pair_->Until([&] {
    return out().ended.size() >= 20 && in().immediates.size() >= (immediates() ? 20u : 0u);
  }));
  pair_->Idle(std::chrono::milliseconds(50));
  // Expect twenty ops through, nothing else either way, and no word about it.
  EXPECT_EQ(out().ended.size(), 20u);
  EXPECT_EQ(in().immediates.size(), immediates() ? 20u : 0u);
  EXPECT_EQ(in().messages.size(), heard_by_target);
  EXPECT_EQ(out().messages.size(), heard);
  EXPECT_FALSE(out().down);
  // Expect the loss of the peer to stay unknown as well, and Shutdown to end everything.
  in().endpoint->Shutdown(absl::CancelledError("the peer leaves"));
  pair_->Idle(std::chrono::milliseconds(20));
  EXPECT_FALSE(out().down);
  out().endpoint->Shutdown(absl::DeadlineExceededError("no answer"));
  ASSERT_TRUE(pair_->Until([&] { return out().down && in().down; }));
  EXPECT_EQ(out().ended.size(), accepted);
  EXPECT_EQ(out().failed(), accepted - 20);
}

TEST_P(BackendFaults, ASlowRailIsSlowAlone) {
  constexpr Duration kDelay = std::chrono::milliseconds(100);
  ASSERT_NO_FATAL_FAILURE(StartWith({.slow_rail = 0, .slow_rail_delay = kDelay}, 64 * kFaultyOp));
  const Op slow = out().Make(OpKind::kWrite, 1, {RunAt(0, kFaultyOp)}, 0, 0);
  const Time start = Now();
  ASSERT_EQ(out().Post(std::span(&slow, 1)), 1u);
  EXPECT_TRUE(out().Send("past it"));
  const size_t before = in().messages.size();
  ASSERT_TRUE(pair_->Until([&] { return in().messages.size() > before; }));
  if (out().rails() > 1) {
    const Op quick = out().Make(OpKind::kWrite, 2, {RunAt(kFaultyOp, kFaultyOp)}, 1, 1);
    ASSERT_EQ(out().Post(std::span(&quick, 1)), 1u);
    ASSERT_TRUE(pair_->Until([&] { return out().ended.contains(quick.id); }));
  }
  EXPECT_TRUE(out().open.contains(slow.id) || Now() - start >= kDelay);
  ASSERT_TRUE(Ended());
  EXPECT_GE(Now() - start, kDelay);
}

TEST_P(BackendFaults, OrderIsLost) {
  ASSERT_NO_FATAL_FAILURE(StartWith({.reorder_window = 8}, 64 * kFaultyOp));
  EXPECT_FALSE(caps().rail_keeps_order);
  const std::vector<Op> ops = Stream(OpKind::kWrite, 1, 64, kFaultyOp);
  ASSERT_TRUE(pair_->PostAll(ops));
  ASSERT_TRUE(Ended());
  ASSERT_TRUE(Arrived(64));
  EXPECT_EQ(std::ranges::is_sorted(in().immediates), !immediates());
  // Those that a transport passes one at a time cannot change places: again, then.
  const auto changes_places = [&] {
    in().messages.clear();
    for (int i = 0; i < 50; ++i) {
      EXPECT_TRUE(pair_->Until([&] { return out().Send(std::to_string(100 + i)); }));
    }
    EXPECT_TRUE(pair_->Until([&] { return in().messages.size() == 50; }));
    return !std::ranges::is_sorted(in().messages);
  };
  EXPECT_TRUE(Eventually(kAmple, changes_places));
}

TEST_P(BackendFaults, MessagesOvertakeData) {
  for (const bool overtake : {true, false}) {
    ASSERT_NO_FATAL_FAILURE(StartWith({.overtake = overtake}, 64 * kFaultyOp));
    const std::vector<Op> ops = Stream(OpKind::kWrite, 1, 8, kFaultyOp);
    ASSERT_EQ(out().Post(ops), 8u);
    ASSERT_TRUE(out().Send("quick"));
    // The target alone: what the initiator still holds stays where it is.
    EXPECT_TRUE(Eventually(kAmple, [&] {
      pair_->target().Turn();
      return !in().messages.empty();
    }));
    EXPECT_TRUE(!overtake || in().immediates.empty());
    ASSERT_TRUE(Ended());
    ASSERT_TRUE(Arrived(8));
  }
}

INSTANTIATE_TEST_SUITE_P(Over, BackendFaults, ::testing::ValuesIn(PlainFlavours()), FlavourName);

TEST(MakeBackend, AnUnknownNameListsTheKnown) {
  const AgentOptions options;
  const BackendContext context{options, Incarnation::Random(), {}};
  for (const char* name : {"smoke", "", "faulty:", "faulty:smoke", "faulty:faulty:tcp", "Tcp"}) {
    EXPECT_TRUE(Fails(MakeBackend(name, context), absl::StatusCode::kNotFound,
                      {"loopback", "shm", "tcp", "faulty:"}))
        << name;
  }
}

}  // namespace
}  // namespace kvxfer::testing
