// What a session owes both sides when connections, peers and regions come and go under it.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "tests/support/agents.h"
#include "tests/support/blocks.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"
#include "tests/support/tcp_proxy.h"

namespace kvxfer::testing {
namespace {

using std::chrono::milliseconds;

// A pair over tcp; what `a` says to `b` passes a proxy.
struct ProxiedPair {
  TcpProxy proxy;
  Pair pair;

  void Create(const AgentOptions& a, AgentOptions b, size_t bytes) {
    b.advertise = proxy.address();
    absl::StatusOr<Pair> made = Pair::Create(TcpFlavour(), a, b, bytes);
    ASSERT_OK(made);
    pair = *std::move(made);
    Restore();
  }
  void Create() { Create(OptionsFor(TcpFlavour(), "a"), OptionsFor(TcpFlavour(), "b"), 64 * 1024); }
  void Restore() { proxy.SetTarget(pair.b.agent->listen_address()); }
  // Cut, and nothing is connected anew until Restore.
  void CutOff() {
    proxy.SetTarget("127.0.0.1:1");
    proxy.Cut();
  }
  ~ProxiedPair() { pair.a.agent.reset(); }
};

// Waits until `agent` has said `kind` of a peer.
bool Hears(Agent& agent, PeerEventKind kind) {
  return Eventually(kAmple, [&] {
    const std::optional<PeerEvent> event = agent.PollPeerEvent();
    return event.has_value() && event->kind == kind;
  });
}

class AgentSession : public ::testing::TestWithParam<Flavour> {};

TEST_P(AgentSession, CreditComesBackFromWhatWasNotDelivered) {
  AgentOptions b = OptionsFor(GetParam(), "b");
  b.max_notifications = 4;
  ASSERT_OK_AND_ASSIGN(Pair pair,
                       Pair::Create(GetParam(), OptionsFor(GetParam(), "a"), b, 64 * 1024));
  const std::atomic<uint32_t> never{0};
  const BlockSet blocks({}, pair.a.memory.address(), pair.b.memory.address());
  for (int i = 0; i < 20; ++i) {
    TransferOptions options = Telling("x");
    options.ready = &never;
    options.order = i % 2 == 0 ? NotifyOrder::kPosted : NotifyOrder::kAnyOrder;
    ASSERT_OK_AND_ASSIGN(const Transfer transfer, blocks.Write(*pair.a.agent, "b", options));
    if (i % 3 == 0) std::this_thread::sleep_for(milliseconds(1));
    transfer.Cancel();
    EXPECT_EQ(transfer.Wait(kAmple).code(), absl::StatusCode::kCancelled);
  }
  for (int i = 0; i < 4; ++i) {
    ASSERT_OK_AND_ASSIGN(const Transfer told, pair.a.agent->Notify("b", "y", Unhurried()));
    ASSERT_OK(told.Wait(kAmple));
  }
}

// Removing a peer ends what is in flight and lets the target say that it is quiet.
TEST_P(AgentSession, RemovingAPeerLeavesNothingQuarantined) {
  const Shape shape{.block_bytes = 256 * 1024, .ids = 200, .layers = 1, .gap = 0, .paged = true};
  ASSERT_OK_AND_ASSIGN(Pair pair, Pair::Create(GetParam(), shape.memory_bytes()));
  const BlockSet blocks(shape, pair.a.memory.address(), pair.b.memory.address());
  for (int i = 0; i < Scaled(10); ++i) {
    ASSERT_OK_AND_ASSIGN(const Transfer write,
                         blocks.Write(*pair.a.agent, "b", Telling(std::to_string(i))));
    std::this_thread::sleep_for(milliseconds(i));
    ASSERT_OK(pair.a.agent->RemovePeer("b"));
    const absl::Status end = write.Wait(kAmple);
    EXPECT_TRUE(end.ok() || end.code() == absl::StatusCode::kCancelled) << end;
    EXPECT_OK(write.WaitQuiet(kAmple));
    EXPECT_NE(write.delivery(), Delivery::kUnknown);
    ASSERT_OK(Introduce(*pair.a.agent, *pair.b.agent));
  }
}

// The same where the peer is added again at once: the new session takes the old one's place before
// its aborts were answered.
TEST_P(AgentSession, ReplacingAPeerByItselfLeavesNothingQuarantined) {
  const Shape shape{.block_bytes = 256 * 1024, .ids = 200, .layers = 1, .gap = 0, .paged = true};
  ASSERT_OK_AND_ASSIGN(Pair pair, Pair::Create(GetParam(), shape.memory_bytes()));
  const BlockSet blocks(shape, pair.a.memory.address(), pair.b.memory.address());
  for (int i = 0; i < Scaled(10); ++i) {
    ASSERT_OK_AND_ASSIGN(const Transfer write, blocks.Write(*pair.a.agent, "b", Unhurried()));
    std::this_thread::sleep_for(milliseconds(i));
    ASSERT_OK(pair.a.agent->RemovePeer("b"));
    ASSERT_OK(Introduce(*pair.a.agent, *pair.b.agent));
    ASSERT_OK_AND_ASSIGN(const Transfer next, pair.a.agent->Notify("b", "x", Unhurried()));
    EXPECT_OK(next.Wait(kAmple));
    write.Wait(kAmple).IgnoreError();
    EXPECT_OK(write.WaitQuiet(kAmple));
  }
}

// A region that is registered, written and deregistered again and again is mapped by nobody then.
TEST_P(AgentSession, NoHoldOnMemoryThatItsOwnerFreed) {
  ASSERT_OK_AND_ASSIGN(Pair pair, Pair::Create(GetParam(), 64 * 1024));
  const auto mappings = [] {
    std::ifstream maps("/proc/self/maps");
    int count = 0;
    for (std::string line; std::getline(maps, line);)
      count += line.find("memfd:") != std::string::npos;
    return count;
  };
  int before = 0;
  for (int i = 0; i < 20; ++i) {
    ASSERT_OK_AND_ASSIGN(TestMemory memory, TestMemory::Allocate(GetParam().memory, 64 * 1024));
    ASSERT_OK_AND_ASSIGN(const RegionId region,
                         pair.b.agent->RegisterMemory(memory.span(), Access::kReadWrite));
    ASSERT_OK(Introduce(*pair.a.agent, *pair.b.agent));
    ASSERT_OK_AND_ASSIGN(const Transfer write,
                         BlockSet({}, pair.a.memory.address(), memory.address())
                             .Write(*pair.a.agent, "b", Unhurried()));
    ASSERT_OK(write.Wait(kAmple));
    ASSERT_OK(pair.b.agent->DeregisterMemory(region, kAmple));
    if (i == 1) before = mappings();
  }
  EXPECT_LE(mappings(), before);
}

// Expect that metadata which names a region comes to nothing where the region was deregistered
// meanwhile, though no metadata had named it before.
TEST_P(AgentSession, RegionRevokedBeforeItWasKnown) {
  ASSERT_OK_AND_ASSIGN(Pair pair, Pair::Create(GetParam(), 64 * 1024));
  ASSERT_OK_AND_ASSIGN(const Transfer first, pair.a.agent->Notify("b", "x", Unhurried()));
  ASSERT_OK(first.Wait(kAmple));
  ASSERT_OK_AND_ASSIGN(TestMemory memory, TestMemory::Allocate(GetParam().memory, 64 * 1024));
  ASSERT_OK_AND_ASSIGN(const RegionId region,
                       pair.b.agent->RegisterMemory(memory.span(), Access::kReadWrite));
  ASSERT_OK_AND_ASSIGN(const std::string metadata, pair.b.agent->Metadata());
  ASSERT_OK(pair.b.agent->DeregisterMemory(region, kAmple));
  ASSERT_OK(pair.a.agent->AddPeer(metadata));
  Pattern(3).Fill(pair.a.memory.bytes());
  const absl::StatusOr<Transfer> late = BlockSet({}, pair.a.memory.address(), memory.address())
                                            .Write(*pair.a.agent, "b", Unhurried());
  EXPECT_FALSE(late.ok() && late->Wait(kAmple).ok());
  EXPECT_EQ(FirstNonZero(memory.bytes()), kNoMismatch);
}

INSTANTIATE_TEST_SUITE_P(All, AgentSession, ::testing::ValuesIn(PlainFlavours()), FlavourName);

// A notification that waited for its turn when its initiator vanished: its transfer is done, and
// the one before it can never be.
TEST(AgentSessionTcp, WhatIsDoneIsToldWhenItsSessionEnds) {
  ProxiedPair p;
  p.Create();
  const std::atomic<uint32_t> never{0};
  TransferOptions held = Telling("held");
  held.ready = &never;
  ASSERT_OK_AND_ASSIGN(const Transfer first,
                       BlockSet({}, p.pair.a.memory.address(), p.pair.b.memory.address())
                           .Write(*p.pair.a.agent, "b", held));
  ASSERT_OK_AND_ASSIGN(const Transfer second, p.pair.a.agent->Notify("b", "x", Unhurried()));
  ASSERT_OK(second.Wait(kAmple));
  EXPECT_FALSE(p.pair.b.agent->PollNotification().has_value());
  p.CutOff();
  ASSERT_TRUE(Hears(*p.pair.b.agent, PeerEventKind::kLost));
  ASSERT_OK(p.pair.b.agent->Quiesce({}, kAmple));
  ASSERT_OK_AND_ASSIGN(const Notification told, p.pair.b.agent->WaitNotification(kAmple));
  EXPECT_EQ(told.payload, "x");
  EXPECT_FALSE(p.pair.b.agent->PollNotification().has_value());
}

// Expect that what was queued when a Quiesce came does not land after a loss of the connection has
// answered it.
TEST(AgentSessionTcp, NothingQueuedLandsAfterALossAnsweredQuiesce) {
  for (int round = 0; round < Scaled(20); ++round) {
    ProxiedPair p;
    AgentOptions a = OptionsFor(TcpFlavour(), "a");
    a.max_active_transfers = 1;
    p.Create(a, OptionsFor(TcpFlavour(), "b"), 64 * 1024);
    Pattern(3).Fill(p.pair.a.memory.bytes());
    std::atomic<uint32_t> ready{0};
    TransferOptions held = Unhurried();
    held.ready = &ready;
    const BlockSet blocks({}, p.pair.a.memory.address(), p.pair.b.memory.address());
    ASSERT_OK_AND_ASSIGN(const Transfer first, blocks.Write(*p.pair.a.agent, "b", held));
    ASSERT_OK_AND_ASSIGN(const Transfer second, blocks.Write(*p.pair.a.agent, "b", Unhurried()));
    ASSERT_TRUE(Hears(*p.pair.b.agent, PeerEventKind::kJoined));
    ASSERT_OK_AND_ASSIGN(QuiesceResult asked, p.pair.b.agent->Quiesce({}, milliseconds(0)));
    ASSERT_FALSE(asked.quiet);
    p.proxy.Cut();
    ASSERT_TRUE(Eventually(kAmple, [&] {
      const absl::StatusOr<bool> quiet = p.pair.b.agent->IsQuiet(asked.token);
      return !quiet.ok() || *quiet;
    }));
    const std::vector<std::byte> then(p.pair.b.memory.bytes().begin(),
                                      p.pair.b.memory.bytes().end());
    first.Wait(kAmple).IgnoreError();
    second.Wait(kAmple).IgnoreError();
    EXPECT_TRUE(std::ranges::equal(then, p.pair.b.memory.bytes())) << "landed after quiet";
  }
}

// A peer that was idle for long, or was asked to be quiet, while the connection was gone: the next
// transfer knows nothing of that.
TEST(AgentSessionTcp, AnIdleSessionThatWasForgottenBeginsAnew) {
  ProxiedPair p;
  p.Create();
  for (int round = 0; round < 3; ++round) {
    ASSERT_OK_AND_ASSIGN(const Transfer told, p.pair.a.agent->Notify("b", "x", Unhurried()));
    ASSERT_OK(told.Wait(kAmple)) << "round " << round;
    p.CutOff();
    ASSERT_TRUE(Hears(*p.pair.a.agent, PeerEventKind::kLost));
    ASSERT_TRUE(Hears(*p.pair.b.agent, PeerEventKind::kLost));
    ASSERT_OK(p.pair.b.agent->Quiesce({}, kAmple));  // sweeps
    p.Restore();
  }
}

// Two connections carry one session: losing either loses no frame.
TEST(AgentSessionTcp, LosingOneOfTwoConnectionsLosesNothing) {
  TcpProxy proxy;
  AgentOptions a = OptionsFor(TcpFlavour(), "a");
  AgentOptions b = OptionsFor(TcpFlavour(), "b");
  a.backends = b.backends = {"tcp", "shm"};  // control goes over tcp where it is up
  b.advertise = proxy.address();
  ASSERT_OK_AND_ASSIGN(Pair pair, Pair::Create(TcpFlavour(), a, b, 256 * 1024));
  proxy.SetTarget(pair.b.agent->listen_address());
  const Shape shape{.block_bytes = 4096, .ids = 16};
  const BlockSet blocks(shape, pair.a.memory.address(), pair.b.memory.address());
  std::atomic<bool> stop{false};
  std::thread cutter([&] {
    std::minstd_rand random(static_cast<unsigned>(TestSeed()));
    while (!stop) {
      std::this_thread::sleep_for(std::chrono::microseconds(500 + random() % 3000));
      proxy.Cut();
    }
  });
  int done = 0;
  for (int i = 0; i < Scaled(2000); ++i) {
    TransferOptions options = Telling("x");
    if (i % 2 == 0) options.backend = "shm";
    ASSERT_OK_AND_ASSIGN(const Transfer transfer, blocks.Write(*pair.a.agent, "b", options));
    const absl::Status end = transfer.Wait(kAmple);
    done += end.ok() ? 1 : 0;
    EXPECT_TRUE(end.ok() || end.code() == absl::StatusCode::kUnavailable) << end;
    while (pair.b.agent->PollNotification().has_value()) {
    }
    if (HasFailure()) break;
  }
  stop = true;
  cutter.join();
  EXPECT_GT(done, 0);
  // Both ways are whole again.
  for (const char* backend : {"shm", "tcp"}) {
    TransferOptions options = Telling("x");
    options.backend = backend;
    ASSERT_OK_AND_ASSIGN(const Transfer last, blocks.Write(*pair.a.agent, "b", options));
    EXPECT_OK(last.Wait(kAmple)) << backend;
  }
}

// What one side acknowledges rides with what it begins, over either side's connection. Expect every
// question and every answer once and in order, and each told as done, though the connection that
// carries both is lost again and again.
void Converse(Pair& pair, int rounds, absl::FunctionRef<void(int)> meanwhile) {
  ASSERT_OK(Introduce(*pair.b.agent, *pair.a.agent));
  std::vector<Transfer> said;
  for (int i = 0; i < rounds; ++i) {
    meanwhile(i);
    const std::string text = std::to_string(i);
    ASSERT_OK_AND_ASSIGN(Transfer question, pair.a.agent->Notify("b", text, Unhurried()));
    const auto asked = pair.b.agent->WaitNotification(kAmple);
    ASSERT_TRUE(asked.ok()) << asked.status() << "; the question: " << question.status();
    ASSERT_EQ(asked->payload, text);
    ASSERT_OK_AND_ASSIGN(Transfer answer, pair.b.agent->Notify("a", text, Unhurried()));
    const auto answered = pair.a.agent->WaitNotification(kAmple);
    ASSERT_TRUE(answered.ok()) << answered.status() << "; the answer: " << answer.status();
    ASSERT_EQ(answered->payload, text);
    said.push_back(std::move(question));
    said.push_back(std::move(answer));
  }
  for (Transfer& one : said) ASSERT_OK(one.Wait(kAmple));
  EXPECT_FALSE(pair.a.agent->PollNotification().has_value());
  EXPECT_FALSE(pair.b.agent->PollNotification().has_value());
}

TEST_P(AgentSession, Conversation) {
  ASSERT_OK_AND_ASSIGN(Pair pair, Pair::Create(GetParam(), 64 * 1024));
  Converse(pair, Scaled(300), [](int) {});
}

TEST(AgentSessionTcp, AConversationOverConnectionsThatAreLost) {
  ProxiedPair p;
  p.Create();
  Converse(p.pair, Scaled(300), [&](int i) {
    if (i % 7 == 6) p.proxy.Cut();
  });
}

}  // namespace
}  // namespace kvxfer::testing
