#include "src/core/base/short_list.h"

#include <gtest/gtest.h>

#include <string>

namespace kvxfer {
namespace {

std::string ListOf(size_t entries) {
  ShortList list;
  for (size_t i = 0; i < entries; ++i) {
    if (list.Add()) list.Name(std::string(1, static_cast<char>('a' + i)));
  }
  return list.Text();
}

TEST(ShortList, NamesAFewAndCountsTheRest) {
  EXPECT_EQ(ListOf(0), "");
  EXPECT_EQ(ListOf(1), "a");
  EXPECT_EQ(ListOf(8), "a, b, c, d, e, f, g, h");
  EXPECT_EQ(ListOf(11), "a, b, c, d, e, f, g, h and 3 more");
}

}  // namespace
}  // namespace kvxfer
