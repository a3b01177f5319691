// Which markers a fence waits for, while streams end and are made anew.
#include "src/transport/fence_book.h"

#include <gtest/gtest.h>

#include <array>

namespace kvxfer {
namespace {

constexpr uint32_t kControl = 2;  // never ends; 0 and 1 are data streams

class FenceBookLives : public ::testing::Test {
 protected:
  FenceBookLives() {
    book_.Close(0);
    book_.Close(1);
    book_.Open(0, 1);
    book_.Open(1, 1);
  }
  uint32_t OnControl(uint64_t transfer, uint32_t first, uint32_t second) {
    const std::array<uint32_t, 2> through{first, second};
    return book_.OnMarker(transfer, kControl, through);
  }

  FenceBook book_{3};
};

TEST_F(FenceBookLives, TheMarkerOfEveryOpenStreamIsWaitedFor) {
  EXPECT_EQ(book_.Ask(5), 0u);
  EXPECT_EQ(book_.OnMarker(5, 0), 0u);
  EXPECT_EQ(OnControl(5, 1, 1), 0u);
  EXPECT_EQ(book_.OnMarker(5, 1), 1u);
  EXPECT_EQ(book_.remembered(), 0u);
}

TEST_F(FenceBookLives, NoMarkerIsWaitedForOnAStreamThatEnds) {
  EXPECT_EQ(book_.Ask(5), 0u);
  EXPECT_EQ(book_.Ask(6), 0u);
  EXPECT_EQ(book_.OnMarker(5, 0), 0u);
  EXPECT_EQ(OnControl(5, 1, 1), 0u);
  // Its marker is lost with it. Of 6 the initiator has not said anything yet.
  EXPECT_EQ(book_.Close(1), (FenceBook::Due{{5, 1}}));
  EXPECT_TRUE(book_.IsFenced(6));
  EXPECT_EQ(book_.Close(0), FenceBook::Due{});
  EXPECT_EQ(OnControl(6, 1, 1), 1u);
}

TEST_F(FenceBookLives, ALaterLifeThatMayCarryItHasToSayThatItDoesNot) {
  EXPECT_EQ(book_.Ask(5), 0u);
  EXPECT_EQ(book_.OnMarker(5, 0), 0u);
  book_.Close(1);
  book_.Open(1, 2);
  // The initiator fenced it after that life had begun.
  EXPECT_EQ(OnControl(5, 1, 2), 0u);
  EXPECT_TRUE(book_.IsFenced(5));
  EXPECT_EQ(book_.OnMarker(5, 1), 1u);
}

TEST_F(FenceBookLives, AMarkerOfAnEarlierLifeDoesNotStandForALaterOne) {
  EXPECT_EQ(book_.Ask(5), 0u);
  EXPECT_EQ(book_.OnMarker(5, 0), 0u);
  EXPECT_EQ(book_.OnMarker(5, 1), 0u);
  book_.Close(1);
  book_.Open(1, 2);
  EXPECT_EQ(OnControl(5, 1, 2), 0u);
  EXPECT_EQ(book_.OnMarker(5, 1), 1u);
}

TEST_F(FenceBookLives, ALaterLifeThatCannotCarryItIsNotWaitedFor) {
  EXPECT_EQ(book_.Ask(5), 0u);
  EXPECT_EQ(book_.OnMarker(5, 0), 0u);
  book_.Close(1);
  book_.Open(1, 2);
  // It was fenced before that life began, and while the one before was down.
  EXPECT_EQ(OnControl(5, 1, 1), 1u);
}

TEST_F(FenceBookLives, WhatCameBeforeTheQuestionIsRememberedWithItsLives) {
  EXPECT_EQ(OnControl(5, 1, 1), 0u);
  EXPECT_EQ(book_.OnMarker(5, 0), 0u);
  book_.Close(1);
  book_.Open(1, 2);
  EXPECT_EQ(book_.Ask(5), 1u);
  // And the other way round: fenced in life 2, asked before its marker is in.
  EXPECT_EQ(OnControl(6, 1, 2), 0u);
  EXPECT_EQ(book_.OnMarker(6, 0), 0u);
  EXPECT_EQ(book_.Ask(6), 0u);
  EXPECT_EQ(book_.OnMarker(6, 1), 1u);
}

TEST_F(FenceBookLives, AStreamThatNeverCameIsNotWaitedFor) {
  FenceBook book(3);
  book.Close(0);
  book.Close(1);
  book.Open(1, 4);
  EXPECT_EQ(book.Ask(5), 0u);
  const std::array<uint32_t, 2> through{0, 4};
  EXPECT_EQ(book.OnMarker(5, kControl, through), 0u);
  EXPECT_EQ(book.OnMarker(5, 1), 1u);
}

}  // namespace
}  // namespace kvxfer
