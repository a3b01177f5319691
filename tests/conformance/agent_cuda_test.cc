// GPU memory between agents, each kind of memory against each: over backends that do not reach it,
// by way of staging memory. That the whole suite holds with it the flavours see to; here is what is
// told of the path, how buffers are shared, and what goes wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kvxfer/agent.h"
#include "kvxfer/backend.h"
#include "src/agent/staging/staging.h"
#include "tests/support/agents.h"
#include "tests/support/blocks.h"
#include "tests/support/cuda_driver/hooks.h"
#include "tests/support/needs_stand_in.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"
#include "tests/support/test_peer.h"

namespace kvxfer::testing {
namespace {

using cuda_driver::FindHooks;
using ::testing::HasSubstr;
using ::testing::Not;

struct Kinds {
  MemoryType a;
  MemoryType b;
};

std::string Name(MemoryType type) { return type == MemoryType::kCuda ? "Cuda" : "Host"; }

// Two agents with memory of these kinds that know each other.
absl::StatusOr<Pair> MakePair(const Flavour& flavour, const Kinds& kinds, size_t bytes,
                              uint64_t staging_bytes = AgentOptions().staging_bytes) {
  AgentOptions a = OptionsFor(flavour, "a");
  AgentOptions b = OptionsFor(flavour, "b");
  a.staging_bytes = b.staging_bytes = staging_bytes;
  auto first = Node::Create(a, kinds.a, bytes);
  if (!first.ok()) return first.status();
  auto second = Node::Create(b, kinds.b, bytes);
  if (!second.ok()) return second.status();
  if (auto known = Introduce(*first->agent, *second->agent); !known.ok()) return known.status();
  if (auto known = Introduce(*second->agent, *first->agent); !known.ok()) return known.status();
  return Pair{.a = *std::move(first), .b = *std::move(second)};
}

class AgentCuda : public ::testing::TestWithParam<std::tuple<Flavour, Kinds>> {
 protected:
  const Flavour& flavour() const { return std::get<0>(GetParam()); }
  const Kinds& kinds() const { return std::get<1>(GetParam()); }
};

// Under a sanitizer one of each kind: what is under the buffers is tested as ever.
std::vector<Flavour> StagingFlavours() {
  std::vector<Flavour> all = PlainFlavours();
  std::erase_if(all, [](const Flavour& one) {
    return one.memory == MemoryType::kCuda || one.name == "ShmAttached" ||
           (kSanitized && (one.backend == "ucx" || one.backend == "loopback"));
  });
  return all;
}

INSTANTIATE_TEST_SUITE_P(
    All, AgentCuda,
    ::testing::Combine(::testing::ValuesIn(StagingFlavours()),
                       ::testing::Values(Kinds{MemoryType::kCuda, MemoryType::kCuda},
                                         Kinds{MemoryType::kMapped, MemoryType::kCuda},
                                         Kinds{MemoryType::kCuda, MemoryType::kMapped})),
    [](const auto& info) {
      return std::get<0>(info.param).name + Name(std::get<1>(info.param).a) + "To" +
             Name(std::get<1>(info.param).b);
    });

// Expect the region of GPU memory to be listed as such, and not the staging memory that goes with
// it.
TEST_P(AgentCuda, RegionsOfAPeerAreWithoutItsStagingMemory) {
  ASSERT_OK_AND_ASSIGN(const Pair pair, MakePair(flavour(), kinds(), 64 * 1024));
  ASSERT_OK_AND_ASSIGN(const std::vector<PeerRegion> all, pair.a.agent->Regions("b"));
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].id, pair.b.region);
  EXPECT_EQ(all[0].address, pair.b.memory.address());
  EXPECT_EQ(all[0].kind, kinds().b == MemoryType::kCuda ? MemoryKind::kCuda : MemoryKind::kHost);
}

// Expect every byte in place, whatever the sizes, and no other byte changed.
TEST_P(AgentCuda, BlocksOfEverySizeArrive) {
  const Shape shapes[] = {
      {.block_bytes = 1, .ids = 1},
      {.block_bytes = 3, .ids = 500, .gap = 5},
      {.block_bytes = 256, .ids = 5000, .layers = 2, .gap = 256},
      {.block_bytes = 4096, .ids = 700, .layers = 3, .gap = 64},
      {.block_bytes = 65536 + 8, .ids = 60, .gap = 8, .paged = false},
      {.block_bytes = 5 * Staging::kBufferBytes + 17, .ids = 1},
  };
  for (const Shape& shape : shapes) {
    for (const bool read : {false, true}) {
      SCOPED_TRACE(shape.ToString() + (read ? " read" : " write"));
      ASSERT_OK_AND_ASSIGN(Pair pair, MakePair(flavour(), kinds(), shape.memory_bytes()));
      Pattern(7).Fill((read ? pair.b : pair.a).memory.bytes());
      const BlockSet blocks(shape, pair.a.memory.address(), pair.b.memory.address());
      ASSERT_OK_AND_ASSIGN(const Transfer transfer,
                           read ? blocks.Read(*pair.a.agent, "b", Telling("here"))
                                : blocks.Write(*pair.a.agent, "b", Telling("here")));
      ASSERT_OK_AND_ASSIGN(const Notification n, pair.b.agent->WaitNotification(kAmple));
      EXPECT_EQ(n.payload, "here");
      // What the target is told of is there when it is told.
      if (!read) {
        EXPECT_TRUE(AllArrived(shape, Side::kRemote, 7, pair.b.memory.bytes()));
      }
      ASSERT_OK(transfer.Wait(kAmple));
      if (read) {
        EXPECT_TRUE(AllArrived(shape, Side::kLocal, 7, pair.a.memory.bytes()));
      }
      EXPECT_TRUE(pair.a.memory.GuardsIntact());
      EXPECT_TRUE(pair.b.memory.GuardsIntact());
      EXPECT_EQ(transfer.stats().bytes, shape.block_bytes * shape.blocks());
    }
  }
}

// Expect the least of staging memory to do for many transfers at once, in both directions.
TEST_P(AgentCuda, ManyTransfersShareFewBuffers) {
  constexpr int kTransfers = 60;
  const Shape shape{.block_bytes = 8192, .ids = 40, .gap = 0};
  const uint64_t each = shape.memory_bytes();
  ASSERT_OK_AND_ASSIGN(Pair pair,
                       MakePair(flavour(), kinds(), 2 * kTransfers * each, Staging::kMinBytes));
  const auto part = [each](Node& node, int i) {
    return node.memory.bytes().subspan(static_cast<uint64_t>(i) * each, each);
  };
  std::vector<Transfer> transfers;
  for (int i = 0; i < kTransfers; ++i) {
    const int back = kTransfers + i;
    const auto seed = static_cast<uint64_t>(i);
    Pattern(seed).Fill(part(pair.a, i));
    Pattern(seed).Fill(part(pair.b, back));
    const uint64_t at = seed * each;
    const uint64_t behind = static_cast<uint64_t>(back) * each;
    const BlockSet there(shape, pair.a.memory.address() + at, pair.b.memory.address() + at);
    const BlockSet here(shape, pair.b.memory.address() + behind, pair.a.memory.address() + behind);
    ASSERT_OK_AND_ASSIGN(transfers.emplace_back(), there.Write(*pair.a.agent, "b", Unhurried()));
    ASSERT_OK_AND_ASSIGN(transfers.emplace_back(), here.Write(*pair.b.agent, "a", Unhurried()));
  }
  for (const Transfer& transfer : transfers) ASSERT_OK(transfer.Wait(kAmple));
  for (int i = 0; i < kTransfers; ++i) {
    const auto seed = static_cast<uint64_t>(i);
    EXPECT_TRUE(AllArrived(shape, Side::kRemote, seed, part(pair.b, i)));
    EXPECT_TRUE(AllArrived(shape, Side::kRemote, seed, part(pair.a, kTransfers + i)));
  }
  EXPECT_TRUE(pair.a.memory.GuardsIntact());
  EXPECT_TRUE(pair.b.memory.GuardsIntact());
}

Flavour Tcp() { return TcpFlavour(); }
constexpr Kinds kBothCuda{MemoryType::kCuda, MemoryType::kCuda};

TEST(AgentCudaStaging, IsExplainedForEachPairOfKinds) {
  ASSERT_OK_AND_ASSIGN(Pair pair, MakePair(Tcp(), kBothCuda, 1 << 20));
  ASSERT_OK_AND_ASSIGN(const Explanation explained, pair.a.agent->Explain("b"));
  ASSERT_EQ(explained.memory.size(), 4u);
  for (const MemoryExplanation& one : explained.memory) {
    EXPECT_EQ(one.backend, "tcp");
    const bool host = one.local == MemoryKind::kHost && one.remote == MemoryKind::kHost;
    EXPECT_EQ(one.staged, !host);
    EXPECT_EQ(one.why.empty(), host) << one.why;
  }
  const std::string text = explained.ToString();
  EXPECT_THAT(text, HasSubstr("host ↔ host: tcp\n"));
  EXPECT_THAT(text, HasSubstr("cuda ↔ cuda: tcp, staged: tcp does not take either side's memory"));
  EXPECT_THAT(text, HasSubstr("64 MiB of pinned host memory"));

  const BlockSet blocks({}, pair.a.memory.address(), pair.b.memory.address());
  ASSERT_OK_AND_ASSIGN(const Transfer transfer, blocks.Write(*pair.a.agent, "b", Unhurried()));
  ASSERT_OK(transfer.Wait(kAmple));
  EXPECT_EQ(transfer.stats().path, "tcp staged");
}

TEST(AgentCudaStaging, HostMemoryAloneIsNotExplainedTwice) {
  ASSERT_OK_AND_ASSIGN(Pair pair,
                       MakePair(Tcp(), {MemoryType::kMapped, MemoryType::kMapped}, 1 << 20));
  ASSERT_OK_AND_ASSIGN(const Explanation explained, pair.a.agent->Explain("b"));
  EXPECT_TRUE(explained.memory.empty());
  EXPECT_THAT(explained.ToString(), Not(HasSubstr("↔")));
}

TEST(AgentCudaStaging, WithoutItsMemoryGpuMemoryIsRefused) {
  AgentOptions options = OptionsFor(Tcp(), "a");
  options.staging_bytes = 0;
  EXPECT_TRUE(Fails(Node::Create(options, MemoryType::kCuda, 4096),
                    absl::StatusCode::kFailedPrecondition,
                    {"no backend of this agent takes CUDA memory", "KVXFER_STAGING_BYTES"}));
}

// Expect initiators beyond the number of buffers to be served all the same: holders give back.
TEST(AgentCudaStaging, MoreInitiatorsThanBuffers) {
  constexpr size_t kInitiators = 6;
  const Shape shape{.block_bytes = 4096, .ids = 300};
  const uint64_t each = shape.memory_bytes();
  AgentOptions options = OptionsFor(Tcp(), "target");
  options.staging_bytes = Staging::kMinBytes;  // lends two
  ASSERT_OK_AND_ASSIGN(Node target, Node::Create(options, MemoryType::kCuda, kInitiators * each));
  std::vector<Node> initiators;
  for (size_t i = 0; i < kInitiators; ++i) {
    ASSERT_OK_AND_ASSIGN(
        initiators.emplace_back(),
        Node::Create(OptionsFor(Tcp(), "i" + std::to_string(i)), MemoryType::kAttached, each));
    Pattern(i).Fill(initiators.back().memory.bytes());
    ASSERT_OK(Introduce(*initiators.back().agent, *target.agent));
  }
  std::vector<Transfer> transfers;
  for (int round = 0; round < 5; ++round) {
    for (size_t i = 0; i < kInitiators; ++i) {
      const BlockSet blocks(shape, initiators[i].memory.address(),
                            target.memory.address() + i * each);
      ASSERT_OK_AND_ASSIGN(transfers.emplace_back(),
                           blocks.Write(*initiators[i].agent, "target", Unhurried()));
    }
  }
  for (const Transfer& transfer : transfers) ASSERT_OK(transfer.Wait(kAmple));
  for (size_t i = 0; i < kInitiators; ++i) {
    EXPECT_TRUE(AllArrived(shape, Side::kRemote, i, target.memory.bytes().subspan(i * each, each)));
  }
}

// Once the peer's buffers are pinned here, which takes a moment, no CPU copies. Expect both ways to
// move the right bytes, and the connection to end for all that.
TEST(AgentCudaStaging, OverShmGpusCopyStraightToAndFromThePeersBuffers) {
  const Shape shape{.block_bytes = 4096, .ids = 3000};
  ASSERT_OK_AND_ASSIGN(Pair pair,
                       MakePair(PlainFlavour("ShmMapped"), kBothCuda, shape.memory_bytes()));
  const BlockSet blocks(shape, pair.a.memory.address(), pair.b.memory.address());
  const auto move = [&](OpKind kind) {
    auto transfer = kind == OpKind::kWrite ? blocks.Write(*pair.a.agent, "b", Unhurried())
                                           : blocks.Read(*pair.a.agent, "b", Unhurried());
    if (!transfer.ok()) return transfer.status();
    if (auto status = transfer->Wait(kAmple); !status.ok()) return status;
    EXPECT_EQ(transfer->stats().path, "shm staged");
    return absl::OkStatus();
  };
  EXPECT_TRUE(Eventually(kAmple, [&] {
    EXPECT_OK(move(OpKind::kWrite));
    const auto explained = pair.a.agent->Explain("b");
    return explained.ok() &&
           explained->ToString().find("straight to and from the peer's") != std::string::npos;
  }));
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    std::ranges::fill(pair.b.memory.bytes(), std::byte{0});
    Pattern(seed).Fill(pair.a.memory.bytes());
    ASSERT_OK(move(OpKind::kWrite));
    EXPECT_TRUE(AllArrived(shape, Side::kRemote, seed, pair.b.memory.bytes()));
    std::ranges::fill(pair.a.memory.bytes(), std::byte{0});
    Pattern(seed + 10).Fill(pair.b.memory.bytes());
    ASSERT_OK(move(OpKind::kRead));
    EXPECT_TRUE(AllArrived(shape, Side::kLocal, seed + 10, pair.a.memory.bytes()));
  }
  EXPECT_TRUE(pair.a.memory.GuardsIntact());
  EXPECT_TRUE(pair.b.memory.GuardsIntact());
  pair.a.agent.reset();
  EXPECT_OK(pair.b.agent->DeregisterMemory(pair.b.region, kAmple));
}

// Expect the target to wait for what the initiator's GPU still writes into its buffers.
TEST(AgentCudaStaging, AnAgentThatEndsWaitsForWhatItsGpuCopiesToThePeer) {
  KVXFER_NEEDS_STAND_IN();
  const Shape shape{.block_bytes = 4096, .ids = 300};
  ASSERT_OK_AND_ASSIGN(Pair pair,
                       MakePair(PlainFlavour("ShmMapped"), kBothCuda, shape.memory_bytes()));
  const auto* hooks = FindHooks();
  ASSERT_NE(hooks, nullptr);
  const BlockSet blocks(shape, pair.a.memory.address(), pair.b.memory.address());
  EXPECT_TRUE(Eventually(kAmple, [&] {
    const auto transfer = blocks.Write(*pair.a.agent, "b", Unhurried());
    EXPECT_OK(transfer);
    EXPECT_OK(transfer->Wait(kAmple));
    return pair.a.agent->Explain("b")->ToString().find("straight to") != std::string::npos;
  }));
  hooks->kvxfer_standin_pause(1);
  ASSERT_OK_AND_ASSIGN(const Transfer late, blocks.Write(*pair.a.agent, "b", Unhurried()));
  std::thread end([&] { pair.a.agent.reset(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  hooks->kvxfer_standin_pause(0);
  end.join();
  EXPECT_EQ(late.Poll(), TransferState::kCancelled);
  EXPECT_OK(pair.b.agent->DeregisterMemory(pair.b.region, kAmple));
}

// Expect a transfer whose GPU copies fail to fail with the cause, and the next one to work.
TEST(AgentCudaStaging, ACopyThatTheDriverRefusesFailsItsTransferOnly) {
  KVXFER_NEEDS_STAND_IN();
  ASSERT_OK_AND_ASSIGN(Pair pair, MakePair(Tcp(), kBothCuda, 1 << 20));
  const auto* hooks = FindHooks();
  ASSERT_NE(hooks, nullptr);
  const BlockSet blocks({}, pair.a.memory.address(), pair.b.memory.address());
  ASSERT_OK_AND_ASSIGN(const Transfer first, blocks.Write(*pair.a.agent, "b", Unhurried()));
  ASSERT_OK(first.Wait(kAmple));
  // The first copy gathers here, the second scatters at the target; with and without kernels.
  for (const int nth : {1, 2}) {
    for (const char* call : {"cuLaunchKernel", "cuMemcpyAsync"}) {
      hooks->kvxfer_standin_fail(call, nth, cuda::api::CUDA_ERROR_OUT_OF_MEMORY);
    }
    ASSERT_OK_AND_ASSIGN(const Transfer failed, blocks.Write(*pair.a.agent, "b", Telling("no")));
    const absl::Status status = failed.Wait(kAmple);
    hooks->kvxfer_standin_fail_none();
    EXPECT_EQ(failed.Poll(), TransferState::kFailed);
    EXPECT_THAT(std::string(status.message()), HasSubstr("CUDA_ERROR_OUT_OF_MEMORY"));
    EXPECT_EQ(failed.delivery(), Delivery::kNotDelivered);
    EXPECT_FALSE(failed.quarantined());
    ASSERT_OK_AND_ASSIGN(const Transfer again, blocks.Write(*pair.a.agent, "b", Unhurried()));
    ASSERT_OK(again.Wait(kAmple));
  }
}

// Expect that an end comes on time while the GPU stands still, that it is said not to be quiet, and
// that it becomes quiet when the GPU goes on.
TEST(AgentCudaStaging, ADeadlineIsKeptThoughTheGpuStandsStill) {
  KVXFER_NEEDS_STAND_IN();
  ASSERT_OK_AND_ASSIGN(Pair pair, MakePair(Tcp(), kBothCuda, 1 << 20));
  const auto* hooks = FindHooks();
  ASSERT_NE(hooks, nullptr);
  const BlockSet blocks({.ids = 20}, pair.a.memory.address(), pair.b.memory.address());
  ASSERT_OK_AND_ASSIGN(const Transfer first, blocks.Write(*pair.a.agent, "b", Unhurried()));
  ASSERT_OK(first.Wait(kAmple));
  hooks->kvxfer_standin_pause(1);
  TransferOptions options = Telling("late");
  options.deadline = Bound(std::chrono::milliseconds(200));
  ASSERT_OK_AND_ASSIGN(const Transfer late, blocks.Write(*pair.a.agent, "b", options));
  EXPECT_TRUE(absl::IsDeadlineExceeded(late.Wait(kAmple)));
  EXPECT_EQ(late.Poll(), TransferState::kDeadlineExceeded);
  EXPECT_TRUE(late.quarantined());
  hooks->kvxfer_standin_pause(0);
  ASSERT_OK(late.WaitQuiet(kAmple));
  EXPECT_FALSE(pair.b.agent->PollNotification().has_value());
  ASSERT_OK_AND_ASSIGN(const Transfer again, blocks.Write(*pair.a.agent, "b", Unhurried()));
  ASSERT_OK(again.Wait(kAmple));
}

// Expect the memory of a region to be in use until the last copy into it is over.
TEST(AgentCudaStaging, DeregistrationWaitsForACopyUnderWay) {
  KVXFER_NEEDS_STAND_IN();
  ASSERT_OK_AND_ASSIGN(Pair pair, MakePair(Tcp(), {MemoryType::kMapped, MemoryType::kCuda}, 8192));
  const auto* hooks = FindHooks();
  ASSERT_NE(hooks, nullptr);
  const BlockSet blocks({}, pair.a.memory.address(), pair.b.memory.address());
  ASSERT_OK_AND_ASSIGN(const Transfer first, blocks.Write(*pair.a.agent, "b", Unhurried()));
  ASSERT_OK(first.Wait(kAmple));
  const uint64_t before = Copies(*hooks);
  hooks->kvxfer_standin_pause(1);
  ASSERT_OK_AND_ASSIGN(const Transfer transfer, blocks.Write(*pair.a.agent, "b", Unhurried()));
  EXPECT_TRUE(Eventually(kAmple, [&] { return Copies(*hooks) > before; }));
  // Its initiator is gone, its copy is not.
  pair.a.agent.reset();
  EXPECT_TRUE(Fails(pair.b.agent->DeregisterMemory(pair.b.region, std::chrono::milliseconds(100)),
                    kTimedOut, {"still in use"}));
  hooks->kvxfer_standin_pause(0);
  EXPECT_OK(pair.b.agent->DeregisterMemory(pair.b.region, kAmple));
}

// Expect one that asks what can still land to hear of copies for transfers that have ended.
TEST(AgentCudaStaging, AQuiesceWaitsForACopyUnderWay) {
  KVXFER_NEEDS_STAND_IN();
  ASSERT_OK_AND_ASSIGN(Pair pair, MakePair(Tcp(), {MemoryType::kMapped, MemoryType::kCuda}, 8192));
  const auto* hooks = FindHooks();
  ASSERT_NE(hooks, nullptr);
  const BlockSet blocks({}, pair.a.memory.address(), pair.b.memory.address());
  ASSERT_OK_AND_ASSIGN(const Transfer first, blocks.Write(*pair.a.agent, "b", Unhurried()));
  ASSERT_OK(first.Wait(kAmple));
  hooks->kvxfer_standin_pause(1);
  TransferOptions brief = Unhurried();
  brief.deadline = Bound(std::chrono::milliseconds(100));
  ASSERT_OK_AND_ASSIGN(const Transfer late, blocks.Write(*pair.a.agent, "b", brief));
  EXPECT_TRUE(absl::IsDeadlineExceeded(late.Wait(kAmple)));
  EXPECT_TRUE(late.quarantined());
  ASSERT_OK_AND_ASSIGN(const QuiesceResult asked,
                       pair.b.agent->Quiesce({}, std::chrono::milliseconds(100)));
  EXPECT_FALSE(asked.quiet);
  hooks->kvxfer_standin_pause(0);
  EXPECT_TRUE(
      Eventually(kAmple, [&] { return pair.b.agent->IsQuiet(asked.token).value_or(false); }));
  ASSERT_OK(late.WaitQuiet(kAmple));
}

// Expect a read whose last copy stands still to be quarantined until that is over, though its peer
// is known to be dead.
TEST(AgentCudaStaging, ADeadPeerDoesNotEndACopyHere) {
  KVXFER_NEEDS_STAND_IN();
  ASSERT_OK_AND_ASSIGN(const auto peer, TestPeer::Start(Where::kProcess));
  ASSERT_OK(peer->Create(OptionsFor(Tcp(), "b"), MemoryType::kMapped, 8192));
  ASSERT_OK_AND_ASSIGN(Node node, Node::Create(OptionsFor(Tcp(), "a"), MemoryType::kCuda, 8192));
  ASSERT_OK(Introduce(*node.agent, *peer));
  ASSERT_OK_AND_ASSIGN(const uint64_t there, peer->MemoryAddress());
  const auto* hooks = FindHooks();
  ASSERT_NE(hooks, nullptr);
  const BlockSet blocks({}, node.memory.address(), there);
  ASSERT_OK_AND_ASSIGN(const Transfer first, blocks.Read(*node.agent, "b", Unhurried()));
  ASSERT_OK(first.Wait(kAmple));
  const uint64_t before = Copies(*hooks);
  hooks->kvxfer_standin_pause(1);
  ASSERT_OK_AND_ASSIGN(const Transfer read, blocks.Read(*node.agent, "b", Telling("here")));
  EXPECT_TRUE(Eventually(kAmple, [&] { return Copies(*hooks) > before; }));
  peer->process().Signal(SIGKILL);
  EXPECT_FALSE(read.Wait(kAmple).ok());
  EXPECT_TRUE(read.quarantined());
  EXPECT_FALSE(read.WaitQuiet(std::chrono::milliseconds(200)).ok());
  hooks->kvxfer_standin_pause(0);
  EXPECT_OK(read.WaitQuiet(kAmple));
}

// Expect each peer to get its share of the buffers, whatever the others' names and backlogs: the
// one small transfer is not the last to end.
TEST(AgentCudaStaging, NoPeerTakesAllBuffers) {
  constexpr Shape kLarge{.block_bytes = 65536, .ids = 128};  // some buffers each
  AgentOptions options = OptionsFor(Tcp(), "a");
  options.staging_bytes = Staging::kMinBytes;
  ASSERT_OK_AND_ASSIGN(Node source,
                       Node::Create(options, MemoryType::kCuda, kLarge.memory_bytes()));
  std::vector<Node> targets;
  for (const char* name : {"b", "c", "z"}) {
    ASSERT_OK_AND_ASSIGN(
        targets.emplace_back(),
        Node::Create(OptionsFor(Tcp(), name), MemoryType::kAttached, kLarge.memory_bytes()));
    ASSERT_OK(Introduce(*source.agent, *targets.back().agent));
  }
  const auto post = [&](size_t target, const Shape& shape) {
    const BlockSet blocks(shape, source.memory.address(), targets[target].memory.address());
    return blocks.Write(*source.agent, targets[target].name(), Unhurried());
  };
  const Shape small{.block_bytes = 4096};
  for (size_t target = 0; target < 3; ++target) {
    ASSERT_OK_AND_ASSIGN(const Transfer first, post(target, small));
    ASSERT_OK(first.Wait(kAmple));
  }
  std::vector<Transfer> backlog;
  for (int i = 0; i < 20; ++i) {
    ASSERT_OK_AND_ASSIGN(backlog.emplace_back(), post(0, kLarge));
    ASSERT_OK_AND_ASSIGN(backlog.emplace_back(), post(1, kLarge));
  }
  ASSERT_OK_AND_ASSIGN(const Transfer one, post(2, small));
  ASSERT_OK(one.Wait(kAmple));
  EXPECT_EQ(backlog.back().Poll(), TransferState::kActive);
  for (const Transfer& transfer : backlog) ASSERT_OK(transfer.Wait(kAmple));
}

// Expect GPU memory that only goes by itself to be refused where it would have to be staged, at
// once and with what to set.
TEST(AgentCudaStaging, WithoutOwnBuffersATransferIsRefusedAtOnce) {
  AgentOptions options = OptionsFor(Tcp(), "a");
  options.backends = {"cuda_ipc", "tcp"};
  options.staging_bytes = 0;
  ASSERT_OK_AND_ASSIGN(Node a, Node::Create(options, MemoryType::kCuda, 8192));
  ASSERT_OK_AND_ASSIGN(Node b, Node::Create(OptionsFor(Tcp(), "b"), MemoryType::kAttached, 8192));
  ASSERT_OK(Introduce(*a.agent, *b.agent));
  const BlockSet blocks({}, a.memory.address(), b.memory.address());
  ASSERT_OK_AND_ASSIGN(const Transfer transfer, blocks.Write(*a.agent, "b", Unhurried()));
  EXPECT_TRUE(Fails(transfer.Wait(kAmple), absl::StatusCode::kFailedPrecondition,
                    {"no backend takes this GPU memory at both ends", "KVXFER_STAGING_BYTES"}));
}

TEST(AgentCudaStaging, NobodyUsesTheLegacyDefaultStream) {
  KVXFER_NEEDS_STAND_IN();
  ASSERT_OK_AND_ASSIGN(Pair pair, MakePair(Tcp(), kBothCuda, 1 << 20));
  const auto* hooks = FindHooks();
  ASSERT_NE(hooks, nullptr);
  const uint64_t uses = hooks->kvxfer_standin_default_stream_uses();
  const BlockSet blocks({.ids = 100}, pair.a.memory.address(), pair.b.memory.address());
  ASSERT_OK_AND_ASSIGN(const Transfer transfer, blocks.Write(*pair.a.agent, "b", Unhurried()));
  ASSERT_OK(transfer.Wait(kAmple));
  EXPECT_EQ(hooks->kvxfer_standin_default_stream_uses(), uses);
}

TEST(AgentCudaStaging, HostMemoryThatIsCalledCudaAndTheReverseAreRefused) {
  ASSERT_OK_AND_ASSIGN(Node node, Node::Create(OptionsFor(Tcp(), "a"), MemoryType::kCuda, 8192));
  ASSERT_OK_AND_ASSIGN(TestMemory host, TestMemory::Allocate(MemoryType::kAttached, 4096));
  MemorySpan wrong = host.span();
  wrong.kind = MemoryKind::kCuda;
  EXPECT_TRUE(Fails(node.agent->RegisterMemory(wrong, Access::kReadWrite),
                    absl::StatusCode::kInvalidArgument, {"host"}));
  wrong = node.memory.span();
  wrong.kind = MemoryKind::kHost;
  EXPECT_TRUE(Fails(node.agent->RegisterMemory(wrong, Access::kReadWrite),
                    absl::StatusCode::kInvalidArgument, {"GPU"}));
  wrong = node.memory.span();
  wrong.device_id = 1;
  EXPECT_TRUE(Fails(node.agent->RegisterMemory(wrong, Access::kReadWrite),
                    absl::StatusCode::kInvalidArgument, {"0", "1"}));
}

}  // namespace
}  // namespace kvxfer::testing
