// What a reactor reports of descriptors and of its timer, and when.
#include "src/transport/sockets/reactor.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <chrono>
#include <functional>
#include <memory>

#include "tests/support/status_macros.h"

namespace kvxfer::net {
namespace {

// Counts its calls.
struct Counter final : Watcher {
  void OnReady(uint32_t events) override {
    ++calls;
    last = events;
    if (then) then();
  }
  int calls = 0;
  uint32_t last = 0;
  std::function<void()> then;
};

class NetReactor : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(reactor_, Reactor::Create());
    ASSERT_TRUE(event_.valid());
  }
  bool Readable(int timeout_ms = 0) const {
    pollfd fd{.fd = reactor_->fd(), .events = POLLIN, .revents = 0};
    return ::poll(&fd, 1, timeout_ms) == 1;
  }
  int CallsOfOneCollect() {
    const int before = counter_.calls;
    reactor_->Collect();
    return counter_.calls - before;
  }
  void Signal() { ASSERT_EQ(::eventfd_write(event_.get(), 1), 0); }
  void Drain() {
    eventfd_t value = 0;
    ASSERT_EQ(::eventfd_read(event_.get(), &value), 0);
  }

  Fd event_ = Fd::Open([] { return ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
  std::unique_ptr<Reactor> reactor_;
  Counter counter_;
};

TEST_F(NetReactor, EdgesAreReportedOnceForBothDirections) {
  ASSERT_OK(reactor_->Add(event_.get(), &counter_));
  EXPECT_EQ(CallsOfOneCollect(), 1);
  EXPECT_EQ(counter_.last, static_cast<uint32_t>(EPOLLOUT));
  EXPECT_EQ(CallsOfOneCollect(), 0);
  EXPECT_FALSE(Readable());
  Signal();
  EXPECT_TRUE(Readable());
  EXPECT_EQ(CallsOfOneCollect(), 1);
  EXPECT_EQ(counter_.last, static_cast<uint32_t>(EPOLLIN | EPOLLOUT));
  // It is still readable, which is no news.
  EXPECT_EQ(CallsOfOneCollect(), 0);
  Signal();
  EXPECT_EQ(CallsOfOneCollect(), 1);
}

TEST_F(NetReactor, ALevelIsReportedAsLongAsItLasts) {
  ASSERT_OK(reactor_->Add(event_.get(), &counter_, EPOLLIN));
  EXPECT_EQ(CallsOfOneCollect(), 0);
  Signal();
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(Readable());
    EXPECT_EQ(CallsOfOneCollect(), 1);
  }
  EXPECT_EQ(counter_.last, static_cast<uint32_t>(EPOLLIN));
  Drain();
  EXPECT_EQ(CallsOfOneCollect(), 0);
  EXPECT_FALSE(Readable());
}

TEST_F(NetReactor, ChangeSilencesADescriptorAndBringsItBack) {
  ASSERT_OK(reactor_->Add(event_.get(), &counter_, EPOLLIN));
  Signal();
  reactor_->Change(event_.get(), &counter_, 0);
  EXPECT_FALSE(Readable());
  EXPECT_EQ(CallsOfOneCollect(), 0);
  reactor_->Change(event_.get(), &counter_, EPOLLIN | EPOLLOUT);
  EXPECT_EQ(CallsOfOneCollect(), 1);
  EXPECT_EQ(counter_.last, static_cast<uint32_t>(EPOLLIN | EPOLLOUT));
}

TEST_F(NetReactor, ChangeHandsADescriptorToAnotherWatcher) {
  Counter other;
  ASSERT_OK(reactor_->Add(event_.get(), &counter_));
  reactor_->Change(event_.get(), &other);
  EXPECT_EQ(CallsOfOneCollect(), 0);
  // Whatever the first watcher has seen, the second one is told.
  EXPECT_EQ(other.calls, 1);
}

TEST_F(NetReactor, WithoutAWatcherADescriptorOnlyWakes) {
  ASSERT_OK(reactor_->Add(event_.get(), nullptr, EPOLLIN | EPOLLET));
  EXPECT_FALSE(Readable());
  Signal();
  EXPECT_TRUE(Readable());
  reactor_->Collect();
  EXPECT_FALSE(Readable());
  Signal();
  EXPECT_TRUE(Readable());
}

TEST_F(NetReactor, ARemovedDescriptorIsSilent) {
  ASSERT_OK(reactor_->Add(event_.get(), &counter_, EPOLLIN));
  Signal();
  reactor_->Remove(event_.get());
  EXPECT_EQ(CallsOfOneCollect(), 0);
  EXPECT_FALSE(Readable());
  // It may be added again.
  ASSERT_OK(reactor_->Add(event_.get(), &counter_, EPOLLIN));
  EXPECT_EQ(CallsOfOneCollect(), 1);
}

TEST_F(NetReactor, AWatcherMayRemoveItselfAndAddAnother) {
  Counter other;
  const Fd more = Fd::Open([] { return ::eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK); });
  counter_.then = [&] {
    reactor_->Remove(event_.get());
    EXPECT_OK(reactor_->Add(more.get(), &other, EPOLLIN));
  };
  ASSERT_OK(reactor_->Add(event_.get(), &counter_, EPOLLIN));
  Signal();
  EXPECT_EQ(CallsOfOneCollect(), 1);
  EXPECT_EQ(CallsOfOneCollect(), 0);
  EXPECT_EQ(other.calls, 1);
}

TEST_F(NetReactor, ADescriptorIsNotAddedTwice) {
  ASSERT_OK(reactor_->Add(event_.get(), &counter_));
  EXPECT_EQ(reactor_->Add(event_.get(), &counter_).code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(NetReactor, TheTimerWakesOnce) {
  EXPECT_FALSE(Readable());
  // A time in the past, and time 0, fire at once.
  for (const Time when : {Now() - std::chrono::seconds(1), Time{}, Now()}) {
    reactor_->SetTimer(when);
    EXPECT_TRUE(Readable(10'000));
    reactor_->Collect();
    EXPECT_FALSE(Readable());
  }
  const Time soon = Now() + std::chrono::milliseconds(2);
  reactor_->SetTimer(soon);
  EXPECT_TRUE(Readable(10'000));
  EXPECT_GE(Now(), soon);
}

TEST_F(NetReactor, TheTimerCanBeTakenBack) {
  reactor_->SetTimer(Now() + std::chrono::milliseconds(5));
  reactor_->SetTimer(std::nullopt);
  EXPECT_FALSE(Readable(20));
  reactor_->SetTimer(Now() + std::chrono::hours(1));
  EXPECT_FALSE(Readable(0));
  // An earlier time replaces a later one.
  reactor_->SetTimer(Now());
  EXPECT_TRUE(Readable(10'000));
}

}  // namespace
}  // namespace kvxfer::net
