// The queue of events as a program uses it: what it asked for comes once, in order, and nothing
// else.
#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <atomic>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/agents.h"
#include "tests/support/blocks.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

using std::chrono::milliseconds;
using Kinds = AgentEventKinds;

bool Readable(int fd, Duration limit = Duration(0)) {
  pollfd wanted{.fd = fd, .events = POLLIN, .revents = 0};
  return poll(&wanted, 1, static_cast<int>(Milliseconds(limit))) == 1;
}

TransferOptions WithWord(uint64_t word, std::optional<std::string> notification = {}) {
  TransferOptions options = Unhurried();
  options.user_word = word;
  options.notification = std::move(notification);
  return options;
}

class AgentEvents : public ::testing::TestWithParam<Flavour> {
 protected:
  void SetUp() override { ASSERT_OK_AND_ASSIGN(pair_, Pair::Create(GetParam(), 64 * 1024)); }
  Agent& a() { return *pair_.a.agent; }
  Agent& b() { return *pair_.b.agent; }
  absl::StatusOr<Transfer> Write(const TransferOptions& options) {
    return BlockSet({.block_bytes = 256, .ids = 8}, pair_.a.memory.address(),
                    pair_.b.memory.address())
        .Write(a(), "b", options);
  }
  // The next event of `kinds` at a, within kAmple.
  template <typename Event>
  Event Next(Kinds kinds = Kinds::kAll) {
    AgentEvent event;
    const auto count = a().WaitEvents(std::span(&event, 1), kAmple, kinds);
    EXPECT_OK(count);
    EXPECT_TRUE(std::holds_alternative<Event>(event)) << event.index();
    return std::holds_alternative<Event>(event) ? std::get<Event>(event) : Event{};
  }
  size_t Left(Agent& agent, Kinds kinds) {
    std::array<AgentEvent, 8> events;
    return agent.PollEvents(events, kinds);
  }

  Pair pair_;
};

// Expect that a program which only waits leaves nothing in the queue, and that the ends which were
// asked for come with their words, in their order, each once.
TEST_P(AgentEvents, OnlyEndsThatWereAskedForCome) {
  std::vector<Transfer> posted;
  for (uint64_t i = 0; i < 20; ++i) {
    ASSERT_OK_AND_ASSIGN(posted.emplace_back(), Write(i % 2 == 0 ? WithWord(i) : Unhurried()));
  }
  for (const Transfer& transfer : posted) ASSERT_OK(transfer.Wait(kAmple));
  std::set<uint64_t> words;
  for (int i = 0; i < 10; ++i) {
    const auto end = Next<TransferEnd>(Kinds::kTransferEnd);
    EXPECT_TRUE(words.insert(end.user_word).second) << end.user_word;
    EXPECT_EQ(end.transfer.Poll(), TransferState::kDone);
    ASSERT_LT(end.user_word, posted.size());
    EXPECT_EQ(end.transfer.id(), posted[end.user_word].id());
    EXPECT_EQ(end.user_word % 2, 0u);
  }
  EXPECT_EQ(Left(a(), Kinds::kTransferEnd | Kinds::kWatchedEnd), 0u);
  EXPECT_EQ(Left(b(), Kinds::kTransferEnd), 0u);
}

// Expect one event however a transfer ends, and that its word may be any.
TEST_P(AgentEvents, EveryEndIsTold) {
  std::atomic<uint32_t> ready{0};
  const auto held = [&](uint64_t word, Duration deadline) {
    TransferOptions options = WithWord(word);
    options.ready = &ready;
    options.deadline = deadline;
    return options;
  };
  ASSERT_OK_AND_ASSIGN(const Transfer late, Write(held(UINT64_MAX, milliseconds(20))));
  ASSERT_OK_AND_ASSIGN(const Transfer cancelled, Write(held(0, kAmple)));
  cancelled.Cancel();
  std::map<uint64_t, TransferState> ends;
  for (int i = 0; i < 2; ++i) {
    const auto end = Next<TransferEnd>(Kinds::kTransferEnd);
    ends[end.user_word] = end.transfer.Poll();
  }
  EXPECT_EQ(ends[UINT64_MAX], TransferState::kDeadlineExceeded);
  EXPECT_EQ(ends[0], TransferState::kCancelled);

  ASSERT_OK_AND_ASSIGN(const Transfer removed, Write(held(7, kAmple)));
  ASSERT_OK(a().RemovePeer("b"));
  const auto end = Next<TransferEnd>(Kinds::kTransferEnd);
  EXPECT_EQ(end.user_word, 7u);
  EXPECT_TRUE(Fails(end.transfer.status(), absl::StatusCode::kCancelled, {"removed"}));
  // What is not posted has no end.
  EXPECT_TRUE(Fails(Write(WithWord(8)), absl::StatusCode::kNotFound));
  EXPECT_EQ(Left(a(), Kinds::kTransferEnd), 0u);
}

// Expect notifications and ends in one queue, and the calls for notifications alone to be views of
// it.
TEST_P(AgentEvents, NotificationsComeInOrderWithTheRest) {
  constexpr int kMany = 12;
  std::vector<Transfer> last;
  for (int i = 0; i < kMany; ++i) {
    ASSERT_OK_AND_ASSIGN(last.emplace_back(), b().Notify("a", std::to_string(i), Unhurried()));
  }
  ASSERT_OK(last.back().Wait(kAmple));
  ASSERT_OK_AND_ASSIGN(const Transfer own, Write(WithWord(5)));
  ASSERT_OK(own.Wait(kAmple));
  std::vector<std::string> told;
  ASSERT_OK_AND_ASSIGN(const Notification first, a().WaitNotification(kAmple));
  told.push_back(first.payload);
  if (auto second = a().PollNotification()) told.push_back(second->payload);
  bool ended = false;
  while (told.size() < kMany || !ended) {
    std::array<AgentEvent, 5> events;
    ASSERT_OK_AND_ASSIGN(
        const size_t count,
        a().WaitEvents(events, kAmple, Kinds::kNotification | Kinds::kTransferEnd));
    for (size_t i = 0; i < count; ++i) {
      if (auto* n = std::get_if<Notification>(&events[i])) {
        EXPECT_FALSE(ended) << "it came before the end";
        told.push_back(n->payload);
      } else {
        ended = true;
        EXPECT_EQ(std::get<TransferEnd>(events[i]).user_word, 5u);
      }
    }
  }
  for (int i = 0; i < kMany; ++i) EXPECT_EQ(told[static_cast<size_t>(i)], std::to_string(i));
  EXPECT_FALSE(a().PollNotification().has_value());
}

// Expect the descriptor to show what it was made for and nothing that nobody asked it for.
TEST_P(AgentEvents, OneDescriptorCoversWhatIsAskedFor) {
  ASSERT_OK_AND_ASSIGN(const int all, a().EventFd());
  ASSERT_OK_AND_ASSIGN(const int ends, a().EventFd(Kinds::kTransferEnd));
  ASSERT_OK_AND_ASSIGN(const Transfer first, b().Notify("a", "x", Unhurried()));
  EXPECT_TRUE(Readable(all, kAmple));
  ASSERT_OK(first.Wait(kAmple));
  // A peer joined and a notification came: neither is an end.
  EXPECT_FALSE(Readable(ends));
  EXPECT_EQ(Left(a(), Kinds::kTransferEnd), 0u);
  ASSERT_OK_AND_ASSIGN(const Transfer waited, Write(Unhurried()));
  ASSERT_OK(waited.Wait(kAmple));
  EXPECT_FALSE(Readable(ends));
  ASSERT_OK_AND_ASSIGN(const Transfer asked, Write(WithWord(1)));
  EXPECT_TRUE(Readable(ends, kAmple)) << "with nobody waiting";
  while (Left(a(), Kinds::kAll) > 0) {
  }
  EXPECT_FALSE(Readable(ends));
  EXPECT_FALSE(Readable(all));
  ASSERT_OK(asked.Wait(kAmple));
}

TEST_P(AgentEvents, AWaitForNothingIsRefused) {
  AgentEvent event;
  EXPECT_TRUE(Fails(a().WaitEvents({}, kAmple), absl::StatusCode::kInvalidArgument, {"room"}));
  EXPECT_TRUE(Fails(a().WaitEvents(std::span(&event, 1), kAmple, Kinds::kNone),
                    absl::StatusCode::kInvalidArgument, {"kind"}));
  EXPECT_TRUE(Fails(a().EventFd(Kinds::kNone), absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(a().PollEvents({}), 0u);
  EXPECT_TRUE(Fails(a().WaitEvents(std::span(&event, 1), milliseconds(5), Kinds::kKv), kTimedOut));
  absl::Status inside;
  std::atomic<bool> ran{false};
  ASSERT_OK_AND_ASSIGN(const Transfer transfer, Write(Unhurried()));
  transfer.OnEnd([&](const Transfer&) {
    inside = a().WaitEvents(std::span(&event, 1), kAmple).status();
    ran = true;
  });
  ASSERT_TRUE(Eventually(kAmple, [&] { return ran.load(); }));
  EXPECT_TRUE(Fails(inside, absl::StatusCode::kFailedPrecondition, {"callback"}));
}

// Expect an end that is watched apart from that of the user word, once for each time that it is
// asked for.
TEST_P(AgentEvents, WatchedEndsAreApart) {
  std::atomic<uint32_t> ready{0};
  TransferOptions options = WithWord(1);
  options.ready = &ready;
  ASSERT_OK_AND_ASSIGN(const Transfer held, Write(options));
  EXPECT_OK(held.Watch(10));
  EXPECT_OK(held.Watch(11));  // in place of the first
  ready.store(1, std::memory_order_release);
  EXPECT_EQ(Next<TransferEnd>(Kinds::kWatchedEnd).user_word, 11u);
  EXPECT_EQ(Left(a(), Kinds::kWatchedEnd), 0u);
  EXPECT_EQ(Next<TransferEnd>(Kinds::kTransferEnd).user_word, 1u);
  EXPECT_OK(held.Watch(12));  // it has ended
  EXPECT_EQ(Next<TransferEnd>(Kinds::kWatchedEnd).user_word, 12u);
  EXPECT_TRUE(Fails(Transfer().Watch(1), absl::StatusCode::kFailedPrecondition));
}

// Expect each word once, whoever polls: threads that wait and one that follows the descriptor.
TEST_P(AgentEvents, ManyPostAndManyWait) {
  constexpr uint64_t kPosters = 3;
  const auto each = static_cast<uint64_t>(Scaled(60));
  const size_t all = kPosters * each;
  ASSERT_OK_AND_ASSIGN(const int fd, a().EventFd(Kinds::kTransferEnd));
  std::vector<std::atomic<int>> seen(all);
  std::atomic<size_t> taken{0};
  std::vector<std::thread> threads;
  threads.reserve(kPosters);
  for (uint64_t poster = 0; poster < kPosters; ++poster) {
    threads.emplace_back([&, poster] {
      for (uint64_t i = 0; i < each; ++i) {
        const auto posted = a().Notify("b", "x", WithWord(poster * each + i));
        EXPECT_OK(posted);
      }
    });
  }
  const auto take = [&](std::span<const AgentEvent> events) {
    for (const AgentEvent& event : events) ++seen[std::get<TransferEnd>(event).user_word];
    taken += events.size();
  };
  for (int waiter = 0; waiter < 2; ++waiter) {
    threads.emplace_back([&] {
      std::array<AgentEvent, 4> events;
      while (taken < all) {
        const auto count = a().WaitEvents(events, milliseconds(20), Kinds::kTransferEnd);
        if (count.ok()) take(std::span(events).first(*count));
      }
    });
  }
  threads.emplace_back([&] {
    std::array<AgentEvent, 4> events;
    while (taken < all) {
      if (!Readable(fd, milliseconds(20))) continue;
      take(std::span(events).first(a().PollEvents(events, Kinds::kTransferEnd)));
    }
  });
  std::thread reader([&] {
    for (size_t i = 0; i < all; ++i) EXPECT_OK(b().WaitNotification(kAmple));
  });
  for (std::thread& thread : threads) thread.join();
  reader.join();
  for (size_t i = 0; i < all; ++i) EXPECT_EQ(seen[i], 1) << i;
  EXPECT_FALSE(Readable(fd));
}

// Expect an agent that goes with events in its queue to leave nothing behind, and the handles that
// were taken before to answer.
TEST_P(AgentEvents, DestroyedWithAQueueThatIsNotDrained) {
  std::atomic<uint32_t> ready{0};
  TransferOptions options = WithWord(3);
  options.ready = &ready;
  ASSERT_OK_AND_ASSIGN(const Transfer held, Write(options));
  EXPECT_OK(held.Watch(4));
  ASSERT_OK_AND_ASSIGN(const Transfer ended, Write(WithWord(1)));
  ASSERT_OK(ended.Wait(kAmple));
  ASSERT_OK_AND_ASSIGN(const Transfer told, b().Notify("a", "x", Unhurried()));
  ASSERT_OK(told.Wait(kAmple));
  const auto end = Next<TransferEnd>(Kinds::kTransferEnd);
  pair_.a.agent.reset();
  EXPECT_EQ(end.transfer.Poll(), TransferState::kDone);
  EXPECT_EQ(held.Poll(), TransferState::kCancelled);
  EXPECT_TRUE(Fails(held.Watch(5), absl::StatusCode::kFailedPrecondition, {"gone"}));
}

INSTANTIATE_TEST_SUITE_P(All, AgentEvents, ::testing::ValuesIn(AllFlavours()), FlavourName);

// Expect the posting of one too many to be refused and no end to be lost.
TEST(AgentEventsBound, PlacesOfEndsRunOut) {
  Flavour loopback = PlainFlavour("Loopback");
  ASSERT_OK_AND_ASSIGN(const Pair pair, Pair::Create(loopback, 4096));
  const std::array<Descriptor, 1> from = {{{pair.a.memory.address(), 8}}};
  const std::array<Descriptor, 1> to = {{{pair.b.memory.address(), 8}}};
  const DescriptorBlocks blocks{.local = from, .remote = to};
  for (uint64_t i = 0; i < kMaxUnreadEnds; ++i) {
    ASSERT_OK_AND_ASSIGN(const Transfer posted, pair.a.agent->Write("b", blocks, WithWord(i)));
    if (i % 256 == 0) {
      ASSERT_OK(posted.Wait(kAmple));
    }
  }
  EXPECT_TRUE(Fails(pair.a.agent->Write("b", blocks, WithWord(0)),
                    absl::StatusCode::kResourceExhausted, {"65536", "PollEvents"}));
  ASSERT_OK_AND_ASSIGN(const Transfer unasked, pair.a.agent->Write("b", blocks, Unhurried()));
  ASSERT_OK(unasked.Wait(kAmple));
  std::array<AgentEvent, 1> one;
  ASSERT_OK_AND_ASSIGN(size_t count, pair.a.agent->WaitEvents(one, kAmple, Kinds::kTransferEnd));
  ASSERT_OK(pair.a.agent->Write("b", blocks, WithWord(kMaxUnreadEnds)));
  std::vector<AgentEvent> events(1024);
  std::vector<int> seen(kMaxUnreadEnds + 1, 0);
  ++seen[std::get<TransferEnd>(one[0]).user_word];
  while (count < seen.size()) {
    ASSERT_OK_AND_ASSIGN(const size_t more,
                         pair.a.agent->WaitEvents(events, kAmple, Kinds::kTransferEnd));
    for (size_t i = 0; i < more; ++i) ++seen[std::get<TransferEnd>(events[i]).user_word];
    count += more;
  }
  for (size_t i = 0; i < seen.size(); ++i) ASSERT_EQ(seen[i], 1) << i;
}

}  // namespace
}  // namespace kvxfer::testing
