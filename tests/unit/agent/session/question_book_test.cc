// Which questions to initiators are open, and when they are quiet.

#include "src/agent/session/question_book.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class QuestionBookTest : public ::testing::Test {
 protected:
  QuestionBook::Question Ask(std::set<QuestionBook::SessionId> waiting, bool revoke = false) {
    QuestionBook::Question& question = book_.Open(revoke);
    book_.Ask(question, std::move(waiting));
    return question;
  }
  static bool Quiet(const QuestionBook::Question& question) { return question.quiet->load(); }

  ProgressLoop loop_{Duration(0)};
  QuestionBook book_{&loop_};
};

TEST_F(QuestionBookTest, AQuestionIsQuietWithTheLastAnswer) {
  const auto question = Ask({4, 5});
  EXPECT_FALSE(Quiet(question));
  book_.OnAnswer(question.token, 4);
  book_.OnAnswer(question.token, 4);
  book_.OnAnswer(question.token, 9);
  book_.OnAnswer(question.token + 1, 5);
  EXPECT_FALSE(Quiet(question));
  const auto early = book_.IsQuiet(question.token);
  ASSERT_OK(early);
  EXPECT_FALSE(*early);
  EXPECT_THAT(*book_.WaitingOf(question.token), ElementsAre(5));
  book_.OnAnswer(question.token, 5);
  EXPECT_TRUE(Quiet(question));
  const auto late = book_.IsQuiet(question.token);
  ASSERT_OK(late);
  EXPECT_TRUE(*late);
  // Once.
  EXPECT_TRUE(Fails(book_.IsQuiet(question.token), absl::StatusCode::kNotFound, {"token"}));
  EXPECT_EQ(book_.WaitingOf(question.token), nullptr);
}

TEST_F(QuestionBookTest, WithNobodyToAskItIsQuietAtOnce) {
  EXPECT_TRUE(Quiet(Ask({})));
  Ask({}, true);
  EXPECT_TRUE(book_.any_revoked());
}

TEST_F(QuestionBookTest, ASessionThatIsGoneAnswersEverything) {
  const auto first = Ask({4});
  const auto second = Ask({4, 5});
  EXPECT_TRUE(book_.AnyWaitsFor(4));
  book_.OnGone(4, std::nullopt);
  EXPECT_FALSE(book_.AnyWaitsFor(4));
  EXPECT_TRUE(Quiet(first));
  EXPECT_FALSE(Quiet(second));
}

TEST_F(QuestionBookTest, WhatStandsInItsPlaceIsWaitedForByItsQuestionsOnly) {
  const auto its = Ask({4});
  const auto other = Ask({5});
  book_.OnGone(4, 0);
  EXPECT_FALSE(Quiet(its));
  EXPECT_THAT(*book_.WaitingOf(its.token), ElementsAre(0));
  EXPECT_THAT(*book_.WaitingOf(other.token), ElementsAre(5));
  book_.OnGone(0, std::nullopt);
  EXPECT_TRUE(Quiet(its));
  EXPECT_FALSE(Quiet(other));
}

TEST_F(QuestionBookTest, QuestionsThatRevokeAreNamedOnceQuiet) {
  const auto first = Ask({4}, true);
  const auto second = Ask({5}, true);
  EXPECT_EQ(book_.revoking(), 2u);
  book_.OnAnswer(second.token, 5);
  EXPECT_EQ(book_.revoking(), 1u);
  EXPECT_TRUE(book_.any_revoked());
  EXPECT_THAT(book_.TakeRevoked(), ElementsAre(second.token));
  EXPECT_FALSE(book_.any_revoked());
  EXPECT_THAT(book_.TakeRevoked(), IsEmpty());
  // They are no calls of Quiesce.
  EXPECT_TRUE(Fails(book_.IsQuiet(first.token), absl::StatusCode::kNotFound, {"token"}));
  book_.OnAnswer(second.token, 5);
  EXPECT_EQ(book_.revoking(), 1u);
}

TEST_F(QuestionBookTest, CallsThatAreNotAnsweredAreBounded) {
  std::vector<uint64_t> tokens;
  for (; book_.CheckSpace().ok(); tokens.push_back(Ask({4}).token)) {
    ASSERT_LT(tokens.size(), 100'000u);
    Ask({4}, true);  // does not count
  }
  EXPECT_EQ(tokens.size(), kMaxQuestions / 2);
  EXPECT_TRUE(Fails(book_.CheckSpace(), absl::StatusCode::kResourceExhausted, {"IsQuiet"}));
  book_.OnAnswer(tokens[0], 4);
  EXPECT_FALSE(book_.CheckSpace().ok()) << "its caller has not asked yet";
  ASSERT_OK(book_.IsQuiet(tokens[0]));
  EXPECT_OK(book_.CheckSpace());
}

}  // namespace
}  // namespace kvxfer::testing
