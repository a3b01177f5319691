// The queue of what an agent tells its program, without an agent.
#include "src/agent/engine/event_queue.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "src/core/base/own_fd.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

using Kinds = AgentEventKinds;

TransferPtr EndedTransfer() {
  auto record = std::make_shared<internal::TransferRecord>();
  record->Publish({.state = TransferState::kDone});
  return record;
}

bool Readable(int fd) {
  pollfd wanted{.fd = fd, .events = POLLIN, .revents = 0};
  return poll(&wanted, 1, 0) == 1;
}

class EventQueueTest : public ::testing::Test {
 protected:
  void Notify(const std::string& payload) {
    queue_->Push(Notification{.peer = "b", .payload = payload},
                 {.account = account_, .bytes = payload.size()});
  }
  void End(uint64_t word, EndLane lane = EndLane::kPosted) {
    ASSERT_TRUE(queue_->ReserveEnd(lane));
    queue_->PushEnd(EndedTransfer(), lane, word);
  }
  void LoseRequest(const std::string& name) {
    queue_->Push(KvEvent{.kind = KvEventKind::kRequestLost, .request = RequestName(name)});
  }
  // All events of `kinds`, each as a text.
  std::vector<std::string> Poll(Kinds kinds, size_t most = 100) {
    std::vector<AgentEvent> events(most);
    events.resize(queue_->Poll(events, kinds));
    std::vector<std::string> texts;
    texts.reserve(events.size());
    for (const AgentEvent& event : events) texts.push_back(TextOf(event));
    return texts;
  }
  static std::string TextOf(const AgentEvent& event) {
    if (auto* n = std::get_if<Notification>(&event)) return n->payload;
    if (auto* end = std::get_if<TransferEnd>(&event)) return std::to_string(end->user_word);
    if (auto* peer = std::get_if<PeerEvent>(&event)) return peer->peer;
    if (auto* kv = std::get_if<KvEvent>(&event)) return kv->lease.text + kv->request.text;
    return "nothing";
  }
  int Fd(Kinds kinds) {
    const auto fd = queue_->Fd(kinds);
    EXPECT_OK(fd);
    return fd.value_or(-1);
  }

  Dispatcher dispatcher_;
  std::shared_ptr<CreditAccount> account_ = std::make_shared<CreditAccount>();
  std::unique_ptr<EventQueue> queue_ = std::make_unique<EventQueue>(&dispatcher_, nullptr);
};

using Texts = std::vector<std::string>;

TEST_F(EventQueueTest, KeepsTheOrderOverAllKinds) {
  Notify("one");
  End(2);
  queue_->Push(PeerEvent{.peer = "three"});
  queue_->Push(KvEvent{.kind = KvEventKind::kLeaseEnded, .lease = LeaseName("four")});
  LoseRequest("five");
  queue_->Push(KvEvent{.kind = KvEventKind::kLeaseEnded, .lease = LeaseName("six")});
  End(7);
  Notify("eight");
  EXPECT_EQ(Poll(Kinds::kAll, 3), (Texts{"one", "2", "three"}));
  EXPECT_EQ(Poll(Kinds::kAll), (Texts{"four", "five", "six", "7", "eight"}));
  EXPECT_EQ(Poll(Kinds::kAll), Texts{});
}

// Expect that events of a kind nobody asked for stay, make nothing readable that others watch, and
// hold nothing up.
TEST_F(EventQueueTest, KindsThatNobodyAskedForStay) {
  const int ends = Fd(Kinds::kTransferEnd);
  Notify("one");
  queue_->Push(PeerEvent{.peer = "two"});
  End(3, EndLane::kWatched);
  EXPECT_FALSE(Readable(ends));
  EXPECT_FALSE(queue_->Has(Kinds::kTransferEnd));
  EXPECT_EQ(Poll(Kinds::kTransferEnd), Texts{});
  EXPECT_EQ(Poll(Kinds::kNone), Texts{});
  EXPECT_EQ(Poll(static_cast<Kinds>(64)), Texts{});  // of an unknown kind there is none
  End(4);
  EXPECT_TRUE(Readable(ends));
  EXPECT_EQ(Poll(Kinds::kTransferEnd), Texts{"4"});
  EXPECT_FALSE(Readable(ends));
  // kAll is all but what was asked for by name.
  EXPECT_EQ(Poll(Kinds::kAll), (Texts{"one", "two"}));
  EXPECT_EQ(Poll(Kinds::kWatchedEnd), Texts{"3"});
}

TEST_F(EventQueueTest, DescriptorsFollowTheirKinds) {
  ASSERT_OK(queue_->Open());
  Notify("before");
  const int all = Fd(Kinds::kAll);
  EXPECT_TRUE(Readable(all)) << "what came before the first call";
  const int told = Fd(Kinds::kNotification);
  const int peers = Fd(Kinds::kPeer | Kinds::kKv);
  EXPECT_EQ(Fd(Kinds::kAll), all);
  EXPECT_NE(told, all);
  EXPECT_TRUE(Readable(told));
  EXPECT_FALSE(Readable(peers));
  queue_->Push(PeerEvent{.peer = "b"});
  EXPECT_EQ(Poll(Kinds::kNotification), Texts{"before"});
  EXPECT_TRUE(Readable(all));
  EXPECT_FALSE(Readable(told));
  EXPECT_TRUE(Readable(peers));
  EXPECT_EQ(Poll(Kinds::kAll), Texts{"b"});
  EXPECT_FALSE(Readable(all));
  EXPECT_FALSE(Readable(peers));
}

TEST_F(EventQueueTest, ADescriptorOfNoKindIsRefused) {
  for (const auto kinds : {Kinds::kNone, static_cast<Kinds>(64), static_cast<Kinds>(65)}) {
    EXPECT_TRUE(Fails(queue_->Fd(kinds), absl::StatusCode::kInvalidArgument, {"kinds"}));
  }
}

// Expect a duplicate to be readable from the destruction on, so that its loop wakes.
TEST_F(EventQueueTest, ADuplicateIsReadableAfterTheQueue) {
  const OwnFd copy(dup(Fd(Kinds::kAll)));
  EXPECT_FALSE(Readable(copy.get()));
  queue_.reset();
  EXPECT_TRUE(Readable(copy.get()));
}

TEST_F(EventQueueTest, DropsTheOldestBeyondItsBounds) {
  for (size_t i = 0; i < EventQueue::kMaxPeerEvents + 2; ++i) {
    queue_->Push(PeerEvent{.peer = std::to_string(i)});
  }
  const Texts peers = Poll(Kinds::kPeer, 2000);
  ASSERT_EQ(peers.size(), EventQueue::kMaxPeerEvents);
  EXPECT_EQ(peers.front(), "2");

  queue_->Push(KvEvent{.kind = KvEventKind::kLeaseEnded, .lease = LeaseName("kept")});
  for (size_t i = 0; i < EventQueue::kMaxLostRequests + 2; ++i) LoseRequest(std::to_string(i));
  EXPECT_EQ(queue_->ended_leases(), 1u);
  const Texts kv = Poll(Kinds::kKv, EventQueue::kMaxLostRequests + 10);
  ASSERT_EQ(kv.size(), EventQueue::kMaxLostRequests + 1);
  EXPECT_EQ(kv[0], "kept");
  EXPECT_EQ(kv[1], "2");
  EXPECT_EQ(queue_->ended_leases(), 0u);
}

TEST_F(EventQueueTest, TakenNotificationsReturnTheirCredit) {
  uint64_t drained = 0;
  queue_->set_on_drained([&](const Credit& credit) { drained += credit.bytes; });
  for (int i = 0; i < 3; ++i) Notify("four");
  EXPECT_EQ(queue_->undrained(), 3u);
  EXPECT_EQ(Poll(Kinds::kAll, 2).size(), 2u);
  EXPECT_EQ(queue_->undrained(), 1u);
  EXPECT_EQ(drained, 8u);
  EXPECT_EQ(account_->notifications, 2u);
  EXPECT_EQ(account_->bytes, 8u);
}

// Expect that an end never finds the queue full: who asks for one too many is refused.
TEST_F(EventQueueTest, PlacesOfEndsAreReserved) {
  std::vector<TransferPtr> records;
  for (size_t i = 0; i < kMaxUnreadEnds; ++i) {
    ASSERT_TRUE(queue_->ReserveEnd(EndLane::kPosted)) << i;
    records.push_back(EndedTransfer());
  }
  EXPECT_FALSE(queue_->ReserveEnd(EndLane::kPosted));
  EXPECT_TRUE(queue_->ReserveEnd(EndLane::kWatched)) << "the lanes have places of their own";
  for (size_t i = 0; i < kMaxUnreadEnds; ++i) queue_->PushEnd(records[i], EndLane::kPosted, i);
  // Ended is not taken.
  EXPECT_FALSE(queue_->ReserveEnd(EndLane::kPosted));
  EXPECT_EQ(Poll(Kinds::kTransferEnd, 1), Texts{"0"});
  EXPECT_TRUE(queue_->ReserveEnd(EndLane::kPosted));
  EXPECT_FALSE(queue_->ReserveEnd(EndLane::kPosted));
  queue_->ReturnPlace(EndLane::kPosted);
  // Destroyed with all the others in it: they go, and the stack bears it.
  const std::weak_ptr<internal::TransferRecord> last = records.back();
  records.clear();
  EXPECT_FALSE(last.expired());
  queue_.reset();
  EXPECT_TRUE(last.expired());
}

TEST_F(EventQueueTest, AnEndThatIsQueuedGetsTheNewWord) {
  const TransferPtr record = EndedTransfer();
  const TransferPtr other = EndedTransfer();
  for (const uint64_t word : {uint64_t{1}, uint64_t{2}}) {
    ASSERT_TRUE(queue_->ReserveEnd(EndLane::kWatched));
    queue_->PushEnd(record, EndLane::kWatched, word);
  }
  ASSERT_TRUE(queue_->ReserveEnd(EndLane::kWatched));
  queue_->PushEnd(other, EndLane::kWatched, 3);
  ASSERT_TRUE(queue_->ReserveEnd(EndLane::kPosted));
  queue_->PushEnd(record, EndLane::kPosted, 4);
  EXPECT_EQ(Poll(Kinds::kWatchedEnd), (Texts{"2", "3"}));
  EXPECT_EQ(Poll(Kinds::kAll), Texts{"4"});
  // Taken, it may be queued again.
  ASSERT_TRUE(queue_->ReserveEnd(EndLane::kWatched));
  queue_->PushEnd(record, EndLane::kWatched, 5);
  EXPECT_EQ(Poll(Kinds::kWatchedEnd), Texts{"5"});
}

TEST_F(EventQueueTest, CallbacksTakeThePlaceOfTheQueue) {
  std::atomic<int> told{0};
  std::atomic<int> peers{0};
  Notify("queued");
  queue_->SetCallback(std::function<void(Notification)>([&](const Notification&) { ++told; }));
  queue_->SetCallback(std::function<void(const PeerEvent&)>([&](const PeerEvent&) { ++peers; }));
  Notify("called");
  queue_->Push(PeerEvent{.peer = "b"});
  EXPECT_TRUE(Eventually(kAmple, [&] { return told == 2 && peers == 1; }));
  EXPECT_EQ(Poll(Kinds::kAll), Texts{});
  queue_->SetCallback(std::function<void(Notification)>());
  queue_->SetCallback(std::function<void(const PeerEvent&)>());
  Notify("again");
  queue_->Push(PeerEvent{.peer = "c"});
  EXPECT_EQ(Poll(Kinds::kAll), (Texts{"again", "c"}));
}

// Expect each event once, and those of one producer in order, however many push and poll.
TEST_F(EventQueueTest, ManyPushAndManyPoll) {
  constexpr uint64_t kProducers = 4;
  const auto each = static_cast<uint64_t>(Scaled(5000));
  Fd(Kinds::kAll);
  std::atomic<uint64_t> taken{0};
  std::array<std::vector<uint64_t>, 3> words;
  std::vector<std::thread> threads;
  for (uint64_t producer = 0; producer < kProducers; ++producer) {
    threads.emplace_back([&, producer] {
      for (uint64_t i = 0; i < each; ++i) {
        while (!queue_->ReserveEnd(EndLane::kPosted)) Pause();
        queue_->PushEnd(EndedTransfer(), EndLane::kPosted, producer * each + i);
      }
    });
  }
  for (auto& mine : words) {
    threads.emplace_back([&] {
      std::array<AgentEvent, 7> events;
      while (taken < kProducers * each) {
        const size_t count = queue_->Poll(events, Kinds::kTransferEnd);
        for (size_t i = 0; i < count; ++i) {
          mine.push_back(std::get<TransferEnd>(events[i]).user_word);
        }
        taken += count;
        if (count == 0) Pause();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<int> seen(kProducers * each, 0);
  for (const auto& mine : words) {
    std::array<uint64_t, kProducers> next{};
    for (const uint64_t word : mine) {
      ++seen[word];
      EXPECT_GE(word % each + 1, next[word / each]) << "out of order";
      next[word / each] = word % each + 1;
    }
  }
  for (size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], 1) << i;
}

}  // namespace
}  // namespace kvxfer::testing
