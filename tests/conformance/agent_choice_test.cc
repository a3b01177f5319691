// Which backend carries a transfer that names none: the first of the list that reaches the peer,
// unless another one was seen clearly faster; and what Explain says of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "tests/support/agents.h"
#include "tests/support/blocks.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

constexpr Shape kSmall{.block_bytes = 512, .ids = 4};

struct Two {
  Node a;
  Node b;
};

absl::StatusOr<Two> TwoAgents(AgentOptions of_a, AgentOptions of_b) {
  of_a.name = "a";
  auto a = Node::Create(of_a, MemoryType::kMapped, kSmall.memory_bytes());
  if (!a.ok()) return a.status();
  of_b.name = "b";
  auto b = Node::Create(of_b, MemoryType::kMapped, kSmall.memory_bytes());
  if (!b.ok()) return b.status();
  if (auto text = Introduce(*a->agent, *b->agent); !text.ok()) return text.status();
  return Two{.a = *std::move(a), .b = *std::move(b)};
}
absl::StatusOr<Two> TwoAgents(const AgentOptions& options) { return TwoAgents(options, options); }

// The backend that carried a small transfer; "" where it failed.
std::string Piggybacked(Two& two, const std::string& backend = "") {
  const BlockSet blocks(kSmall, two.a.memory.address(), two.b.memory.address());
  TransferOptions options = Unhurried();
  options.backend = backend;
  const absl::StatusOr<Transfer> transfer = blocks.Write(*two.a.agent, "b", options);
  const absl::Status status = transfer.ok() ? transfer->Wait(kAmple) : transfer.status();
  EXPECT_OK(status);
  return status.ok() ? transfer->stats().path : "";
}

TEST(AgentChoice, WhatWasSeenFasterPassesTheOrderOfTheList) {
  AgentOptions options;
  options.backends = {"faulty:shm", "tcp"};
  options.backend["faulty"] = WriteOptions(
      faulty::FaultOptions{.slow_rail = 0, .slow_rail_delay = std::chrono::milliseconds(300)});
  ASSERT_OK_AND_ASSIGN(Two two, TwoAgents(options));
  EXPECT_EQ(Piggybacked(two), "faulty:shm");
  EXPECT_EQ(Piggybacked(two), "faulty:shm");
  // The other has never been seen, so nothing says that it is better.
  EXPECT_EQ(Piggybacked(two), "faulty:shm");
  // Not within a third of 300 ms only where a machine is beyond use.
  for (int i = 0; i < 5; ++i) EXPECT_EQ(Piggybacked(two, "tcp"), "tcp");
  EXPECT_EQ(Piggybacked(two), "tcp");

  ASSERT_OK_AND_ASSIGN(const Explanation why, two.a.agent->Explain("b"));
  ASSERT_EQ(why.paths.size(), 2u);
  EXPECT_GE(why.paths[0].latency, std::chrono::milliseconds(300));
  EXPECT_GT(why.paths[1].latency, Duration::zero());
  EXPECT_TRUE(why.paths[1].chosen);
  EXPECT_FALSE(why.paths[0].chosen);
  EXPECT_TRUE(absl::StrContains(why.paths[1].why, "taken before faulty:shm")) << why.ToString();
  // Named, it is taken all the same.
  EXPECT_EQ(Piggybacked(two, "faulty:shm"), "faulty:shm");
}

TEST(AgentChoice, ControlFramesTakeTheCarrierThatIsAskedFor) {
  AgentOptions options;
  options.backends = {"shm", "tcp"};
  options.control = ControlCarrier::kTcp;
  ASSERT_OK_AND_ASSIGN(Two two, TwoAgents(options));
  EXPECT_EQ(Piggybacked(two), "shm");
  ASSERT_OK_AND_ASSIGN(const Explanation why, two.a.agent->Explain("b"));
  ASSERT_EQ(why.paths.size(), 2u);
  EXPECT_TRUE(why.paths[0].connected && why.paths[1].connected) << why.ToString();
}

// Where only the target asks for it, it refuses what carries no control frames for it.
TEST(AgentChoice, ACarrierThatOnlyTheTargetAsksFor) {
  AgentOptions any;
  any.backends = {"shm", "tcp"};
  AgentOptions strict = any;
  strict.control = ControlCarrier::kTcp;
  ASSERT_OK_AND_ASSIGN(Two two, TwoAgents(any, strict));
  EXPECT_EQ(Piggybacked(two), "tcp");
  ASSERT_OK_AND_ASSIGN(const Explanation why, two.a.agent->Explain("b"));
  ASSERT_EQ(why.paths.size(), 2u);
  EXPECT_FALSE(why.paths[0].connected);
  EXPECT_TRUE(absl::StrContains(why.paths[0].why, "control = tcp")) << why.ToString();
}

TEST(AgentChoice, APeerThatNothingConnectsWithTheCarrier) {
  AgentOptions strict;
  strict.backends = {"shm", "tcp"};
  strict.control = ControlCarrier::kTcp;
  AgentOptions shm;
  shm.backends = {"shm"};
  EXPECT_TRUE(Fails(TwoAgents(strict, shm), absl::StatusCode::kFailedPrecondition,
                    {"control = tcp", "peer b (shm)"}));
}

// A backend that lets words through and no data until its one rail is up, for `down_for` at most;
// and another behind it.
AgentOptions RailComesLate(std::chrono::milliseconds down_for, double goes_down) {
  AgentOptions options;
  options.backends = {"faulty:shm", "tcp"};
  options.connect_timeout = std::chrono::milliseconds(kSlow ? 2000 : 400);
  options.backend["faulty"] = WriteOptions(faulty::FaultOptions{
      .seed = TestSeed(), .rail_down_probability = goes_down, .rail_down_for = down_for});
  return options;
}

TEST(AgentChoice, WhereNoDataPassesAnotherOneIsTaken) {
  ASSERT_OK_AND_ASSIGN(Two two, TwoAgents(RailComesLate(std::chrono::hours(1), 1)));
  // What carries no data needs no rail.
  ASSERT_OK_AND_ASSIGN(const Transfer word, two.a.agent->Notify("b", "words pass", Unhurried()));
  EXPECT_OK(word.Wait(kAmple));
  ASSERT_OK_AND_ASSIGN(Explanation why, two.a.agent->Explain("b"));
  EXPECT_TRUE(absl::StrContains(why.paths[0].why, "no rail is up")) << why.ToString();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Piggybacked(two), "tcp");
  ASSERT_OK_AND_ASSIGN(why, two.a.agent->Explain("b"));
  EXPECT_FALSE(why.paths[0].usable) << why.ToString();
  EXPECT_FALSE(why.paths[0].chosen) << why.ToString();
  EXPECT_TRUE(why.paths[1].chosen) << why.ToString();
  // A transfer that asks for it waits, says for what, and holds up no other.
  const BlockSet blocks(kSmall, two.a.memory.address(), two.b.memory.address());
  TransferOptions named = Unhurried();
  named.backend = "faulty:shm";
  named.deadline = std::chrono::milliseconds(300);
  ASSERT_OK_AND_ASSIGN(const Transfer waits, blocks.Write(*two.a.agent, "b", named));
  EXPECT_TRUE(Fails(waits.Wait(kAmple), absl::StatusCode::kDeadlineExceeded,
                    {"peer b", "faulty:shm", "no rail is up"}));
  EXPECT_EQ(Piggybacked(two), "tcp");
  while (const auto event = two.a.agent->PollPeerEvent()) {
    EXPECT_NE(event->kind, PeerEventKind::kLost) << event->cause;
  }
}

TEST(AgentChoice, TheFirstOneIsTakenAgainOnceDataPasses) {
  ASSERT_OK_AND_ASSIGN(Two two,
                       TwoAgents(RailComesLate(std::chrono::seconds(kSlow ? 30 : 8), 1e-9)));
  EXPECT_EQ(Piggybacked(two), "tcp");
  EXPECT_TRUE(Eventually(kAmple, [&] { return Piggybacked(two) == "faulty:shm"; }));
}

TEST(AgentChoice, CaretLeavesOut) {
  AgentOptions options;
  options.backends = {"^loopback", "^shm", "^verbs"};
  ASSERT_OK_AND_ASSIGN(Two two, TwoAgents(options));
  EXPECT_EQ(Piggybacked(two), "tcp");
  ASSERT_OK_AND_ASSIGN(const Explanation why, two.a.agent->Explain("b"));
  EXPECT_TRUE(std::ranges::none_of(why.paths, [](const PathExplanation& path) {
    return path.backend == "loopback" || path.backend == "shm" || path.backend == "verbs";
  })) << why.ToString();
}

}  // namespace
}  // namespace kvxfer::testing
