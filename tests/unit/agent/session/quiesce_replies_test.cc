// When a target's questions are answered, and what is closed before that.

#include "src/agent/session/quiesce_replies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class QuiesceRepliesTest : public ::testing::Test, public QuiesceReplies::User {
 protected:
  void DropKeys(std::span<const uint32_t> regions) override {
    // No answer leaves before the keys are dropped.
    answers_at_drop_ = channel_.kept();
    dropped_.insert(dropped_.end(), regions.begin(), regions.end());
  }
  bool IsClosing() const override { return closing_; }

  void Ask(uint64_t id, std::vector<uint64_t> transfers, bool revoke = false, bool cuda = false) {
    const QuiesceFrame frame{.id = id, .revoke = revoke, .regions = {5, 3}};
    ASSERT_OK(replies_.CheckSpace(frame));
    replies_.Add(frame, cuda, transfers);
  }
  // The ids that were answered since the last call.
  std::vector<uint64_t> Answered() {
    std::vector<uint64_t> ids;
    while (const std::string* message = channel_.NextToSend()) {
      const auto envelope = DecodeEnvelope(std::as_bytes(std::span(*message)));
      EXPECT_EQ(envelope->type, FrameType::kQuiet);
      ids.push_back(Decode<QuietFrame>(envelope->body)->id);
      channel_.MessageSent();
    }
    return ids;
  }

  ReliableChannel channel_;
  QuiesceReplies replies_{&channel_, this};
  bool closing_ = false;
  std::vector<uint32_t> dropped_;
  size_t answers_at_drop_ = 0;
};

TEST_F(QuiesceRepliesTest, AQuestionThatWaitsForNothingIsAnsweredAtOnce) {
  Ask(7, {});
  EXPECT_THAT(Answered(), ElementsAre(7));
  EXPECT_TRUE(replies_.idle());
  EXPECT_THAT(dropped_, IsEmpty());
}

TEST_F(QuiesceRepliesTest, TheLastTransferThatEndsAnswers) {
  Ask(7, {1, 2});
  replies_.End(2);
  replies_.End(9);
  EXPECT_THAT(Answered(), IsEmpty());
  EXPECT_FALSE(replies_.idle());
  replies_.End(1);
  EXPECT_THAT(Answered(), ElementsAre(7));
  EXPECT_TRUE(replies_.idle());
}

TEST_F(QuiesceRepliesTest, WhatIsRevokedIsClosedBeforeTheAnswer) {
  Ask(7, {1}, true);
  EXPECT_THAT(dropped_, IsEmpty());
  replies_.End(1);
  EXPECT_THAT(dropped_, ElementsAre(5, 3));
  EXPECT_EQ(answers_at_drop_, 0u);
  EXPECT_THAT(Answered(), ElementsAre(7));
}

TEST_F(QuiesceRepliesTest, RevokedGpuMemoryIsAnsweredOnceNoneOfItIsOpen) {
  closing_ = true;
  Ask(7, {}, true, true);
  EXPECT_THAT(dropped_, ElementsAre(5, 3));
  EXPECT_TRUE(replies_.waits_closed());
  EXPECT_FALSE(replies_.idle());
  // Host memory, and questions that revoke nothing, do not wait.
  Ask(8, {}, true, false);
  Ask(9, {}, false, true);
  EXPECT_THAT(Answered(), ElementsAre(8, 9));
  replies_.OnTimer();
  EXPECT_THAT(Answered(), IsEmpty());
  closing_ = false;
  replies_.OnTimer();
  EXPECT_THAT(Answered(), ElementsAre(7));
  EXPECT_FALSE(replies_.waits_closed());
}

TEST_F(QuiesceRepliesTest, TheEndOfAnyTransferSeesThatMemoryIsClosed) {
  closing_ = true;
  Ask(7, {}, true, true);
  closing_ = false;
  replies_.End(1);
  EXPECT_THAT(Answered(), ElementsAre(7));
}

TEST_F(QuiesceRepliesTest, QuestionsThatWaitForMemoryCountAsAsked) {
  closing_ = true;
  const QuiesceFrame frame{.revoke = true, .regions = {1}};
  size_t asked = 0;
  for (; replies_.CheckSpace(frame).ok(); ++asked) {
    ASSERT_LT(asked, 100'000u);
    replies_.Add(frame, true, {});
  }
  EXPECT_EQ(asked, kMaxRevocations);
  EXPECT_TRUE(Fails(replies_.CheckSpace(frame), absl::StatusCode::kResourceExhausted, {"QUIESCE"}));
}

TEST_F(QuiesceRepliesTest, AfterTheSessionNobodyWaits) {
  closing_ = true;
  Ask(7, {}, true, true);
  Ask(8, {1});
  replies_.Clear();
  EXPECT_TRUE(replies_.idle());
  closing_ = false;
  replies_.End(1);
  replies_.OnTimer();
  EXPECT_THAT(Answered(), IsEmpty());
}

}  // namespace
}  // namespace kvxfer::testing
