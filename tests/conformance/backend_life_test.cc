// Conformance of backends: how they are found, woken and shared.

#include <deque>
#include <mutex>
#include <string>
#include <thread>

#include "tests/conformance/backend_conformance.h"

namespace kvxfer::testing {
namespace {

TEST_P(BackendConformance, SixteenPeersOfOneBackend) {
  constexpr size_t kPeers = 16;
  constexpr uint64_t kBytes = 256 * 1024;
  ASSERT_NO_FATAL_FAILURE(Start(kPeers * kBytes));
  std::vector<std::unique_ptr<Party>> peers;
  const auto turn_all = [&] {
    pair_->Turn();
    for (auto& peer : peers) peer->Turn();
  };
  const auto until = [&](const std::function<bool()>& done) {
    return pair_->Until([&] {
      for (auto& peer : peers) peer->Turn();
      return done();
    });
  };
  std::vector<TestLink*> links;
  std::vector<TestRegion*> sources;
  for (size_t i = 0; i < kPeers; ++i) {
    ASSERT_OK_AND_ASSIGN(std::unique_ptr<Party> peer,
                         Party::Make(GetParam(), "peer-" + std::to_string(i)));
    peers.push_back(std::move(peer));
    ASSERT_OK_AND_ASSIGN(TestLink * link, peers.back()->Connect(pair_->target()));
    ASSERT_OK_AND_ASSIGN(TestRegion * source, peers.back()->Register(kBytes));
    Pattern(i).Fill(source->bytes());
    links.push_back(link);
    sources.push_back(source);
  }
  auto& accepted = pair_->target().links;
  const auto none_down = [&] {
    for (const TestLink* link : links) EXPECT_FALSE(link->down) << link->why;
    for (const auto& link : accepted) EXPECT_FALSE(link->down) << link->why;
    return !HasFailure();
  };
  ASSERT_TRUE(until([&] { return !none_down() || accepted.size() == kPeers + 1; }));
  ASSERT_FALSE(HasFailure());
  for (size_t i = 1; i <= kPeers; ++i) {
    accepted[i]->endpoint->Authorize();
    ASSERT_TRUE(until([&] { return accepted[i]->Send("hello"); }));
  }
  ASSERT_TRUE(until([&] {
    return !none_down() ||
           std::ranges::all_of(links, [](auto* link) { return !link->messages.empty(); });
  }));
  ASSERT_FALSE(HasFailure());
  // Each writes its share of one region, all at once.
  std::vector<std::vector<Op>> ops(kPeers);
  for (size_t i = 0; i < kPeers; ++i) {
    absl::StatusOr<std::unique_ptr<RemoteKey>> key;
    ASSERT_TRUE(until([&] {
      key = links[i]->endpoint->Import(remote_->remote(), remote_->registration->key);
      return !absl::IsUnavailable(key.status());
    }));
    ASSERT_OK(key);
    for (uint64_t at = 0; at < kBytes; at += 4096) {
      ops[i].push_back(links[i]->Make(OpKind::kWrite, 1,
                                      {{.local = sources[i]->address() + at,
                                        .remote = remote_->address() + i * kBytes + at,
                                        .bytes = 4096,
                                        .registration = sources[i]->registration.get(),
                                        .key = key->get()}},
                                      static_cast<uint32_t>(i)));
    }
    links[i]->keys.push_back(*std::move(key));
  }
  std::vector<size_t> posted(kPeers);
  ASSERT_TRUE(until([&] {
    bool all = true;
    for (size_t i = 0; i < kPeers; ++i) {
      posted[i] += links[i]->Post(std::span(ops[i]).subspan(posted[i]));
      all = all && posted[i] == ops[i].size() && links[i]->open.empty();
    }
    return all;
  }));
  size_t immediates_seen = 0;
  ASSERT_TRUE(until([&] {
    immediates_seen = 0;
    for (auto& link : accepted) immediates_seen += link->immediates.size();
    return !immediates() || immediates_seen == kPeers * kBytes / 4096;
  }));
  for (size_t i = 0; i < kPeers; ++i) {
    EXPECT_EQ(links[i]->failed(), 0u);
    EXPECT_EQ(Pattern(i).Mismatch(remote_->bytes().subspan(i * kBytes, kBytes)), kNoMismatch) << i;
  }
  // One leaves: the others stay.
  links[3]->endpoint->Shutdown(absl::CancelledError("one leaves"));
  const auto downs = [&] {
    return std::ranges::count_if(accepted, [](const auto& link) { return link->down; });
  };
  ASSERT_TRUE(until([&] { return links[3]->down && downs() == 1; }));
  for (int i = 0; i < 50; ++i) turn_all();
  EXPECT_EQ(downs(), 1);
  for (TestLink* link : links) {
    link->keys.clear();
    if (!link->down) link->endpoint->Shutdown(absl::CancelledError("the test is over"));
  }
  EXPECT_TRUE(until([&] { return downs() == kPeers; }));
  EXPECT_TRUE(until(
      [&] { return std::ranges::all_of(links, [](const auto* link) { return link->down; }); }));
}

// Both sides sleep whenever they may: no wake-up is lost, neither of bytes nor of messages.
TEST_P(BackendConformance, TwoThreadsThatSleep) {
  ASSERT_NO_FATAL_FAILURE(Start(256 * 1024));
  const int rounds = Scaled(300);
  Party& initiator = pair_->initiator();
  size_t answered = 0;
  auto target = std::make_unique<PartyThread>(&pair_->target(), [&] {
    // An echo for every immediate, or, where there are none, for every message.
    const size_t heard = immediates() ? in().immediates.size() : in().messages.size();
    while (answered < heard && in().Send("echo")) ++answered;
  });
  const auto sleep_until = [&](const std::function<bool()>& done) {
    while (!done()) {
      if (initiator.Turn() == 0 && !initiator.Sleep(kAmple)) return false;
    }
    return true;
  };
  const size_t before = out().messages.size();
  for (int i = 0; i < rounds; ++i) {
    const uint64_t bytes = 1 + random_() % local_->memory.size();
    const Op op = out().Make(OpKind::kWrite, 1, {RunAt(0, bytes)}, 1);
    ASSERT_TRUE(sleep_until([&] { return out().Post(std::span(&op, 1)) == 1; })) << i;
    ASSERT_TRUE(sleep_until([&] { return out().open.empty(); })) << i;
    if (!immediates()) {
      ASSERT_TRUE(sleep_until([&] { return out().Send("done"); })) << i;
    }
    const size_t wanted = before + static_cast<size_t>(i) + 1;
    ASSERT_TRUE(sleep_until([&] { return out().messages.size() == wanted; })) << i;
  }
  // From outside of Poll as well: Shutdown wakes the other side.
  out().endpoint->Shutdown(absl::CancelledError("closed by the test"));
  ASSERT_TRUE(sleep_until([&] { return out().down; }));
  EXPECT_TRUE(Eventually(kAmple, [&] { return target->WithLock([&] { return in().down; }); }));
  target.reset();
}

// Threads register memory while the drivers move data. A region can be used as soon as the call has
// returned, and go as soon as its op has completed.
TEST_P(BackendConformance, RegionsComeAndGoWhileDataMoves) {
  constexpr size_t kThreads = 2;
  constexpr size_t kEach = 20;  // regions of a thread at either side
  constexpr uint64_t kBytes = 8192;
  ASSERT_NO_FATAL_FAILURE(Start(kBytes));
  struct Regions {
    TestRegion* source = nullptr;  // null: it failed
    TestRegion* sink = nullptr;
  };
  std::mutex mutex;
  std::deque<Regions> registered;
  std::vector<std::jthread> threads;
  for (size_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&] {
      for (size_t i = 0; i < kEach; ++i) {
        const auto source = pair_->initiator().Register(kBytes);
        const auto sink = pair_->target().Register(kBytes);
        EXPECT_OK(source);
        EXPECT_OK(sink);
        const bool ok = source.ok() && sink.ok();
        std::lock_guard lock(mutex);
        registered.push_back(ok ? Regions{.source = *source, .sink = *sink} : Regions{});
      }
    });
  }
  size_t arrived = 0;
  // An op that failed brings no immediate; its error says more than the wait for one.
  const auto moved = [&] {
    EXPECT_TRUE(Ended());
    for (const auto& [op, status] : out().ended) EXPECT_OK(status) << "op " << op;
    return out().failed() == 0 && Arrived(++arrived);
  };
  for (size_t n = 0; n < kThreads * kEach; ++n) {
    // Data moves between regions that stay meanwhile.
    Regions regions;
    const auto next = [&] {
      std::lock_guard lock(mutex);
      if (registered.empty()) return false;
      regions = registered.front();
      registered.pop_front();
      return true;
    };
    while (!next()) {
      ASSERT_TRUE(pair_->PostAll(Stream(OpKind::kWrite, 1, 1, kBytes)));
      ASSERT_TRUE(moved());
    }
    ASSERT_NE(regions.source, nullptr);
    const Pattern pattern(n);
    pattern.Fill(regions.source->bytes());
    const RemoteKey* const key = pair_->Import(*regions.sink);
    ASSERT_NE(key, nullptr);
    const kvxfer::Run run{.local = regions.source->address(),
                          .remote = regions.sink->address(),
                          .bytes = kBytes,
                          .registration = regions.source->registration.get(),
                          .key = key};
    ASSERT_TRUE(pair_->PostAll(std::vector<Op>{out().Make(OpKind::kWrite, 2, {run}, 2)}));
    ASSERT_TRUE(moved());
    EXPECT_EQ(pattern.Mismatch(regions.sink->bytes()), kNoMismatch) << n;
    if (n % 2 == 0) continue;
    out().keys.pop_back();
    regions.source->registration.reset();
    regions.sink->registration.reset();
  }
}

// A sender that was told to wait sleeps, and is woken when the other side has listened.
TEST_P(BackendConformance, RoomWakesTheSender) {
  ASSERT_NO_FATAL_FAILURE(Start(4096));
  const std::string message(64 * 1024, 'x');
  size_t sent = 0;
  while (sent < 4096 && out().Send(message)) ++sent;
  ASSERT_LT(sent, 4096u);
  PartyThread target(&pair_->target(), [] {});
  Party& initiator = pair_->initiator();
  while (!out().Send(message)) {
    ASSERT_TRUE(initiator.Sleep(kAmple)) << "asleep for ever";
    initiator.Turn();
  }
  while (!target.WithLock([&] { return in().messages.size() == sent + 1; })) {
    if (initiator.Turn() == 0) initiator.Sleep(std::chrono::milliseconds(1));
  }
}

// An idle backend costs nothing: it may sleep, and nothing wakes it.
TEST_P(BackendConformance, IdleIsIdle) {
  ASSERT_NO_FATAL_FAILURE(Start(1 << 20));
  ASSERT_TRUE(pair_->PostAll(Stream(OpKind::kWrite, 1, 64, 16 * 1024)));
  ASSERT_TRUE(Ended());
  ASSERT_TRUE(Arrived(64));
  for (Party* party : {&pair_->initiator(), &pair_->target()}) {
    ASSERT_TRUE(pair_->Until([&] { return pair_->Turn() == 0 && party->backend().Arm(); }));
  }
  // Half a second: whatever was set to happen soon has happened; then silence.
  int woken = 0;
  for (const Time end = Now() + std::chrono::milliseconds(500); Now() < end;) {
    for (Party* party : {&pair_->initiator(), &pair_->target()}) {
      if (!party->Sleep(std::chrono::milliseconds(50))) continue;
      ++woken;
      party->Turn();
    }
  }
  EXPECT_LE(woken, 5);
}

// A driver looks at the descriptors only when wait_fd is readable; nothing may wait for more.
TEST_P(BackendConformance, WaitFdShowsAllInput) {
  const auto rests = [](Party& party) {
    return Eventually(kAmple, [&] { return party.TurnByWaitFd() == 0 && party.backend().Arm(); });
  };
  ASSERT_OK_AND_ASSIGN(std::unique_ptr<Party> target, Party::Make(GetParam(), "target"));
  EXPECT_TRUE(rests(*target)) << "nobody has connected";
  ASSERT_OK_AND_ASSIGN(std::unique_ptr<Party> initiator, Party::Make(GetParam(), "initiator"));
  constexpr size_t kConnections = 40;  // more than are accepted in one turn
  for (size_t i = 0; i < kConnections; ++i) ASSERT_OK(initiator->Connect(*target).status());
  const auto connected = [](const Party& party) {
    return static_cast<size_t>(
        std::ranges::count_if(party.links, [](const auto& link) { return link->connected; }));
  };
  EXPECT_TRUE(Eventually(kAmple,
                         [&] {
                           initiator->TurnByWaitFd();
                           target->TurnByWaitFd();
                           return connected(*initiator) == kConnections &&
                                  connected(*target) == kConnections;
                         }))
      << connected(*initiator) << " at the initiator, " << connected(*target) << " at the target";
  EXPECT_TRUE(rests(*initiator));
  EXPECT_TRUE(rests(*target));
}

TEST_P(BackendConformance, NobodyThere) {
  ASSERT_OK_AND_ASSIGN(std::unique_ptr<Party> alone, Party::Make(GetParam(), "alone"));
  std::string address;
  {
    ASSERT_OK_AND_ASSIGN(std::unique_ptr<Party> gone, Party::Make(GetParam(), "gone"));
    address = gone->backend().Describe().address;
  }
  auto endpoint = alone->backend().Connect(address, alone->host());
  if (!endpoint.ok()) {
    EXPECT_FALSE(endpoint.status().message().empty());
    return;
  }
  alone->links.push_back(std::make_unique<TestLink>());
  alone->links.back()->endpoint = *std::move(endpoint);
  TestLink& link = *alone->links.back();
  EXPECT_TRUE(Eventually(kAmple, [&] {
    alone->Turn();
    return link.down;
  }));
  EXPECT_FALSE(link.connected);
  EXPECT_FALSE(link.why.message().empty());
}

// A peer that is destroyed without a word: the other side gets to know, and its ops end.
TEST_P(BackendConformance, ThePeerIsDestroyed) {
  for (const bool initiator_dies : {false, true}) {
    ASSERT_OK_AND_ASSIGN(std::unique_ptr<Party> a, Party::Make(GetParam(), "a"));
    ASSERT_OK_AND_ASSIGN(std::unique_ptr<Party> b, Party::Make(GetParam(), "b"));
    ASSERT_OK_AND_ASSIGN(TestLink * link, a->Connect(*b));
    ASSERT_TRUE(Eventually(kAmple, [&] {
      a->Turn();
      b->Turn();
      return link->connected && !b->links.empty();
    }));
    std::unique_ptr<Party>& dying = initiator_dies ? a : b;
    TestLink* const left = initiator_dies ? b->links.front().get() : link;
    Party* const survivor = initiator_dies ? b.get() : a.get();
    dying.reset();
    EXPECT_TRUE(Eventually(kAmple, [&] {
      survivor->Turn();
      return left->down;
    }));
  }
}

TEST_P(BackendConformance, TellsWhatItIs) {
  ASSERT_NO_FATAL_FAILURE(Start(4096));
  EXPECT_EQ(pair_->initiator().backend().name(), GetParam().backend);
  EXPECT_GE(pair_->initiator().backend().Describe().wait_fd, 0);
  EXPECT_FALSE(out().path().empty());
  EXPECT_FALSE(in().path().empty());
  EXPECT_GE(out().rails(), 1u);
  EXPECT_GE(caps().max_op_bytes, 64u * 1024);
  EXPECT_GE(caps().max_op_pieces, 1u);
  EXPECT_OK(pair_->initiator().backend().Reachable(pair_->target().backend().Describe().address,
                                                   pair_->target().host()));
}

// Agents ask for the capability first; whoever does not is told what there is instead. Not by
// backends of others, which need not look.
TEST_P(BackendConformance, GpuMemoryThatItDoesNotTakeIsRefused) {
  if (!GetParam().plugin_path.empty()) return;
  ASSERT_NO_FATAL_FAILURE(Start(4096));
  if (caps().Takes(MemoryKind::kCuda)) return;
  Backend& backend = pair_->target().backend();
  const MemorySpan span{.data = remote_->memory.data(), .bytes = 4096, .kind = MemoryKind::kCuda};
  const LocalRegion region{.rkey = 9, .span = span, .access = Access::kReadWrite};
  const absl::Status status = backend.Register(region).status();
  EXPECT_TRUE(
      Fails(status, status.code(), {"only host memory can be registered", "staging", "cuda_ipc"}));
  EXPECT_FALSE(status.ok());
}

}  // namespace
}  // namespace kvxfer::testing
