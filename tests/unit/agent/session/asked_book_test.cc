// Which of a target's questions are quiet, and how many it may ask.
#include "src/agent/session/asked_book.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

class AskedBookTest : public ::testing::Test {
 protected:
  void Add(uint64_t id, bool revoke, std::vector<uint64_t> transfers, uint32_t region = 1) {
    AskedBook::Question question{.id = id, .revoke = revoke};
    if (revoke) question.regions = {region};
    book_.Add(std::move(question), transfers);
  }
  std::vector<uint64_t> Quiet() {
    std::vector<uint64_t> ids;
    for (const AskedBook::Question& quiet : book_.TakeQuiet()) ids.push_back(quiet.id);
    return ids;
  }
  absl::Status Space(bool revoke, size_t more = 0) const {
    return book_.CheckSpace({.revoke = revoke, .regions = {1}}, more);
  }

  AskedBook book_;
};

TEST_F(AskedBookTest, AQuestionIsQuietWithTheLastTransferThatItWaitsFor) {
  Add(7, true, {1, 2});
  Add(7, true, {2});  // a target may use an id twice
  Add(8, false, {});
  EXPECT_EQ(Quiet(), std::vector<uint64_t>{8});
  book_.End(2);
  book_.End(2);
  EXPECT_EQ(Quiet(), std::vector<uint64_t>{7});
  EXPECT_FALSE(book_.empty());
  book_.End(3);
  EXPECT_TRUE(Quiet().empty());
  book_.End(1);
  EXPECT_FALSE(book_.empty());
  EXPECT_EQ(Quiet(), std::vector<uint64_t>{7});
  EXPECT_TRUE(book_.empty());
}

TEST_F(AskedBookTest, QuestionsOfBothKindsAreBoundedEachByItself) {
  for (uint64_t i = 0; i < kMaxRevocations; ++i) {
    ASSERT_OK(Space(true));
    Add(i, true, {i});
  }
  EXPECT_TRUE(Fails(Space(true), absl::StatusCode::kResourceExhausted, {"more QUIESCE"}));
  for (uint64_t i = 0; i < kMaxQuestions; ++i) {
    ASSERT_OK(Space(false));
    Add(i, false, {i});
  }
  EXPECT_FALSE(Space(false).ok());
  book_.End(5);
  EXPECT_FALSE(Space(true).ok()) << "not answered yet";
  EXPECT_EQ(Quiet().size(), 2u);
  EXPECT_OK(Space(true));
  EXPECT_OK(Space(false));
  EXPECT_FALSE(Space(true, 1).ok()) << "one waits elsewhere";
}

TEST_F(AskedBookTest, TheRegionsOfAllQuestionsAreBounded) {
  const std::vector<uint32_t> page(kMaxListedRegions, 1);
  const std::array<uint64_t, 1> transfer{1};
  const QuiesceFrame frame{.revoke = true, .regions = page};
  size_t taken = 0;
  while (taken < 100 && book_.CheckSpace(frame, 0).ok()) {
    book_.Add({.id = ++taken, .revoke = true, .regions = page}, transfer);
  }
  EXPECT_EQ(taken, kMaxRegions / kMaxListedRegions);
  book_.End(1);
  EXPECT_EQ(book_.TakeQuiet().size(), taken);
  EXPECT_OK(book_.CheckSpace(frame, 0));
}

}  // namespace
}  // namespace kvxfer::testing
