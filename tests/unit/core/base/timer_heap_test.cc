// Timers in a heap: which come, when, and in which order, whatever users do meanwhile.
#include "src/core/base/timer_heap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

namespace kvxfer::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Timer = TimerHeap::Timer;

Time At(int seconds) { return Time(std::chrono::seconds(seconds)); }

class NamedTimer : public Timer::User {
 public:
  NamedTimer(TimerHeap* heap, int name, std::vector<int>* told)
      : timer(heap, this), name_(name), told_(told) {}
  void OnTimer(Time /*now*/) override {
    told_->push_back(name_);
    if (then) then();
  }
  Timer timer;
  std::function<void()> then{};

 private:
  const int name_;
  std::vector<int>* const told_;
};

class TimerHeapTest : public ::testing::Test {
 protected:
  std::vector<int> Run(int seconds) {
    told_.clear();
    heap_.Run(At(seconds));
    return told_;
  }

  TimerHeap heap_;
  std::vector<int> told_;
  NamedTimer a_{&heap_, 1, &told_};
  NamedTimer b_{&heap_, 2, &told_};
  NamedTimer c_{&heap_, 3, &told_};
};

TEST_F(TimerHeapTest, ThoseThatAreDueInOrderOfTime) {
  EXPECT_EQ(heap_.next(), Time::max());
  EXPECT_THAT(Run(1000), IsEmpty());
  a_.timer.Set(At(30));
  b_.timer.Set(At(10));
  c_.timer.Set(At(20));
  EXPECT_EQ(heap_.next(), At(10));
  EXPECT_THAT(Run(9), IsEmpty());
  EXPECT_THAT(Run(20), ElementsAre(2, 3));
  EXPECT_EQ(b_.timer.due(), Time::max());
  EXPECT_EQ(heap_.next(), At(30));
  EXPECT_THAT(Run(30), ElementsAre(1));
  EXPECT_THAT(Run(1000), IsEmpty()) << "each once";
}

TEST_F(TimerHeapTest, TheLastWordCounts) {
  a_.timer.Set(At(10));
  a_.timer.Set(At(40));
  b_.timer.Set(At(50));
  b_.timer.Set(At(20));
  c_.timer.Set(At(15));
  c_.timer.Set(Time::max());
  EXPECT_THAT(Run(39), ElementsAre(2));
  EXPECT_THAT(Run(40), ElementsAre(1));
}

TEST_F(TimerHeapTest, OneThatIsSetWhileItIsToldComesInALaterCall) {
  a_.then = [this] { a_.timer.Set(At(5)); };
  a_.timer.Set(At(10));
  EXPECT_THAT(Run(10), ElementsAre(1));
  EXPECT_EQ(heap_.next(), At(5));
  EXPECT_THAT(Run(10), ElementsAre(1));
}

TEST_F(TimerHeapTest, OneThatIsSetByAnotherUserIsNotToldToo) {
  a_.then = [this] {
    b_.timer.Set(At(90));
    c_.timer.Set(Time::max());
  };
  a_.timer.Set(At(10));
  b_.timer.Set(At(11));
  c_.timer.Set(At(12));
  EXPECT_THAT(Run(20), ElementsAre(1));
  EXPECT_THAT(Run(90), ElementsAre(2));
}

TEST_F(TimerHeapTest, OneThatIsDestroyedIsNotTold) {
  auto gone = std::make_unique<NamedTimer>(&heap_, 4, &told_);
  gone->timer.Set(At(1));
  gone.reset();
  EXPECT_EQ(heap_.next(), Time::max());
  gone = std::make_unique<NamedTimer>(&heap_, 5, &told_);
  gone->timer.Set(At(12));
  a_.then = [&] { gone.reset(); };
  a_.timer.Set(At(10));
  EXPECT_THAT(Run(20), ElementsAre(1));
  // Its own user may destroy it as well.
  auto own = std::make_unique<NamedTimer>(&heap_, 6, &told_);
  own->then = [&] { own.reset(); };
  own->timer.Set(At(30));
  EXPECT_THAT(Run(30), ElementsAre(6));
}

// Against a map of what is set.
TEST(TimerHeapRandom, AgreesWithAMap) {
  std::mt19937 random(1);
  const auto below = [&](int bound) {
    return static_cast<int>(random() % static_cast<unsigned>(bound));
  };
  for (int round = 0; round < 50; ++round) {
    TimerHeap heap;
    std::vector<int> told;
    std::array<std::unique_ptr<NamedTimer>, 40> timers;
    std::map<int, Time> set;
    int now = 0;
    for (int step = 0; step < 400; ++step) {
      const int name = below(static_cast<int>(timers.size()));
      std::unique_ptr<NamedTimer>& one = timers[static_cast<size_t>(name)];
      if (one == nullptr) one = std::make_unique<NamedTimer>(&heap, name, &told);
      switch (below(8)) {
        case 0:
          one.reset();
          set.erase(name);
          break;
        case 1:
          one->timer.Set(Time::max());
          set.erase(name);
          break;
        case 2: {
          now += below(20);
          std::vector<std::pair<Time, int>> due;
          for (const auto& [other, at] : set) {
            if (at <= At(now)) due.emplace_back(at, other);
          }
          told.clear();
          heap.Run(At(now));
          std::vector<std::pair<Time, int>> got;
          got.reserve(told.size());
          for (const int other : told) got.emplace_back(set.at(other), other);
          EXPECT_TRUE(std::ranges::is_sorted(got, {}, &std::pair<Time, int>::first));
          std::ranges::sort(got);
          std::ranges::sort(due);
          ASSERT_EQ(got, due);
          for (const int other : told) set.erase(other);
          break;
        }
        default:
          set[name] = At(now + below(60));
          one->timer.Set(set[name]);
      }
      Time next = Time::max();
      for (const auto& [other, at] : set) next = std::min(next, at);
      ASSERT_EQ(heap.next(), next);
    }
  }
}

}  // namespace
}  // namespace kvxfer::testing
