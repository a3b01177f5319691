// Credit in number and in bytes.
#include "src/core/protocol/send_credit.h"

#include <gtest/gtest.h>

#include <string>

namespace kvxfer {
namespace {

TEST(SendCredit, BothNumberAndBytes) {
  const std::string small(10, 's');
  const std::string large(60, 'l');
  SendCredit credit;
  EXPECT_TRUE(credit.Has(nullptr)) << "nothing to send";
  EXPECT_FALSE(credit.Has(&small));
  credit.OnCredit({.notifications = 2, .bytes = 70});
  EXPECT_TRUE(credit.Has(&large));
  credit.Take(&small);
  EXPECT_TRUE(credit.Has(&large)) << "exactly what is left";
  credit.Take(&large);
  EXPECT_FALSE(credit.Has(&small));
  credit.OnCredit({.notifications = 3, .bytes = 70});
  EXPECT_FALSE(credit.Has(&small)) << "bytes";
  credit.OnCredit({.notifications = 3, .bytes = 200});
  EXPECT_TRUE(credit.Has(&small));
}

TEST(SendCredit, WhatTheTargetNeverHadComesBack) {
  const std::string text(10, 't');
  SendCredit credit;
  credit.OnCredit({.notifications = 1, .bytes = 10});
  credit.Take(&text);
  credit.Take(nullptr);
  EXPECT_FALSE(credit.Has(&text));
  credit.Return(nullptr);
  EXPECT_FALSE(credit.Has(&text));
  credit.Return(&text);
  EXPECT_TRUE(credit.Has(&text));
}

// Frames that overtook each other.
TEST(SendCredit, TotalsDoNotShrink) {
  const std::string text(10, 't');
  SendCredit credit;
  credit.OnCredit({.notifications = 2, .bytes = 20});
  credit.OnCredit({.notifications = 1, .bytes = 10});
  credit.Take(&text);
  EXPECT_TRUE(credit.Has(&text));
}

}  // namespace
}  // namespace kvxfer
