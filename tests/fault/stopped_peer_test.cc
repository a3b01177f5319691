// A peer that stops while the application waits for it is reported within
// AgentOptions::suspect_after, whatever is waited for: the peer event says so, and what ends by its
// time-out says how long the peer has been silent.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstdio>
#include <future>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/agents.h"
#include "tests/support/kv_nodes.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"
#include "tests/support/test_peer.h"

namespace kvxfer::testing {
namespace {

using std::chrono::milliseconds;

constexpr uint32_t kBlocks = 16;
constexpr uint64_t kTokens = kBlocks * 16;
const KvSlab kSlab{.model = {.layers = 4, .heads = 2, .k_size = 64, .v_size = 64},
                   .shard = {.layers = 4},
                   .blocks = kBlocks};

std::vector<uint32_t> Ids() {
  std::vector<uint32_t> ids(kBlocks);
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

// An agent here, "a", and one in another process, "b", which is stopped. Each has a KV cache.
class StoppedPeer : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const Flavour flavour = PlainFlavour(GetParam());
    AgentOptions options = OptionsFor(flavour, "a");
    options.heartbeat = Bound(milliseconds(100));
    options.suspect_after = suspect_after_;
    ASSERT_OK_AND_ASSIGN(a_, Node::Create(options, flavour.memory, kSlab.bytes()));
    ASSERT_OK(kSlab.Register(*a_.agent, a_.memory.address()));
    ASSERT_OK_AND_ASSIGN(b_, TestPeer::Start(Where::kProcess));
    ASSERT_OK(b_->Create(OptionsFor(flavour, "b"), flavour.memory, kSlab.bytes()));
    ASSERT_OK(b_->RegisterKvCache(kSlab));
    ASSERT_OK(Introduce(*a_.agent, *b_));
  }

  Agent& agent() { return *a_.agent; }
  // This side has connected.
  void ConnectFromHere() {
    ASSERT_OK_AND_ASSIGN(const Transfer hello, agent().Notify("b", "hello", Unhurried()));
    ASSERT_OK(hello.Wait(kAmple));
  }
  // The peer has: it alone pings while nothing is awaited.
  void ConnectFromThere() {
    ASSERT_OK_AND_ASSIGN(const int hello,
                         b_->Post(false, "a", a_.memory.address(), {}, Unhurried()));
    ASSERT_OK_AND_ASSIGN(const TestTransferEnd end, b_->WaitEnd(hello, kAmple));
    ASSERT_OK(end.status);
  }
  void Stop() {
    b_->process().Signal(SIGSTOP);
    b_->process().WaitStopped();
    while (agent().PollPeerEvent().has_value()) {
    }
  }

  // It is stopped and awaited, both since then at the latest. How soon that is to be is held by a
  // test of PeerWatch, which has a clock of its own: busy machines stop this process too.
  void ExpectReport(Time since) {
    const PeerEvent event = Next(PeerEventKind::kSuspect);
    const Duration took = Now() - since;
    std::printf("%s: after %.0f ms: %s\n", GetParam().c_str(), Milliseconds(took),
                event.cause.ToString().c_str());
    EXPECT_TRUE(Fails(event.cause, absl::StatusCode::kUnavailable, {"no sign of life for"}));
  }
  // Expect that it is there again, as if nothing had been.
  void GoOn() {
    b_->process().Signal(SIGCONT);
    EXPECT_EQ(Next(PeerEventKind::kBack).peer, "b");
  }
  PeerEvent Next(PeerEventKind kind) {
    std::optional<PeerEvent> event;
    EXPECT_TRUE(Eventually(kAmple, [&] {
      event = agent().PollPeerEvent();
      return event.has_value();
    }));
    if (!event.has_value()) return {};
    EXPECT_EQ(event->kind, kind) << ToString(event->kind);
    EXPECT_EQ(event->peer, "b");
    return *event;
  }
  // After the report. On a busy machine the end may have come before it.
  static void ExpectEnd(const Transfer& transfer) {
    if (transfer.Poll() != TransferState::kActive) return;
    EXPECT_TRUE(Fails(transfer.Wait(kAmple), absl::StatusCode::kDeadlineExceeded,
                      {"peer b", "no sign of life for"}));
  }

  template <typename Result>
  static bool Waits(const std::future<Result>& result) {
    return result.wait_for(Duration::zero()) != std::future_status::ready;
  }

  // While a call waits for so many layers, of which `there` says how many have come.
  void ExpectReportToWaitLayers(uint32_t layers, const char* there) {
    const Time began = Now();
    auto end = std::async(std::launch::async, [&] {
      return agent().WaitLayers(CacheName("kv"), RequestName("r"), layers, long_);
    });
    ExpectReport(began);
    if (Waits(end)) {
      EXPECT_TRUE(Fails(end.get(), kTimedOut, {there, "peer b: no sign of life for"}));
    }
  }

  const Duration suspect_after_ = Bound(milliseconds(500));
  // Of what is awaited: long after the report.
  const Duration long_ = 3 * suspect_after_;
  Node a_;
  std::unique_ptr<TestPeer> b_;
  const std::vector<uint32_t> ids_ = Ids();
  const std::vector<std::string> group_{"b"};
};

TEST_P(StoppedPeer, WhileItIsWrittenTo) {
  ASSERT_NO_FATAL_FAILURE(ConnectFromHere());
  ASSERT_OK_AND_ASSIGN(const uint64_t base, b_->MemoryAddress());
  Stop();
  const Time began = Now();
  TransferOptions options = Telling("x");
  options.deadline = long_;
  ASSERT_OK_AND_ASSIGN(const Transfer transfer,
                       BlockSet({}, a_.memory.address(), base).Write(agent(), "b", options));
  ExpectReport(began);
  ExpectEnd(transfer);
  GoOn();
  EXPECT_OK(transfer.WaitQuiet(kAmple));
}

TEST_P(StoppedPeer, WhileAGroupIsWrittenTo) {
  ASSERT_NO_FATAL_FAILURE(ConnectFromHere());
  Stop();
  const Time began = Now();
  ASSERT_OK_AND_ASSIGN(
      const Transfer transfer,
      agent().WriteBlocks(
          group_,
          {.cache = CacheName("kv"), .local_ids = ids_, .remote_ids = ids_, .tokens = kTokens},
          {.request = RequestName("r"), .transfer = {.deadline = long_}}));
  ExpectReport(began);
  ExpectEnd(transfer);
  GoOn();
}

TEST_P(StoppedPeer, WhileLayersOfItsRequestAreAwaited) {
  ASSERT_OK_AND_ASSIGN(
      const int part,
      b_->PostKv({.peer = "a",
                  .ids = ids_,
                  .tokens = kTokens,
                  .layers = 2,
                  .options = {.request = RequestName("r"), .transfer = {.deadline = kAmple}}}));
  ASSERT_OK_AND_ASSIGN(const TestTransferEnd sent, b_->WaitEnd(part, kAmple));
  ASSERT_OK(sent.status);
  Stop();
  ExpectReportToWaitLayers(4, "2 of 4 layers");
  GoOn();
}

// Nobody knows who is to write it.
TEST_P(StoppedPeer, WhileARequestIsAwaitedThatHasNotBegun) {
  ASSERT_NO_FATAL_FAILURE(ConnectFromThere());
  Stop();
  ExpectReportToWaitLayers(1, "0 of 1 layers");
  GoOn();
}

TEST_P(StoppedPeer, WhileItIsAskedToBeQuiet) {
  ASSERT_NO_FATAL_FAILURE(ConnectFromThere());
  Stop();
  const Time began = Now();
  auto end = std::async(std::launch::async, [&] { return agent().Quiesce({.peer = "b"}, long_); });
  ExpectReport(began);
  const bool waits = Waits(end);
  const absl::StatusOr<QuiesceResult> result = end.get();
  ASSERT_OK(result);
  EXPECT_FALSE(result->quiet);
  if (waits) {
    EXPECT_TRUE(result->pending.starts_with("b (no sign of life for")) << result->pending;
  }
  GoOn();
  EXPECT_TRUE(Eventually(kAmple, [&] { return agent().IsQuiet(result->token).value_or(false); }));
}

TEST_P(StoppedPeer, WhileItsLeaseIsAskedFor) {
  ASSERT_NO_FATAL_FAILURE(ConnectFromHere());
  Stop();
  const Time began = Now();
  ASSERT_OK_AND_ASSIGN(
      const Transfer transfer,
      agent().ReadBlocks(
          group_,
          {.cache = CacheName("kv"), .local_ids = ids_, .remote_ids = ids_, .tokens = kTokens},
          {.lease = LeaseName("l"), .lease_wait = kAmple, .transfer = {.deadline = long_}}));
  ExpectReport(began);
  ExpectEnd(transfer);
  GoOn();
}

// Its fetch keeps a lease of this agent from ending.
TEST_P(StoppedPeer, WhileItFetchesUnderALease) {
  ASSERT_OK(b_->PostKv({.read = true,
                        .peer = "a",
                        .ids = ids_,
                        .tokens = kTokens,
                        .options = {.lease = LeaseName("l"),
                                    .lease_wait = kAmple,
                                    .transfer = {.deadline = kAmple * 2}}})
                .status());
  ASSERT_TRUE(Eventually(kAmple, [&] { return agent().CountKv()->reads_waiting == 1; }));
  Stop();
  const Time began = Now();
  ASSERT_OK(agent().LeaseBlocks(CacheName("kv"), LeaseName("l"), ids_, kAmple));
  ExpectReport(began);
  GoOn();
}

INSTANTIATE_TEST_SUITE_P(Plain, StoppedPeer, ::testing::Values("Tcp", "ShmMapped", "ShmAttached"),
                         [](const auto& flavour) { return flavour.param; });

}  // namespace
}  // namespace kvxfer::testing
