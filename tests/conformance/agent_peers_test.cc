// Many peers, both directions, many threads, and the first connection from both sides at once.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "kvxfer/backend.h"
#include "tests/support/agents.h"
#include "tests/support/blocks.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

class AgentPeers : public ::testing::TestWithParam<Flavour> {};

Shape SmallShape(uint64_t seed) {
  return {
      .block_bytes = 1000, .ids = 24, .layers = 2, .gap = 24, .paged = seed % 2 == 0, .seed = seed};
}

// Every one of `count` agents writes to every other at once, each into a part of its own.
void EveryOneToEveryOther(const Flavour& flavour, size_t count) {
  const Shape shape = SmallShape(count);
  const uint64_t part = shape.memory_bytes();
  std::vector<Node> nodes;
  for (size_t i = 0; i < count; ++i) {
    ASSERT_OK_AND_ASSIGN(Node node, Node::Create(OptionsFor(flavour, "n" + std::to_string(i)),
                                                 flavour.memory, part * (count + 1)));
    // The last part is the source.
    Pattern(i).Fill(node.memory.bytes().subspan(part * count, part));
    nodes.push_back(std::move(node));
  }
  std::vector<Transfer> transfers;
  for (size_t i = 0; i < count; ++i) {
    for (size_t j = 0; j < count; ++j) {
      if (i == j) continue;
      ASSERT_OK(Introduce(*nodes[i].agent, *nodes[j].agent));
      const BlockSet blocks(shape, nodes[i].memory.address() + part * count,
                            nodes[j].memory.address() + part * i);
      ASSERT_OK_AND_ASSIGN(Transfer transfer, blocks.Write(*nodes[i].agent, nodes[j].name(),
                                                           Telling(nodes[i].name())));
      transfers.push_back(std::move(transfer));
    }
  }
  for (const Transfer& transfer : transfers) ASSERT_OK(transfer.Wait(kAmple)) << transfer.peer();
  for (size_t j = 0; j < count; ++j) {
    std::multiset<std::string> told;
    for (size_t k = 0; k + 1 < count; ++k) {
      ASSERT_OK_AND_ASSIGN(const Notification n, nodes[j].agent->WaitNotification(kAmple));
      EXPECT_EQ(n.peer, n.payload);
      told.insert(n.peer);
    }
    for (size_t i = 0; i < count; ++i) {
      if (i == j) continue;
      EXPECT_EQ(told.count(nodes[i].name()), 1u);
      EXPECT_TRUE(
          AllArrived(shape, Side::kRemote, i, nodes[j].memory.bytes().subspan(part * i, part)))
          << i << " to " << j;
    }
  }
}

TEST_P(AgentPeers, TwoAtOnce) { EveryOneToEveryOther(GetParam(), 2); }
TEST_P(AgentPeers, FiveAtOnce) { EveryOneToEveryOther(GetParam(), 5); }

TEST_P(AgentPeers, SixteenPeersOfOne) {
  const Shape shape = SmallShape(3);
  const uint64_t part = shape.memory_bytes();
  ASSERT_OK_AND_ASSIGN(Node hub,
                       Node::Create(OptionsFor(GetParam(), "hub"), GetParam().memory, part * 17));
  Pattern(100).Fill(hub.memory.bytes().last(part));
  std::vector<Node> peers;
  std::vector<Transfer> transfers;
  for (uint64_t i = 0; i < 16; ++i) {
    ASSERT_OK_AND_ASSIGN(Node peer, Node::Create(OptionsFor(GetParam(), "p" + std::to_string(i)),
                                                 GetParam().memory, part * 2));
    ASSERT_OK(Introduce(*hub.agent, *peer.agent));
    ASSERT_OK(Introduce(*peer.agent, *hub.agent));
    Pattern(i).Fill(peer.memory.bytes().last(part));
    peers.push_back(std::move(peer));
  }
  for (uint64_t i = 0; i < 16; ++i) {
    const uint64_t hub_base = hub.memory.address();
    const uint64_t peer_base = peers[i].memory.address();
    const BlockSet out(shape, hub_base + 16 * part, peer_base);
    ASSERT_OK_AND_ASSIGN(Transfer to, out.Write(*hub.agent, peers[i].name(), Telling("to")));
    const BlockSet in(shape, peer_base + part, hub_base + i * part);
    ASSERT_OK_AND_ASSIGN(Transfer from, in.Write(*peers[i].agent, "hub", Telling("from")));
    transfers.push_back(std::move(to));
    transfers.push_back(std::move(from));
  }
  for (const Transfer& transfer : transfers) ASSERT_OK(transfer.Wait(kAmple)) << transfer.peer();
  for (uint64_t i = 0; i < 16; ++i) {
    ASSERT_OK(hub.agent->WaitNotification(kAmple));
    ASSERT_OK(peers[i].agent->WaitNotification(kAmple));
    EXPECT_TRUE(AllArrived(shape, Side::kRemote, 100, peers[i].memory.bytes().first(part)));
    EXPECT_TRUE(AllArrived(shape, Side::kRemote, i, hub.memory.bytes().subspan(i * part, part)));
  }
}

// Both sides' first write at the same moment, over fresh agents each time.
TEST_P(AgentPeers, ConnectRaces) {
  const Shape shape = SmallShape(4);
  const uint64_t part = shape.memory_bytes();
  for (int round = 0; round < Scaled(20); ++round) {
    ASSERT_OK_AND_ASSIGN(Pair pair, Pair::Create(GetParam(), 2 * part));
    Pattern(1).Fill(pair.a.memory.bytes().first(part));
    Pattern(2).Fill(pair.b.memory.bytes().first(part));
    std::barrier start(2);
    absl::Status ends[2];
    const auto write = [&](Node& from, Node& to, absl::Status& end) {
      const BlockSet blocks(shape, from.memory.address(), to.memory.address() + part);
      start.arrive_and_wait();
      const absl::StatusOr<Transfer> transfer =
          blocks.Write(*from.agent, to.name(), Telling(from.name()));
      end = transfer.ok() ? transfer->Wait(kAmple) : transfer.status();
    };
    std::thread other([&] { write(pair.b, pair.a, ends[1]); });
    write(pair.a, pair.b, ends[0]);
    other.join();
    ASSERT_OK(ends[0]) << "round " << round;
    ASSERT_OK(ends[1]) << "round " << round;
    ASSERT_OK_AND_ASSIGN(const Notification at_a, pair.a.agent->WaitNotification(kAmple));
    ASSERT_OK_AND_ASSIGN(const Notification at_b, pair.b.agent->WaitNotification(kAmple));
    EXPECT_EQ(at_a.payload, "b");
    EXPECT_EQ(at_b.payload, "a");
    EXPECT_TRUE(AllArrived(shape, Side::kRemote, 1, pair.b.memory.bytes().last(part)));
    EXPECT_TRUE(AllArrived(shape, Side::kRemote, 2, pair.a.memory.bytes().last(part)));
  }
}

// What one thread posts while another drives was not handed on before it was posted.
bool TimesAddUp(const TransferStats& stats) {
  return stats.queued >= Duration::zero() && stats.wire >= Duration::zero() &&
         stats.queued + stats.wire == stats.total;
}

// Eight threads submit in both directions and wait; a thread at each side is told.
TEST_P(AgentPeers, ConcurrentSubmittersBothWays) {
  constexpr size_t kThreads = 8;
  const int each = Scaled(GetParam().faulty() ? 60 : 200);
  const Shape shape{.block_bytes = 2 * kKiB, .ids = 8, .layers = 1, .gap = 0, .paged = true};
  const uint64_t part = shape.memory_bytes();
  ASSERT_OK_AND_ASSIGN(Pair pair, Pair::Create(GetParam(), part * 2 * kThreads));
  std::atomic<int> failures{0};
  const auto submit = [&](size_t t) {
    Node& from = t % 2 == 0 ? pair.a : pair.b;
    Node& to = t % 2 == 0 ? pair.b : pair.a;
    const uint64_t place = part * 2 * t;
    const auto source = from.memory.bytes().subspan(place, part);
    const auto target = to.memory.bytes().subspan(place + part, part);
    const BlockSet blocks(shape, from.memory.address() + place, to.memory.address() + place + part);
    for (int i = 0; i < each; ++i) {
      const uint64_t seed = t * 1'000'000 + static_cast<uint64_t>(i);
      Pattern(seed).Fill(source);
      const absl::StatusOr<Transfer> transfer = blocks.Write(
          *from.agent, to.name(), Telling(std::to_string(t) + " " + std::to_string(i)));
      if (!transfer.ok() || !transfer->Wait(kAmple).ok() ||
          !AllArrived(shape, Side::kRemote, seed, target) || !TimesAddUp(transfer->stats())) {
        ++failures;
      }
    }
  };
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) threads.emplace_back(submit, t);
  std::atomic<int> out_of_order{0};
  const auto listen = [&](Node& node) {
    int next[kThreads] = {};
    for (int i = 0; i < each * static_cast<int>(kThreads) / 2; ++i) {
      const absl::StatusOr<Notification> n = node.agent->WaitNotification(kAmple);
      if (!n.ok()) {
        ++failures;
        return;
      }
      // Each thread's own come in the order in which it posted them.
      const size_t t = static_cast<size_t>(n->payload[0] - '0');
      if (std::stoi(n->payload.substr(2)) != next[t]++) ++out_of_order;
    }
  };
  threads.emplace_back([&] { listen(pair.a); });
  threads.emplace_back([&] { listen(pair.b); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(out_of_order, 0);
}

TEST_P(AgentPeers, ReAddingWithSameAndNewerMetadata) {
  const Shape shape = SmallShape(6);
  ASSERT_OK_AND_ASSIGN(Pair pair, Pair::Create(GetParam(), shape.memory_bytes()));
  Pattern(9).Fill(pair.a.memory.bytes());
  ASSERT_OK_AND_ASSIGN(const std::string old, pair.b.agent->Metadata());
  const BlockSet blocks(shape, pair.a.memory.address(), pair.b.memory.address());
  std::atomic<uint32_t> ready{0};
  TransferOptions fenced = Telling("across");
  fenced.ready = &ready;
  ASSERT_OK_AND_ASSIGN(const Transfer across, blocks.Write(*pair.a.agent, "b", fenced));
  // The same again changes nothing, not even for a transfer under way.
  ASSERT_OK_AND_ASSIGN(const std::string name, pair.a.agent->AddPeer(old));
  EXPECT_EQ(name, "b");
  EXPECT_EQ(across.Poll(), TransferState::kActive);

  // A region registered later is unknown until newer metadata has come.
  ASSERT_OK_AND_ASSIGN(TestMemory later,
                       TestMemory::Allocate(GetParam().memory, shape.memory_bytes()));
  ASSERT_OK(pair.b.agent->RegisterMemory(later.span(), Access::kRemoteWrite));
  const BlockSet to_later(shape, pair.a.memory.address(), later.address());
  EXPECT_TRUE(Fails(to_later.Write(*pair.a.agent, "b"), absl::StatusCode::kInvalidArgument));
  ASSERT_OK(Introduce(*pair.a.agent, *pair.b.agent));
  ASSERT_OK_AND_ASSIGN(const Transfer known,
                       to_later.Write(*pair.a.agent, "b", Unhurried(NotifyOrder::kAnyOrder)));
  ASSERT_OK(known.Wait(kAmple));
  EXPECT_TRUE(AllArrived(shape, Side::kRemote, 9, later.bytes()));
  ready.store(1, std::memory_order_release);
  ASSERT_OK(across.Wait(kAmple));
  EXPECT_TRUE(AllArrived(shape, Side::kRemote, 9, pair.b.memory.bytes()));
}

TEST_P(AgentPeers, RemovedPeerIsForgottenAndItsTransfersCancelled) {
  const Shape shape = SmallShape(8);
  ASSERT_OK_AND_ASSIGN(Pair pair, Pair::Create(GetParam(), shape.memory_bytes()));
  const BlockSet blocks(shape, pair.a.memory.address(), pair.b.memory.address());
  ASSERT_OK_AND_ASSIGN(const Transfer good, blocks.Write(*pair.a.agent, "b", Unhurried()));
  ASSERT_OK(good.Wait(kAmple));
  std::atomic<uint32_t> never{0};
  TransferOptions fenced = Unhurried();
  fenced.ready = &never;
  ASSERT_OK_AND_ASSIGN(const Transfer held, blocks.Write(*pair.a.agent, "b", fenced));
  EXPECT_OK(pair.a.agent->RemovePeer("b"));
  EXPECT_TRUE(Fails(held.Wait(kAmple), absl::StatusCode::kCancelled));
  EXPECT_EQ(held.Poll(), TransferState::kCancelled);
  EXPECT_TRUE(Fails(pair.a.agent->RemovePeer("b"), absl::StatusCode::kNotFound, {"b"}));
  EXPECT_TRUE(Fails(blocks.Write(*pair.a.agent, "b"), absl::StatusCode::kNotFound, {"b"}));
  EXPECT_TRUE(Fails(pair.a.agent->Explain("b"), absl::StatusCode::kNotFound, {"b"}));
  // And may come again.
  ASSERT_OK(Introduce(*pair.a.agent, *pair.b.agent));
  ASSERT_OK_AND_ASSIGN(const Transfer again, blocks.Write(*pair.a.agent, "b", Telling("again")));
  EXPECT_OK(again.Wait(kAmple));
  ASSERT_OK_AND_ASSIGN(const Notification n, pair.b.agent->WaitNotification(kAmple));
  EXPECT_EQ(n.payload, "again");
}

// The kind of the next event about `peer` that is one of `kinds`.
std::optional<PeerEventKind> NextAbout(Agent& agent, std::string_view peer,
                                       std::initializer_list<PeerEventKind> kinds) {
  std::optional<PeerEventKind> kind;
  Eventually(kAmple, [&] {
    const auto event = agent.PollPeerEvent();
    if (event && event->peer == peer && std::ranges::find(kinds, event->kind) != kinds.end()) {
      kind = event->kind;
    }
    return kind.has_value();
  });
  return kind;
}

// Expect the sessions of a peer that is removed to end as well, whether or not its metadata was
// ever added, and that it may come again.
TEST_P(AgentPeers, RemovedPeerLosesItsInboundSession) {
  const Shape shape = SmallShape(11);
  for (const bool both : {true, false}) {
    SCOPED_TRACE(both ? "both know each other" : "one knows the other");
    ASSERT_OK_AND_ASSIGN(
        Node a, Node::Create(OptionsFor(GetParam(), "a"), GetParam().memory, shape.memory_bytes()));
    ASSERT_OK_AND_ASSIGN(
        Node b, Node::Create(OptionsFor(GetParam(), "b"), GetParam().memory, shape.memory_bytes()));
    ASSERT_OK(Introduce(*a.agent, *b.agent));
    if (both) {
      ASSERT_OK(Introduce(*b.agent, *a.agent));
    }
    const BlockSet blocks(shape, a.memory.address(), b.memory.address());
    for (int round = 0; round < 2; ++round) {
      ASSERT_OK_AND_ASSIGN(const Transfer good, blocks.Write(*a.agent, "b", Telling("x")));
      ASSERT_OK(good.Wait(kAmple));
      ASSERT_OK(b.agent->RemovePeer("a"));
      ASSERT_OK_AND_ASSIGN(const QuiesceResult quiet, b.agent->Quiesce({.peer = "a"}, kAmple));
      EXPECT_TRUE(quiet.quiet) << quiet.pending;
      EXPECT_EQ(NextAbout(*b.agent, "a", {PeerEventKind::kLost}), PeerEventKind::kLost);
      EXPECT_EQ(NextAbout(*a.agent, "b", {PeerEventKind::kLost}), PeerEventKind::kLost);
      // What had arrived is still told.
      ASSERT_OK_AND_ASSIGN(const Notification told, b.agent->WaitNotification(kAmple));
      EXPECT_EQ(told.payload, "x");
    }
    EXPECT_TRUE(Fails(b.agent->RemovePeer("a"), absl::StatusCode::kNotFound, {"no peer a"}));
  }
}

// Expect every transfer that was under way to end, and no byte to land once the target is quiet.
TEST_P(AgentPeers, RemovedPeerWritesNothingAnyMore) {
  const Shape shape = SmallShape(12);
  ASSERT_OK_AND_ASSIGN(Pair pair, Pair::Create(GetParam(), shape.memory_bytes()));
  const BlockSet blocks(shape, pair.a.memory.address(), pair.b.memory.address());
  Pattern(3).Fill(pair.a.memory.bytes());
  std::vector<Transfer> posted;
  for (int i = 0; i < 40; ++i) {
    ASSERT_OK_AND_ASSIGN(posted.emplace_back(), blocks.Write(*pair.a.agent, "b", Unhurried()));
  }
  ASSERT_OK(posted.front().Wait(kAmple));
  ASSERT_OK(pair.b.agent->RemovePeer("a"));
  for (const Transfer& transfer : posted) {
    const absl::Status end = transfer.Wait(kAmple);
    EXPECT_FALSE(IsTimedOut(end)) << end;
    EXPECT_FALSE(absl::IsDeadlineExceeded(end)) << end;
  }
  ASSERT_OK_AND_ASSIGN(const QuiesceResult quiet, pair.b.agent->Quiesce({.peer = "a"}, kAmple));
  EXPECT_TRUE(quiet.quiet) << quiet.pending;
  // What a posts before it learns of the end goes the same way.
  EXPECT_EQ(NextAbout(*pair.a.agent, "b", {PeerEventKind::kLost}), PeerEventKind::kLost);
  ASSERT_OK_AND_ASSIGN(const Transfer again, blocks.Write(*pair.a.agent, "b", Telling("again")));
  ASSERT_OK(again.Wait(kAmple));
  EXPECT_TRUE(AllArrived(shape, Side::kRemote, 3, pair.b.memory.bytes()));
}

TEST_P(AgentPeers, ExplainAndJoinedAndLost) {
  const Shape shape = SmallShape(9);
  ASSERT_OK_AND_ASSIGN(Pair pair, Pair::Create(GetParam(), shape.memory_bytes()));
  ASSERT_OK_AND_ASSIGN(const Explanation before, pair.a.agent->Explain("b"));
  ASSERT_EQ(before.paths.size(), GetParam().carrier.empty() ? 1u : 2u);
  EXPECT_EQ(before.paths[0].backend, GetParam().backend);
  EXPECT_TRUE(before.paths[0].usable) << before.paths[0].why;
  EXPECT_TRUE(before.paths[0].chosen);
  EXPECT_FALSE(before.paths[0].connected);
  EXPECT_FALSE(pair.a.agent->PollPeerEvent().has_value());

  const BlockSet blocks(shape, pair.a.memory.address(), pair.b.memory.address());
  ASSERT_OK_AND_ASSIGN(const Transfer transfer, blocks.Write(*pair.a.agent, "b", Unhurried()));
  ASSERT_OK(transfer.Wait(kAmple));
  ASSERT_OK_AND_ASSIGN(const Explanation after, pair.a.agent->Explain("b"));
  EXPECT_EQ(after.peer, "b");
  EXPECT_EQ(after.incarnation, pair.b.agent->incarnation());
  EXPECT_TRUE(after.paths[0].connected);
  EXPECT_GE(after.paths[0].rails, 1u);
  EXPECT_FALSE(after.paths[0].why.empty());
  EXPECT_NE(after.ToString().find('b'), std::string::npos);
  EXPECT_NE(after.ToString().find(GetParam().backend), std::string::npos);

  const auto wait_event = [&](PeerEventKind kind) {
    std::optional<PeerEvent> event;
    EXPECT_TRUE(Eventually(kAmple, [&] { return (event = pair.a.agent->PollPeerEvent()); }))
        << ToString(kind);
    if (!event) return;
    EXPECT_STREQ(ToString(event->kind), ToString(kind)) << event->cause.ToString();
    EXPECT_EQ(event->peer, "b");
    EXPECT_EQ(event->cause.ok(), kind == PeerEventKind::kJoined || kind == PeerEventKind::kBack);
  };
  wait_event(PeerEventKind::kJoined);
  pair.b.agent.reset();
  wait_event(PeerEventKind::kLost);
}

INSTANTIATE_TEST_SUITE_P(All, AgentPeers, ::testing::ValuesIn(AllFlavours()), FlavourName);

// With the defaults every backend is told about, and the best that reaches the peer is chosen.
TEST(AgentPaths, DefaultsChooseTheBestAndExplainTheRest) {
  AgentOptions options;
  options.name = "a";
  ASSERT_OK_AND_ASSIGN(Node a, Node::Create(options, MemoryType::kMapped, 4 * kKiB));
  options.name = "b";
  ASSERT_OK_AND_ASSIGN(Node b, Node::Create(options, MemoryType::kMapped, 4 * kKiB));
  ASSERT_OK(Introduce(*a.agent, *b.agent));
  ASSERT_OK_AND_ASSIGN(const Explanation why, a.agent->Explain("b"));
  ASSERT_EQ(why.paths.size(), DefaultBackends().size());
  EXPECT_EQ(std::ranges::count_if(why.paths, [](const auto& path) { return path.chosen; }), 1);
  for (const PathExplanation& path : why.paths) {
    EXPECT_EQ(path.chosen, path.backend == "loopback");
    EXPECT_FALSE(path.why.empty()) << path.backend;
  }
  // Each may be asked for by name.
  Pattern(3).Fill(a.memory.bytes());
  const Shape shape{.block_bytes = 100, .ids = 3};
  const BlockSet blocks(shape, a.memory.address(), b.memory.address());
  for (const char* backend : {"tcp", "shm", "loopback"}) {
    TransferOptions named = Telling(backend);
    named.backend = backend;
    b.memory.Clear();
    ASSERT_OK_AND_ASSIGN(const Transfer transfer, blocks.Write(*a.agent, "b", named));
    ASSERT_OK(transfer.Wait(kAmple)) << backend;
    EXPECT_EQ(transfer.stats().path, backend);
    ASSERT_OK_AND_ASSIGN(const Notification n, b.agent->WaitNotification(kAmple));
    EXPECT_EQ(n.payload, backend);
    EXPECT_TRUE(AllArrived(shape, Side::kRemote, 3, b.memory.bytes()));
  }
}

// One order over all backends: notifications of transfers over different backends come in the
// order of posting.
TEST(AgentPaths, OneOrderOverAllBackends) {
  AgentOptions options;
  options.name = "a";
  ASSERT_OK_AND_ASSIGN(Node a, Node::Create(options, MemoryType::kMapped, 64 * kKiB));
  options.name = "b";
  ASSERT_OK_AND_ASSIGN(Node b, Node::Create(options, MemoryType::kMapped, 64 * kKiB));
  ASSERT_OK(Introduce(*a.agent, *b.agent));
  const int count = Scaled(600);
  for (int i = 0; i < count; ++i) {
    const Shape shape{.block_bytes = 64, .ids = static_cast<uint32_t>(1 + i % 200)};
    // Each backend writes to a part of its own: nothing orders the bytes of different ones.
    const size_t which = static_cast<size_t>(i) % 3;
    const BlockSet blocks(shape, a.memory.address(), b.memory.address() + which * 16 * kKiB);
    TransferOptions named = Telling(std::to_string(i));
    named.backend = std::array{"tcp", "loopback", "shm"}[which];
    ASSERT_OK(blocks.Write(*a.agent, "b", named));
  }
  for (int i = 0; i < count; ++i) {
    ASSERT_OK_AND_ASSIGN(const Notification n, b.agent->WaitNotification(kAmple));
    ASSERT_EQ(n.payload, std::to_string(i));
  }
}

}  // namespace
}  // namespace kvxfer::testing
