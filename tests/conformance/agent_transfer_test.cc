// Writes and reads of every size and number of blocks, paged and by descriptors, with
// notifications of every size: the bytes arrive, no other byte changes, and the target is told.
#include <gtest/gtest.h>

#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/agents.h"
#include "tests/support/blocks.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"
#include "tests/support/test_peer.h"

namespace kvxfer::testing {
namespace {

struct TransferCase {
  Shape shape;
  bool read = false;
  std::optional<std::string> notification;
  NotifyOrder order = NotifyOrder::kPosted;
};

std::string PayloadOf(size_t bytes) {
  std::string payload(bytes, '\0');
  Pattern(bytes).Fill({reinterpret_cast<std::byte*>(payload.data()), bytes});
  return payload;
}

// Size and number in every pair that fits in `max_bytes`; the other choices rotate with coprime
// periods, so that they meet in every pair as well.
std::vector<TransferCase> PairwiseCases(uint64_t max_bytes) {
  const std::vector<uint64_t> sizes = {
      0, 1, 7, 4095, 4096, kMiB, (kSlow || kQuick ? 8 : 64) * kMiB + 3};
  const std::vector<uint64_t> counts = {1, 2, 17, 200, 1000, 10'000, 100'000};
  const std::vector<size_t> payloads = {0, 1, 100, 4096, 64 * 1024};
  std::vector<TransferCase> cases;
  for (uint64_t size : sizes) {
    for (uint64_t count : counts) {
      // One block of the largest size is a case whatever the limit.
      if (size * count > max_bytes && count > 1) continue;
      // Under a sanitizer or an emulator the most blocks take as long as all else: of one size
      // only.
      if (kSlow && count == counts.back() && size != 7) continue;
      for (bool read : {false, true}) {
        // The longest cases take turns at writing and reading.
        if (size * count > 32 * kMiB && read != (count % 2 == 0)) continue;
        const size_t i = cases.size();
        TransferCase c;
        c.read = read;
        const uint32_t layers = count >= 1000 && i % 3 != 0 ? 4 : 1;
        c.shape = {.block_bytes = size,
                   .ids = static_cast<uint32_t>(count / layers),
                   .layers = layers,
                   .gap = i % 5 < 2 ? 0u : 64u,
                   .paged = i % 4 < 2,
                   .seed = i};
        if (size == 0 && c.shape.gap == 0) c.shape.gap = 1;
        if (i % 7 != 6) c.notification = PayloadOf(payloads[i % payloads.size()]);
        if (i % 11 >= 8) c.order = NotifyOrder::kAnyOrder;
        cases.push_back(c);
      }
    }
  }
  return cases;
}

// The most memory any of the cases needs at one side.
uint64_t MemoryFor(const std::vector<TransferCase>& cases) {
  uint64_t most = 1;
  for (const TransferCase& c : cases) most = std::max(most, c.shape.memory_bytes());
  return most;
}

class AgentTransfer : public ::testing::TestWithParam<Flavour> {};

// The memory registered for one case is exactly what it needs, so that a byte beyond it is seen.
void RunCase(Pair& pair, const Flavour& flavour, const TransferCase& c) {
  SCOPED_TRACE(c.shape.ToString() + (c.read ? " read" : " write"));
  const uint64_t bytes = c.shape.memory_bytes();
  ASSERT_OK_AND_ASSIGN(TestMemory local, TestMemory::Allocate(flavour.memory, bytes));
  ASSERT_OK_AND_ASSIGN(TestMemory remote, TestMemory::Allocate(flavour.memory, bytes));
  ASSERT_OK_AND_ASSIGN(const RegionId local_region,
                       pair.a.agent->RegisterMemory(local.span(), Access::kNone));
  ASSERT_OK_AND_ASSIGN(const RegionId remote_region,
                       pair.b.agent->RegisterMemory(
                           remote.span(), c.read ? Access::kRemoteRead : Access::kRemoteWrite));
  ASSERT_OK(Introduce(*pair.a.agent, *pair.b.agent));

  const uint64_t seed = c.shape.seed + 1;
  Pattern(seed).Fill((c.read ? remote : local).bytes());
  const BlockSet blocks(c.shape, local.address(), remote.address());
  TransferOptions options = Unhurried(c.order);
  options.notification = c.notification;
  ASSERT_OK_AND_ASSIGN(const Transfer transfer, c.read ? blocks.Read(*pair.a.agent, "b", options)
                                                       : blocks.Write(*pair.a.agent, "b", options));
  ASSERT_OK(transfer.Wait(kAmple));
  EXPECT_EQ(transfer.Poll(), TransferState::kDone);
  EXPECT_OK(transfer.status());
  EXPECT_FALSE(transfer.quarantined());
  EXPECT_EQ(transfer.peer(), "b");
  EXPECT_EQ(transfer.delivery(), c.notification ? Delivery::kDelivered : Delivery::kNone);
  const TransferStats stats = transfer.stats();
  EXPECT_EQ(stats.bytes, c.shape.block_bytes * c.shape.blocks());
  EXPECT_EQ(stats.blocks, c.shape.blocks());
  EXPECT_EQ(stats.path, stats.bytes == 0 ? flavour.backend : flavour.path());
  EXPECT_GE(stats.total, stats.wire);

  EXPECT_TRUE(AllArrived(c.shape, c.read ? Side::kLocal : Side::kRemote, seed,
                         (c.read ? local : remote).bytes()));
  EXPECT_TRUE(local.GuardsIntact());
  EXPECT_TRUE(remote.GuardsIntact());
  if (c.notification) {
    ASSERT_OK_AND_ASSIGN(const Notification n, pair.b.agent->WaitNotification(kAmple));
    EXPECT_EQ(n.payload, *c.notification);
    EXPECT_EQ(n.peer, "a");
    EXPECT_EQ(n.transfer, transfer.id());
    EXPECT_EQ(n.incarnation, pair.a.agent->incarnation());
  }
  EXPECT_FALSE(pair.b.agent->PollNotification().has_value());
  EXPECT_OK(pair.a.agent->DeregisterMemory(local_region, kAmple));
  EXPECT_OK(pair.b.agent->DeregisterMemory(remote_region, kAmple));
}

TEST_P(AgentTransfer, EverySizeAndNumberOfBlocks) {
  const uint64_t limit = GetParam().max_case_bytes() / (kSlow || kQuick ? 4 : 1);
  ASSERT_OK_AND_ASSIGN(Pair pair, Pair::Create(GetParam(), 4096));
  for (const TransferCase& c : PairwiseCases(limit)) {
    RunCase(pair, GetParam(), c);
    if (HasFatalFailure()) return;
  }
}

TEST_P(AgentTransfer, NotificationsAloneOfEverySize) {
  ASSERT_OK_AND_ASSIGN(Pair pair, Pair::Create(GetParam(), 4096));
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{255}, size_t{4096}, kMaxNotificationBytes}) {
    ASSERT_OK_AND_ASSIGN(const Transfer transfer,
                         pair.a.agent->Notify("b", PayloadOf(bytes), Unhurried()));
    ASSERT_OK(transfer.Wait(kAmple)) << bytes;
    EXPECT_EQ(transfer.delivery(), Delivery::kDelivered);
    EXPECT_EQ(transfer.stats().bytes, 0u);
    ASSERT_OK_AND_ASSIGN(const Notification n, pair.b.agent->WaitNotification(kAmple));
    EXPECT_EQ(n.payload, PayloadOf(bytes));
  }
}

// Expect that transfers that nobody waits for still end and tell: the initiator calls nothing.
TEST_P(AgentTransfer, TheTargetIsToldWithoutAnyCallOfTheInitiator) {
  ASSERT_OK_AND_ASSIGN(Pair pair, Pair::Create(GetParam(), kMiB));
  const Shape shape{.block_bytes = 4096, .ids = 100, .layers = 1, .gap = 0, .paged = true};
  Pattern(5).Fill(pair.a.memory.bytes());
  const BlockSet blocks(shape, pair.a.memory.address(), pair.b.memory.address());
  ASSERT_OK_AND_ASSIGN(const Transfer transfer, blocks.Write(*pair.a.agent, "b", Telling("told")));
  ASSERT_OK_AND_ASSIGN(const Notification n, pair.b.agent->WaitNotification(kAmple));
  EXPECT_EQ(n.payload, "told");
  EXPECT_TRUE(AllArrived(shape, Side::kRemote, 5, pair.b.memory.bytes()));
  EXPECT_TRUE(Eventually(kAmple, [&] { return transfer.Poll() == TransferState::kDone; }));
}

INSTANTIATE_TEST_SUITE_P(All, AgentTransfer, ::testing::ValuesIn(AllFlavours()), FlavourName);

// The same transfers with each agent in a process, or on a thread, of its own; each side checks
// its own memory.
class PeersTransfer : public ::testing::TestWithParam<std::tuple<Where, Flavour>> {};

std::string PeersName(const ::testing::TestParamInfo<std::tuple<Where, Flavour>>& info) {
  return std::string(std::get<0>(info.param) == Where::kThread ? "Threads" : "Processes") +
         std::get<1>(info.param).name;
}

void RunCaseBetween(TestPeer& a, TestPeer& b, const TransferCase& c) {
  SCOPED_TRACE(c.shape.ToString() + (c.read ? " read" : " write"));
  const uint64_t seed = c.shape.seed + 1;
  ASSERT_OK(a.Clear());
  ASSERT_OK(b.Clear());
  ASSERT_OK((c.read ? b : a).Fill(seed));
  ASSERT_OK_AND_ASSIGN(const uint64_t remote, b.MemoryAddress());
  TransferOptions options = Unhurried();
  options.notification = c.notification;
  ASSERT_OK_AND_ASSIGN(const int transfer, a.Post(c.read, "b", remote, c.shape, options));
  if (c.notification) {
    ASSERT_OK_AND_ASSIGN(const std::string told, b.WaitNotification(kAmple));
    EXPECT_EQ(told, *c.notification);
    // Told means visible, before the initiator has been asked anything.
    if (!c.read) {
      EXPECT_OK(b.CheckArrived(c.shape, Side::kRemote, seed));
    }
  }
  ASSERT_OK_AND_ASSIGN(const TestTransferEnd end, a.WaitEnd(transfer, kAmple));
  ASSERT_OK(end.status);
  EXPECT_EQ(end.state, TransferState::kDone);
  EXPECT_OK((c.read ? a : b).CheckArrived(c.shape, c.read ? Side::kLocal : Side::kRemote, seed));
}

TEST_P(PeersTransfer, WriteAndReadBothWays) {
  const auto& [where, flavour] = GetParam();
  ASSERT_OK_AND_ASSIGN(const auto a, TestPeer::Start(where));
  ASSERT_OK_AND_ASSIGN(const auto b, TestPeer::Start(where));
  const std::vector<TransferCase> cases = PairwiseCases(kSlow ? 2 * kMiB : 16 * kMiB);
  std::vector<TransferCase> some;
  for (size_t i = 0; i < cases.size(); ++i) {
    const bool large = cases[i].shape.block_bytes > 4 * kMiB;
    if (i % 3 == 0 && !(large && (kSlow || flavour.faulty()))) some.push_back(cases[i]);
  }
  const uint64_t bytes = MemoryFor(some);
  ASSERT_OK(a->Create(OptionsFor(flavour, "a"), flavour.memory, bytes));
  ASSERT_OK(b->Create(OptionsFor(flavour, "b"), flavour.memory, bytes));
  ASSERT_OK(Introduce(*a, *b));
  for (const TransferCase& c : some) {
    RunCaseBetween(*a, *b, c);
    if (HasFatalFailure()) return;
  }
  // And the other way round, over the path that b opens.
  ASSERT_OK(b->Fill(77));
  ASSERT_OK(a->Clear());
  ASSERT_OK_AND_ASSIGN(const uint64_t remote, a->MemoryAddress());
  const Shape shape{.block_bytes = 4096, .ids = 16, .layers = 2, .gap = 64, .paged = true};
  ASSERT_OK_AND_ASSIGN(const int back, b->Post(false, "a", remote, shape, Telling("back")));
  ASSERT_OK_AND_ASSIGN(const std::string told, a->WaitNotification(kAmple));
  EXPECT_EQ(told, "back");
  EXPECT_OK(a->CheckArrived(shape, Side::kRemote, 77));
  ASSERT_OK_AND_ASSIGN(const TestTransferEnd end, b->WaitEnd(back, kAmple));
  EXPECT_OK(end.status);
}

INSTANTIATE_TEST_SUITE_P(Processes, PeersTransfer,
                         ::testing::Combine(::testing::Values(Where::kProcess),
                                            ::testing::ValuesIn(ProcessFlavours())),
                         PeersName);
INSTANTIATE_TEST_SUITE_P(Threads, PeersTransfer,
                         ::testing::Combine(::testing::Values(Where::kThread),
                                            ::testing::ValuesIn(PlainFlavours())),
                         PeersName);

}  // namespace
}  // namespace kvxfer::testing
