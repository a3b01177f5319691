// When an initiator asks for arrival slots.
#include "src/core/protocol/slot_supply.h"

#include <gtest/gtest.h>

#include "tests/support/status_macros.h"

namespace kvxfer {
namespace {

TEST(SlotSupply, AsksOnceUntilItIsAnswered) {
  ReliableChannel channel;
  SlotSupply slots(&channel);
  const auto asked = [&] {
    size_t frames = 0;
    for (; channel.NextToSend() != nullptr; ++frames) channel.MessageSent();
    return frames;
  };
  slots.Request();
  slots.Request();
  EXPECT_EQ(asked(), 1u);
  EXPECT_FALSE(slots.any());
  ASSERT_OK(slots.OnGrant({.range = {.first = 0, .count = 4}}));
  EXPECT_TRUE(slots.any());
  EXPECT_EQ(asked(), 0u);
  slots.Request();
  EXPECT_EQ(asked(), 1u);
  // Expect nothing of it in the next session, where the target knows nothing.
  slots.Clear();
  EXPECT_FALSE(slots.any());
  slots.Request();
  EXPECT_EQ(asked(), 1u);
}

}  // namespace
}  // namespace kvxfer
