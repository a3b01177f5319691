// Rails that fail under transfers and come back, by seeded schedules: every transfer is done, each
// byte of it is there when it is told, and it is told once and in order.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/agents.h"
#include "tests/support/blocks.h"
#include "tests/support/machine_delay.h"
#include "tests/support/pattern.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr size_t kAreas = 16;
constexpr size_t kAreaBytes = 320 * 1024;

// What transfer `number` moves within its area: one block, many small ones, or a few large ones.
Shape RailShapeOf(uint64_t number) {
  std::mt19937_64 random(number * 77 + TestSeed());
  switch (random() % 4) {
    case 0:
      return {.block_bytes = 1 + random() % 5000, .ids = 1};
    case 1:
      return {.block_bytes = 3000, .ids = static_cast<uint32_t>(1 + random() % 60), .gap = 72};
    case 2:
      return {.block_bytes = 64 * 1024, .ids = 4};
    default:
      return {.block_bytes = 250'000, .ids = 1, .paged = false};
  }
}

class AgentRails : public ::testing::TestWithParam<Flavour> {
 protected:
  void Start(const Flavour& flavour) {
    AgentOptions b = OptionsFor(flavour, "b");
    b.max_notifications = 100'000;
    ASSERT_OK_AND_ASSIGN(pair_,
                         Pair::Create(flavour, OptionsFor(flavour, "a"), b, kAreas * kAreaBytes));
  }
  std::span<std::byte> Area(Node& node, uint64_t number) {
    return node.memory.bytes().subspan(number % kAreas * kAreaBytes, kAreaBytes);
  }
  BlockSet Blocks(uint64_t number) {
    return {RailShapeOf(number), reinterpret_cast<uintptr_t>(Area(pair_.a, number).data()),
            reinterpret_cast<uintptr_t>(Area(pair_.b, number).data())};
  }
  bool RailsFailed() {
    const absl::StatusOr<Explanation> why = pair_.a.agent->Explain("b");
    EXPECT_OK(why);
    if (!why.ok()) return false;
    std::printf("%s", why->ToString().c_str());
    return why->ToString().find("injected failure of rail") != std::string::npos;
  }

  Pair pair_;
};

TEST_P(AgentRails, EveryTransferIsDoneAndToldOnce) {
  ASSERT_NO_FATAL_FAILURE(Start(GetParam()));
  const auto count = static_cast<uint64_t>(Scaled(1500));
  std::atomic<uint64_t> verified{0};
  // Each area is used again only once the transfer before was told and looked at.
  std::thread writer([&] {
    std::vector<Transfer> transfers;
    for (uint64_t i = 0; i < count; ++i) {
      EXPECT_TRUE(Eventually(kAmple, [&] { return verified + kAreas > i; })) << "before " << i;
      if (verified + kAreas <= i) break;
      if (i >= kAreas) {
        EXPECT_OK(transfers[i - kAreas].Wait(kAmple));
      }
      Pattern(i).Fill(Area(pair_.a, i));
      auto transfer = Blocks(i).Write(*pair_.a.agent, "b", Telling(std::to_string(i)));
      EXPECT_OK(transfer);
      if (!transfer.ok()) break;
      transfers.push_back(*std::move(transfer));
    }
    for (const Transfer& transfer : transfers) EXPECT_OK(transfer.Wait(kAmple));
  });
  for (uint64_t i = 0; i < count; ++i) {
    const absl::StatusOr<Notification> told = pair_.b.agent->WaitNotification(kAmple);
    EXPECT_OK(told);
    if (!told.ok()) break;
    EXPECT_EQ(told->payload, std::to_string(i));
    EXPECT_TRUE(AllArrived(RailShapeOf(i), Side::kRemote, i, Area(pair_.b, i)));
    FillWith(Area(pair_.b, i), std::byte{0});
    ++verified;
  }
  writer.join();
  EXPECT_EQ(verified, count);
  EXPECT_TRUE(Fails(pair_.b.agent->WaitNotification(milliseconds(1)), kTimedOut));
  EXPECT_TRUE(RailsFailed());
  ASSERT_OK_AND_ASSIGN(const QuiesceResult quiet, pair_.b.agent->Quiesce({}, kAmple));
  EXPECT_TRUE(quiet.quiet);
}

TEST_P(AgentRails, EveryReadIsDone) {
  ASSERT_NO_FATAL_FAILURE(Start(GetParam()));
  constexpr uint64_t count = 300;  // enough for rails to fail, under a sanitizer too
  for (uint64_t i = 0; i < count; ++i) {
    Pattern(i).Fill(Area(pair_.b, i));
    ASSERT_OK_AND_ASSIGN(const Transfer read, Blocks(i).Read(*pair_.a.agent, "b", Telling("read")));
    ASSERT_OK(read.Wait(kAmple));
    ASSERT_TRUE(AllArrived(RailShapeOf(i), Side::kLocal, i, Area(pair_.a, i)));
    FillWith(Area(pair_.a, i), std::byte{0});
    ASSERT_OK(pair_.b.agent->WaitNotification(kAmple));
  }
  EXPECT_TRUE(RailsFailed());
}

// In the midst of it transfers are cancelled, run out of time, and their memory is asked back.
TEST_P(AgentRails, EndsOfEveryKindStayWhatTheyAre) {
  ASSERT_NO_FATAL_FAILURE(Start(GetParam()));
  std::mt19937_64 random(TestSeed());
  std::vector<Transfer> transfers;
  const int count = Scaled(1000);
  for (int i = 0; i < count; ++i) {
    const auto number = static_cast<uint64_t>(i);
    TransferOptions options = Telling(std::to_string(i));
    if (random() % 4 == 0) options.deadline = microseconds(200 + random() % 5000);
    ASSERT_OK_AND_ASSIGN(Transfer transfer, Blocks(number).Write(*pair_.a.agent, "b", options));
    transfers.push_back(transfer);
    if (random() % 4 == 0) transfers[random() % transfers.size()].Cancel();
    if (random() % 64 == 0) {
      ASSERT_OK_AND_ASSIGN(const QuiesceResult quiet, pair_.b.agent->Quiesce({}, kAmple));
      EXPECT_TRUE(quiet.quiet) << quiet.pending;
    }
    if (i >= 32) (void)transfers[static_cast<size_t>(i - 32)].Wait(kAmple);
  }
  ASSERT_OK_AND_ASSIGN(const Transfer last, pair_.a.agent->Notify("b", "last", Unhurried()));
  ASSERT_OK(last.Wait(kAmple));
  std::vector<int> told(transfers.size(), 0);
  int before = -1;
  while (true) {
    ASSERT_OK_AND_ASSIGN(const Notification n, pair_.b.agent->WaitNotification(kAmple));
    if (n.payload == "last") break;
    const int number = std::stoi(n.payload);
    EXPECT_GT(number, before) << "out of order, or twice";
    before = number;
    ++told[static_cast<size_t>(number)];
  }
  size_t done = 0;
  for (size_t i = 0; i < transfers.size(); ++i) {
    (void)transfers[i].Wait(kAmple);
    const TransferState state = transfers[i].Poll();
    ASSERT_NE(state, TransferState::kActive) << i;
    EXPECT_NE(state, TransferState::kFailed) << transfers[i].status();
    done += state == TransferState::kDone ? 1 : 0;
    EXPECT_TRUE(state != TransferState::kDone || told[i] == 1) << i << " is done and was not told";
    EXPECT_TRUE(told[i] == 0 || transfers[i].delivery() != Delivery::kNotDelivered) << i;
  }
  std::printf("%zu of %zu done\n", done, transfers.size());
  EXPECT_GT(done, transfers.size() / 4);
}

INSTANTIATE_TEST_SUITE_P(Rails, AgentRails,
                         ::testing::ValuesIn(RailFlavours(0.02, milliseconds(1))), FlavourName);

class AgentLastRail : public AgentRails {};

// Every op takes its rail down, and none comes back: a transfer waits until its deadline, and what
// it had begun is quiet by then, for messages still pass.
TEST_P(AgentLastRail, ATransferWaitsForItUntilItsDeadline) {
  ASSERT_NO_FATAL_FAILURE(Start(GetParam()));
  TransferOptions options = Telling("never");
  options.deadline = milliseconds(300);
  const MachineDelay machine;
  ASSERT_OK_AND_ASSIGN(const Transfer transfer, Blocks(2).Write(*pair_.a.agent, "b", options));
  EXPECT_TRUE(Fails(transfer.Wait(kAmple), absl::StatusCode::kDeadlineExceeded,
                    {"peer b", "no rail is up: rail 0: "}));
  EXPECT_EQ(transfer.delivery(), Delivery::kNotDelivered);
  // An end waits a twentieth of the deadline for the peer's answer, half of which the machine may
  // have taken.
  EXPECT_TRUE(!transfer.quarantined() || kSlow || machine.so_far() > options.deadline / 40);
  EXPECT_OK(transfer.WaitQuiet(kAmple));
  ASSERT_OK_AND_ASSIGN(const Explanation why, pair_.a.agent->Explain("b"));
  EXPECT_NE(why.ToString().find("down since"), std::string::npos) << why.ToString();
  // Expect the number given up not to hold up the next.
  ASSERT_OK_AND_ASSIGN(const Transfer next, pair_.a.agent->Notify("b", "next", Unhurried()));
  EXPECT_OK(next.Wait(kAmple));
  ASSERT_OK_AND_ASSIGN(const Notification told, pair_.b.agent->WaitNotification(kAmple));
  EXPECT_EQ(told.payload, "next");
}

INSTANTIATE_TEST_SUITE_P(Rails, AgentLastRail,
                         ::testing::ValuesIn(RailFlavours(1, std::chrono::hours(1))), FlavourName);

class AgentRailsThatComeAtOnce : public AgentRails {};

// Rails that are down when the connection is made and up before the agent looks: it hears that they
// are up after it has seen so.
TEST_P(AgentRailsThatComeAtOnce, KeepTheConnection) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    Flavour flavour = GetParam();
    flavour.faults.seed += seed;
    ASSERT_NO_FATAL_FAILURE(Start(flavour));
    ASSERT_OK_AND_ASSIGN(const Transfer transfer,
                         Blocks(seed).Write(*pair_.a.agent, "b", Telling("here")));
    EXPECT_OK(transfer.Wait(kAmple));
    while (const auto event = pair_.a.agent->PollPeerEvent()) {
      EXPECT_NE(event->kind, PeerEventKind::kLost) << event->cause;
    }
    pair_ = {};
  }
}

INSTANTIATE_TEST_SUITE_P(Rails, AgentRailsThatComeAtOnce,
                         ::testing::ValuesIn(RailFlavours(1e-9, std::chrono::nanoseconds(1))),
                         FlavourName);

class AgentRailsAndCuts : public AgentRails {};

// The connection is lost while rails of it are being fenced.
TEST_P(AgentRailsAndCuts, TransfersEndAndAreToldAtMostOnce) {
  Flavour flavour = GetParam();
  flavour.faults.cut_probability = 0.002;
  ASSERT_NO_FATAL_FAILURE(Start(flavour));
  std::vector<Transfer> transfers;
  const int count = Scaled(1000);
  for (int i = 0; i < count; ++i) {
    ASSERT_OK_AND_ASSIGN(
        const Transfer transfer,
        Blocks(static_cast<uint64_t>(i)).Write(*pair_.a.agent, "b", Telling(std::to_string(i))));
    transfers.push_back(transfer);
    if (i >= 16) (void)transfers[static_cast<size_t>(i - 16)].Wait(kAmple);
  }
  for (const Transfer& transfer : transfers) {
    EXPECT_NE(transfer.Wait(kAmple).code(), absl::StatusCode::kDeadlineExceeded);
  }
  ASSERT_TRUE(Eventually(kAmple, [&] {
    const absl::StatusOr<Transfer> last = pair_.a.agent->Notify("b", "last", Unhurried());
    return last.ok() && last->Wait(kAmple).ok();
  }));
  std::vector<int> told(transfers.size(), 0);
  while (true) {
    ASSERT_OK_AND_ASSIGN(const Notification n, pair_.b.agent->WaitNotification(kAmple));
    if (n.payload == "last") break;
    ++told[std::stoul(n.payload)];
  }
  size_t done = 0;
  for (size_t i = 0; i < transfers.size(); ++i) {
    const bool ok = transfers[i].Poll() == TransferState::kDone;
    done += ok ? 1 : 0;
    EXPECT_LE(told[i], 1) << i;
    EXPECT_TRUE(told[i] == 1 || !ok) << i << " is done and was not told";
  }
  std::printf("%zu of %zu done\n", done, transfers.size());
  EXPECT_GT(done, transfers.size() / 4);
}

INSTANTIATE_TEST_SUITE_P(Rails, AgentRailsAndCuts,
                         ::testing::ValuesIn(RailFlavours(0.02, milliseconds(1))), FlavourName);

}  // namespace
}  // namespace kvxfer::testing
