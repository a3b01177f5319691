// Connections that break and come back without a call of the application: nothing is lost or told
// twice on the way.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/agents.h"
#include "tests/support/blocks.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"
#include "tests/support/tcp_proxy.h"

namespace kvxfer::testing {
namespace {

using std::chrono::milliseconds;

const Shape kShape{.block_bytes = 3000, .ids = 40, .layers = 1, .gap = 72};

// `b` is not drained until a test's end: credit is not what these are about.
AgentOptions Undrained(const Flavour& flavour) {
  AgentOptions options = OptionsFor(flavour, "b");
  options.max_notifications = 1'000'000;
  return options;
}

// Writes notified transfers, a few at once, until told to stop, and keeps their handles.
class Writer {
 public:
  Writer(Pair& pair, int limit) : pair_(pair), thread_([this, limit] { Run(limit); }) {}
  void Stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  ~Writer() { Stop(); }
  int ended() const { return ended_; }
  int done() const { return done_; }
  const std::vector<Transfer>& transfers() const { return transfers_; }

 private:
  void Run(int limit) {
    const BlockSet blocks(kShape, pair_.a.memory.address(), pair_.b.memory.address());
    for (int i = 0; i < limit && !stop_; ++i) {
      absl::StatusOr<Transfer> transfer =
          blocks.Write(*pair_.a.agent, "b", Telling(std::to_string(i)));
      EXPECT_OK(transfer);
      if (!transfer.ok()) return;
      transfers_.push_back(*std::move(transfer));
      if (i >= 8) {
        const bool done = transfers_[static_cast<size_t>(i - 8)].Wait(kAmple).ok();
        ++ended_;
        done_ += done ? 1 : 0;
      }
    }
  }

  Pair& pair_;
  std::atomic<bool> stop_{false};
  std::atomic<int> ended_{0};
  std::atomic<int> done_{0};
  std::vector<Transfer> transfers_;
  std::thread thread_;
};

// Every one has ended; done ones were told once, the others at most once; in order.
void CheckNotified(Pair& pair, const std::vector<Transfer>& transfers) {
  for (const Transfer& t : transfers) {
    EXPECT_NE(t.Wait(kAmple).code(), absl::StatusCode::kDeadlineExceeded) << t.status();
  }
  // The mark itself may meet a cut; any one of several ends the order.
  EXPECT_TRUE(Eventually(kAmple, [&] {
    const absl::StatusOr<Transfer> last = pair.a.agent->Notify("b", "last", Unhurried());
    return last.ok() && last->Wait(kAmple).ok();
  }));
  std::vector<int> told(transfers.size(), 0);
  size_t next = 0;
  while (true) {
    ASSERT_OK_AND_ASSIGN(const Notification n, pair.b.agent->WaitNotification(kAmple));
    if (n.payload == "last") break;
    const size_t number = std::stoul(n.payload);
    ASSERT_LT(number, told.size());
    EXPECT_GE(number, next) << "out of order";
    next = number;
    ++told[number];
  }
  size_t done = 0;
  for (size_t i = 0; i < transfers.size(); ++i) {
    const bool ok = transfers[i].Poll() == TransferState::kDone;
    done += ok ? 1 : 0;
    EXPECT_LE(told[i], 1) << i;
    EXPECT_TRUE(told[i] == 1 || !ok) << i << " is done and was not told";
    EXPECT_TRUE(told[i] == 0 || transfers[i].delivery() != Delivery::kNotDelivered) << i;
  }
  std::printf("%zu transfers, %zu done\n", transfers.size(), done);
}

// Every connection is reset a hundred times by a proxy between the two.
TEST(AgentHeal, TcpCutAHundredTimes) {
  TcpProxy proxy;
  const Flavour flavour = TcpFlavour();
  ASSERT_EQ(flavour.backend, "tcp");
  AgentOptions b = Undrained(flavour);
  b.advertise = proxy.address();
  ASSERT_OK_AND_ASSIGN(Pair pair, Pair::Create(flavour, OptionsFor(flavour, "a"), b, 256 * 1024));
  ASSERT_FALSE(pair.b.agent->listen_address().empty());
  proxy.SetTarget(pair.b.agent->listen_address());
  Pattern(4).Fill(pair.a.memory.bytes());
  std::mt19937_64 random(TestSeed());
  size_t cut = 0;
  {
    Writer writer(pair, 1'000'000);
    const int cuts = Scaled(100);
    for (int i = 0; i < cuts; ++i) {
      const int progress = writer.done() + 10 + static_cast<int>(random() % 20);
      ASSERT_TRUE(Eventually(kAmple, [&] { return writer.done() >= progress; }))
          << "no progress after cut " << i;
      cut += proxy.Cut();
    }
    writer.Stop();
    std::printf("%zu connections cut\n", cut);
    EXPECT_GE(cut, static_cast<size_t>(cuts));
    CheckNotified(pair, writer.transfers());
  }
  EXPECT_TRUE(AllArrived(kShape, Side::kRemote, 4, pair.b.memory.bytes()));
}

class AgentHealFaulty : public ::testing::TestWithParam<Flavour> {};

// The faulty backend cuts at random; the peer events say how often.
TEST_P(AgentHealFaulty, CutAtRandomAHundredTimes) {
  Flavour flavour = GetParam();
  // Some transfers are to get through. Over EFA each op carries one block, so they have many.
  flavour.faults.cut_probability = flavour.inner() == "libfabric" ? 0.002 : 0.01;
  ASSERT_OK_AND_ASSIGN(
      Pair pair, Pair::Create(flavour, OptionsFor(flavour, "a"), Undrained(flavour), 256 * 1024));
  std::atomic<int> lost{0};
  std::atomic<int> back{0};
  pair.a.agent->OnPeerEvent([&](const PeerEvent& event) {
    if (event.kind == PeerEventKind::kLost) ++lost;
    if (event.kind == PeerEventKind::kBack) ++back;
  });
  Pattern(4).Fill(pair.a.memory.bytes());
  const int cuts = Scaled(100);
  {
    Writer writer(pair, 1'000'000);
    EXPECT_TRUE(Eventually(4 * kAmple, [&] { return lost >= cuts && back >= cuts; }))
        << lost << " lost, " << back << " back, " << writer.ended() << " transfers ended";
    writer.Stop();
    std::printf("%d times lost, %d times back\n", lost.load(), back.load());
    CheckNotified(pair, writer.transfers());
  }
  pair.a.agent->OnPeerEvent(nullptr);
  EXPECT_TRUE(AllArrived(kShape, Side::kRemote, 4, pair.b.memory.bytes()));
}

INSTANTIATE_TEST_SUITE_P(Faulty, AgentHealFaulty, ::testing::ValuesIn(FaultyFlavours(1)),
                         FlavourName);

// Expect that operations that fail are carried again or fail their transfer, and nothing else.
TEST_P(AgentHealFaulty, OperationsThatFail) {
  Flavour flavour = GetParam();
  flavour.faults.error_probability = 0.02;
  ASSERT_OK_AND_ASSIGN(
      Pair pair, Pair::Create(flavour, OptionsFor(flavour, "a"), Undrained(flavour), 256 * 1024));
  Pattern(4).Fill(pair.a.memory.bytes());
  Writer writer(pair, Scaled(500));
  EXPECT_TRUE(Eventually(kAmple, [&] { return writer.ended() >= Scaled(500) - 8; }));
  writer.Stop();
  CheckNotified(pair, writer.transfers());
}

}  // namespace
}  // namespace kvxfer::testing
