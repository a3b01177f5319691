#include "src/transport/added_list.h"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <thread>
#include <vector>

#include "tests/support/scale.h"

namespace kvxfer::net {
namespace {

TEST(AddedList, EachEntryIsTakenOnceOrRemoved) {
  AddedList<int> list;
  int one = 1;
  int two = 2;
  EXPECT_FALSE(list.any());
  EXPECT_TRUE(list.Take().empty());
  list.Add(&one);
  list.Add(&two);
  EXPECT_TRUE(list.any());
  EXPECT_TRUE(list.Remove(&one));
  EXPECT_FALSE(list.Remove(&one));
  EXPECT_EQ(list.Take(), std::vector<int*>{&two});
  EXPECT_FALSE(list.any());
  EXPECT_FALSE(list.Remove(&two)) << "it was taken over";
}

TEST(AddedList, NothingIsLostBetweenThreads) {
  constexpr size_t kThreads = 4;
  constexpr size_t kEach = 500;
  std::array<std::array<int, kEach>, kThreads> entries{};
  AddedList<int> list;
  std::vector<std::thread> adders;
  adders.reserve(kThreads);
  for (auto& mine : entries) {
    adders.emplace_back([&list, &mine] {
      for (int& entry : mine) list.Add(&entry);
    });
  }
  std::set<int*> taken;
  while (taken.size() < kThreads * kEach) {
    if (!list.any()) testing::Pause();
    for (int* entry : list.Take()) EXPECT_TRUE(taken.insert(entry).second);
  }
  for (std::thread& adder : adders) adder.join();
  EXPECT_FALSE(list.any());
}

}  // namespace
}  // namespace kvxfer::net
