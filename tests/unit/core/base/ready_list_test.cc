// Who is visited in a pass, and in which order.
#include "src/core/base/ready_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

namespace kvxfer::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Member = ReadyList::Member;

class NamedMember : public Member::User {
 public:
  NamedMember(ReadyList* list, int name, std::vector<int>* visited)
      : member(list, this), name_(name), visited_(visited) {}
  void Pump(Time /*now*/) override {
    visited_->push_back(name_);
    if (then) then();
  }
  Member member;
  std::function<void()> then{};

 private:
  const int name_;
  std::vector<int>* const visited_;
};

class ReadyListTest : public ::testing::Test {
 protected:
  std::vector<int> Pass() {
    visited_.clear();
    list_.BeginPass();
    list_.Visit(Time{});
    EXPECT_FALSE(list_.any());
    return visited_;
  }

  ReadyList list_;
  std::vector<int> visited_;
  NamedMember a_{&list_, 1, &visited_};
  NamedMember b_{&list_, 2, &visited_};
  NamedMember c_{&list_, 3, &visited_};
};

TEST_F(ReadyListTest, OnlyThoseThatAreMarkedAndOnce) {
  EXPECT_THAT(Pass(), IsEmpty());
  EXPECT_FALSE(list_.any());
  b_.member.Mark();
  b_.member.Mark();
  EXPECT_TRUE(list_.any());
  EXPECT_THAT(Pass(), ElementsAre(2));
  EXPECT_THAT(Pass(), IsEmpty());
}

TEST_F(ReadyListTest, ThoseThatAreMarkedMeanwhileToo) {
  a_.then = [this] {
    a_.member.Mark();  // what it does itself, it has done
    c_.member.Mark();
  };
  a_.member.Mark();
  EXPECT_THAT(Pass(), ElementsAre(1, 3));
  EXPECT_THAT(Pass(), IsEmpty());
}

// Expect one that was visited to be visited again for another one's sake.
TEST_F(ReadyListTest, AMarkAfterTheVisitCounts) {
  bool once = false;
  b_.then = [&] {
    if (!once) a_.member.Mark();
    once = true;
  };
  a_.then = [this] { b_.member.Mark(); };
  a_.member.Mark();
  EXPECT_THAT(Pass(), ElementsAre(1, 2, 1, 2));
}

TEST_F(ReadyListTest, AgainIsTheNextPass) {
  a_.then = [this] { a_.member.Again(); };
  a_.member.Mark();
  EXPECT_THAT(Pass(), ElementsAre(1));
  EXPECT_THAT(Pass(), ElementsAre(1));
  // Expect a mark to bring one that waits for the next pass into this one.
  a_.then = {};
  b_.then = [this] { a_.member.Mark(); };
  b_.member.Mark();
  visited_.clear();
  list_.Visit(Time{});
  EXPECT_THAT(visited_, ElementsAre(2, 1));
  EXPECT_THAT(Pass(), IsEmpty());
}

// Expect a third of the passes to begin with each, however they come to be marked.
TEST_F(ReadyListTest, EachBeginsInItsTurn) {
  constexpr int kEach = 1000;
  const auto mark = [this] {
    for (NamedMember* one : {&a_, &b_, &c_}) one->member.Mark();
  };
  for (const bool again : {false, true}) {
    std::vector<int> first(4);
    for (NamedMember* one : {&a_, &b_, &c_}) {
      if (again) one->then = [one] { one->member.Again(); };
    }
    mark();
    for (int pass = 0; pass < 3 * kEach; ++pass) {
      if (!again) mark();
      ++first[static_cast<size_t>(Pass().front())];
    }
    for (size_t name = 1; name < 4; ++name) EXPECT_NEAR(first[name], kEach, 100) << name;
  }
}

TEST_F(ReadyListTest, WhoIsGoneIsNotVisited) {
  for (const bool again : {false, true}) {
    auto gone = std::make_unique<NamedMember>(&list_, 4, &visited_);
    again ? gone->member.Again() : gone->member.Mark();
    a_.member.Mark();
    gone.reset();
    EXPECT_THAT(Pass(), ElementsAre(1));
  }
  auto gone = std::make_unique<NamedMember>(&list_, 5, &visited_);
  a_.then = [&] { gone.reset(); };
  a_.member.Mark();
  gone->member.Mark();
  list_.Visit(Time{});
  EXPECT_EQ(gone, nullptr);
}

}  // namespace
}  // namespace kvxfer::testing
