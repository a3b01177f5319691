// The agent's leases as its engine uses them: who is answered at once, who later, who not at all.
#include "src/agent/kv/lease_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/agent/engine/event_queue.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

using std::chrono::seconds;

constexpr Time At(int second) { return Time{} + seconds(second); }
constexpr uint64_t Nanos(uint64_t seconds) { return 1'000'000'000 * seconds; }

class LeaseServiceTest : public ::testing::Test {
 protected:
  std::optional<LeaseAnswerFrame> Read(KvLeases::Reader reader, uint64_t transfer, uint64_t wait,
                                       const std::string& contents = "prompt", Time now = At(0)) {
    return service_.OnLeaseRead({.transfer = transfer,
                                 .lease = "a",
                                 .contents = contents,
                                 .blocks_hash = 7,
                                 .within_nanos = Nanos(60),
                                 .wait_nanos = Nanos(wait)},
                                reader, now);
  }
  absl::Status Grant(Time now) {
    return service_.Grant("a", {.hash = 7, .contents = "prompt"}, now + seconds(30), now);
  }
  uint64_t Refused() {
    KvCounts counts;
    service_.Count(counts);
    return counts.fetches_refused;
  }

  EventQueue events_{nullptr, nullptr};
  LeaseService service_{&events_};
};

TEST_F(LeaseServiceTest, AReadThatMayWaitIsAnsweredWithTheGrant) {
  EXPECT_EQ(Read(1, 1, 0)->refusal, KvLeaseRefusal::kUnknown) << "it may not wait";
  EXPECT_EQ(Read(1, 2, 5), std::nullopt);
  EXPECT_EQ(Read(2, 2, 5, "another"), std::nullopt);
  EXPECT_EQ(service_.NextExpiry(), At(5));
  EXPECT_TRUE(service_.TakeLateAnswers().empty());
  ASSERT_OK(Grant(At(1)));
  const auto late = service_.TakeLateAnswers();
  ASSERT_EQ(late.size(), 2u);
  EXPECT_EQ(late[0], std::pair(KvLeases::Reader{1}, LeaseAnswerFrame{.transfer = 2}));
  EXPECT_EQ(late[1].first, 2u);
  EXPECT_EQ(late[1].second.refusal, KvLeaseRefusal::kOtherContents);
  EXPECT_EQ(late[1].second.why.find("prompt"), std::string::npos)
      << "contents are no peer's affair";
  EXPECT_TRUE(service_.TakeLateAnswers().empty());
  EXPECT_EQ(Refused(), 2u);
  EXPECT_EQ(service_.OnFetchEnd({.transfer = 2, .lease = "a", .readers = 1}, 1, At(2)),
            LeaseAnswerFrame{.transfer = 2});
}

TEST_F(LeaseServiceTest, AReadWaitsNoLongerThanItMay) {
  EXPECT_EQ(Read(1, 1, 5), std::nullopt);
  EXPECT_EQ(Read(1, 2, 90), std::nullopt) << "nor than the transfer has time";
  service_.Expire(At(4));
  EXPECT_TRUE(service_.TakeLateAnswers().empty());
  service_.Expire(At(5));
  auto late = service_.TakeLateAnswers();
  ASSERT_EQ(late.size(), 1u);
  EXPECT_EQ(late[0].second.refusal, KvLeaseRefusal::kUnknown);
  EXPECT_EQ(service_.NextExpiry(), At(60));
}

TEST_F(LeaseServiceTest, AReadThatIsGivenUpOrWhoseReaderIsLostWaitsForNothing) {
  EXPECT_EQ(Read(1, 1, 5), std::nullopt);
  EXPECT_EQ(Read(2, 1, 5), std::nullopt);
  EXPECT_EQ(service_.OnFetchEnd({.transfer = 1, .lease = "a", .readers = 0}, 1, At(1)),
            std::nullopt);
  service_.Sweep(2, At(1));
  EXPECT_EQ(service_.NextExpiry(), Time::max());
  ASSERT_OK(Grant(At(1)));
  EXPECT_TRUE(service_.TakeLateAnswers().empty());
}

TEST_F(LeaseServiceTest, OneThatFindsNoRoomToWaitIsToldToTryAgain) {
  for (uint64_t transfer = 1; transfer <= LeaseWaiters::kMaxOfReader; ++transfer) {
    ASSERT_EQ(Read(1, transfer, 5), std::nullopt);
  }
  const auto answer = Read(1, LeaseWaiters::kMaxOfReader + 1, 5);
  EXPECT_EQ(answer->refusal, KvLeaseRefusal::kBusy);
  EXPECT_THAT(answer->why, ::testing::HasSubstr("KV lease a"));
  EXPECT_THAT(answer->why, ::testing::HasSubstr("try again"));
  EXPECT_EQ(Read(2, 1, 5), std::nullopt);
}

TEST_F(LeaseServiceTest, OneThatGivesWayIsToldToTryAgain) {
  constexpr uint64_t kReaders = LeaseWaiters::kMax / LeaseWaiters::kMaxOfReader;
  for (uint64_t reader = 1; reader <= kReaders; ++reader) {
    for (uint64_t transfer = 1; transfer <= LeaseWaiters::kMaxOfReader; ++transfer) {
      ASSERT_EQ(Read(reader, transfer, 5), std::nullopt);
    }
  }
  EXPECT_TRUE(service_.TakeLateAnswers().empty());
  EXPECT_EQ(Read(99, 1, 5), std::nullopt) << "it waits, for it has fewer than the others";
  const auto late = service_.TakeLateAnswers();
  ASSERT_EQ(late.size(), 1u);
  EXPECT_NE(late[0].first, 99u);
  EXPECT_EQ(late[0].second.transfer, LeaseWaiters::kMaxOfReader);
  EXPECT_EQ(late[0].second.refusal, KvLeaseRefusal::kBusy);
}

}  // namespace
}  // namespace kvxfer::testing
