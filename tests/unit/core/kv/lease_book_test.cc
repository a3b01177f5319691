// Leases and the fetches under them: every schedule of small worlds, in which an owner uses blocks
// again as soon as it is told that it may, and readers look at what they got.
#include "src/core/kv/lease_book.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/support/scale.h"
#include "tests/support/status_macros.h"
#include "tests/unit/core/kv/leases.h"

namespace kvxfer::testing {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

// An owner with one block for each lease, and readers with one fetch each. A block's content is the
// number of times that it was used again; a reader takes it in two reads.
class BookWorld {
 public:
  static constexpr int kReaders = 2;

  // Steps by number; false: not possible now.
  bool Step(int step) {
    switch (step) {
      case 0:
        return Grant();
      case 1:
        return lease_ && Call(book_.Renew(*lease_, At(now_ + 3), At(now_)));
      case 2:
        return lease_ && Call(book_.Release(*lease_, At(now_)));
      case 3:  // what becomes of that is seen when somebody looks
        ++now_;
        return true;
      case 4:
        return TakeEnded();
      default:
        return ReaderStep((step - 5) / 6, (step - 5) % 6);
    }
  }
  static constexpr int kSteps = 5 + 6 * kReaders;

  // Whatever happened before: with time alone everything ends, and is told when the book says.
  void RunOut() {
    for (int i = 0; i < 10 && book_.NextExpiry().has_value(); ++i) {
      while (At(now_) < *book_.NextExpiry()) ++now_;
      TakeEnded();
    }
    EXPECT_EQ(book_.held(), 0u);
    EXPECT_EQ(book_.NextExpiry(), std::nullopt);
    EXPECT_EQ(told_.size(), granted_);
  }

  int confirmed() const { return confirmed_; }

 private:
  struct Reader {
    std::optional<LeaseId> lease{};
    uint64_t fetch = 0;
    int content_of_lease = 0;
    std::optional<int> first{};
    std::optional<int> second{};
  };

  bool Call(const absl::Status& status) {
    EXPECT_TRUE(status.ok() || status.code() == kEnded) << status;
    return true;
  }

  bool Grant() {
    if (lease_ || granted_ == 2) return false;
    auto lease = book_.Grant(At(now_ + 2));
    EXPECT_OK(lease);
    lease_ = *lease;
    ++granted_;
    return true;
  }

  // The owner's block is used again only when it is told that the lease has ended.
  bool TakeEnded() {
    for (const auto& [lease, end] : book_.End(At(now_))) {
      EXPECT_TRUE(told_.insert(lease).second) << "told twice";
      EXPECT_EQ(lease_, lease);
      lease_.reset();
      ++content_;
    }
    return true;
  }

  bool ReaderStep(int which, int step) {
    Reader& reader = readers_[which];
    const auto name = static_cast<LeaseBook::Reader>(which);
    switch (step) {
      case 0:  // reads may begin before Begin is heard
        if (reader.lease || !lease_) return false;
        reader = {.lease = lease_, .fetch = ++fetches_, .content_of_lease = content_};
        reader.first = content_;
        return true;
      case 1: {
        if (!reader.lease || began_[which]) return false;
        const absl::Status begun =
            book_.Begin(*reader.lease, name, reader.fetch, At(now_ + 2), At(now_));
        Call(begun);
        began_[which] = true;
        return true;
      }
      case 2:
        if (!reader.lease || reader.second) return false;
        reader.second = content_;
        return true;
      case 3: {
        if (!reader.lease || !reader.second) return false;
        const bool consume = which == 0;
        const absl::Status done =
            book_.Finish(*reader.lease, name, reader.fetch, consume, At(now_));
        if (done.ok()) {
          ++confirmed_;
          EXPECT_EQ(reader.first, reader.content_of_lease);
          EXPECT_EQ(reader.second, reader.content_of_lease) << "wrong bytes taken for good ones";
        } else {
          EXPECT_EQ(done.code(), kEnded) << done;
        }
        reader = {};
        began_[which] = false;
        return true;
      }
      case 4:
        if (!reader.lease) return false;
        book_.Abandon(*reader.lease, name, reader.fetch, At(now_));
        reader = {};
        began_[which] = false;
        return true;
      default:
        if (!reader.lease) return false;
        book_.Sweep(name, At(now_));
        reader = {};
        began_[which] = false;
        return true;
    }
  }

  LeaseBook book_;
  int now_ = 0;
  size_t granted_ = 0;
  std::optional<LeaseId> lease_;  // as the owner knows it
  int content_ = 0;
  std::set<LeaseId> told_;
  Reader readers_[kReaders];
  bool began_[kReaders] = {};
  uint64_t fetches_ = 0;
  int confirmed_ = 0;
};

TEST(LeaseBook, EveryShortSchedule) {
  uint64_t schedules = 0;
  int confirmed = 0;
  const int depth = kSlow ? 7 : 8;
  const std::function<void(const BookWorld&, int)> search = [&](const BookWorld& world, int left) {
    if (left == 0 || ::testing::Test::HasFailure()) {
      BookWorld end = world;
      end.RunOut();
      ++schedules;
      confirmed += end.confirmed();
      return;
    }
    for (int step = 0; step < BookWorld::kSteps; ++step) {
      BookWorld next = world;
      if (next.Step(step)) search(next, left - 1);
    }
  };
  search(BookWorld(), depth);
  EXPECT_GT(schedules, 100'000u);
  EXPECT_GT(confirmed, 100);
}

TEST(LeaseBook, LongRandomSchedules) {
  std::mt19937_64 random(TestSeed());
  int confirmed = 0;
  for (int i = 0; i < Scaled(100'000) && !HasFailure(); ++i) {
    BookWorld world;
    for (int step = 0; step < 40; ++step) {
      world.Step(static_cast<int>(random() % BookWorld::kSteps));
    }
    world.RunOut();
    confirmed += world.confirmed();
  }
  EXPECT_GT(confirmed, Scaled(2'000));
}

TEST(LeaseBook, IsHeldUntilItExpires) {
  LeaseBook book;
  ASSERT_OK_AND_ASSIGN(const LeaseId lease, book.Grant(At(5)));
  EXPECT_EQ(book.NextExpiry(), At(5));
  EXPECT_THAT(book.End(At(5) - Duration(1)), IsEmpty());
  EXPECT_OK(book.Renew(lease, At(7), At(4)));
  EXPECT_OK(book.Renew(lease, At(6), At(4))) << "an earlier time takes nothing away";
  EXPECT_THAT(book.End(At(6)), IsEmpty());
  // The clock decides, not when somebody looked.
  EXPECT_TRUE(Fails(book.Renew(lease, At(9), At(7)), kEnded, {"lease 1", "expired"}));
  EXPECT_TRUE(Fails(book.Begin(lease, 1, 1, At(9), At(7)), kEnded, {"expired"}));
  EXPECT_TRUE(Fails(book.Release(lease, At(7)), kEnded, {"expired"}));
  EXPECT_THAT(book.End(At(7)), ElementsAre(Pair(lease, KvLeaseEnd::kExpired)));
  EXPECT_THAT(book.End(At(8)), IsEmpty());
  EXPECT_EQ(book.count(KvLeaseEnd::kExpired), 1u);
}

TEST(LeaseBook, AFetchHoldsItBeyondItsTimeAndNobodyElseBegins) {
  LeaseBook book;
  ASSERT_OK_AND_ASSIGN(const LeaseId lease, book.Grant(At(5)));
  EXPECT_OK(book.Begin(lease, 1, 1, At(20), At(4)));
  EXPECT_THAT(book.End(At(6)), IsEmpty());
  EXPECT_EQ(book.NextExpiry(), At(20));
  EXPECT_TRUE(Fails(book.Begin(lease, 2, 1, At(20), At(6)), kEnded, {"expired"}));
  EXPECT_TRUE(Fails(book.Renew(lease, At(30), At(6)), kEnded, {"expired"}));
  EXPECT_OK(book.Finish(lease, 1, 1, false, At(8)));
  EXPECT_EQ(book.NextExpiry(), Time::min()) << "there is something to tell";
  EXPECT_THAT(book.End(At(8)), ElementsAre(Pair(lease, KvLeaseEnd::kExpired)));
  EXPECT_EQ(book.NextExpiry(), std::nullopt);
}

TEST(LeaseBook, WhatIsFetchedInTimeIsConsumedThoughItsTimeIsOver) {
  LeaseBook book;
  ASSERT_OK_AND_ASSIGN(const LeaseId lease, book.Grant(At(5)));
  EXPECT_OK(book.Begin(lease, 1, 1, At(20), At(4)));
  EXPECT_OK(book.Finish(lease, 1, 1, true, At(8)));
  EXPECT_THAT(book.End(At(8)), ElementsAre(Pair(lease, KvLeaseEnd::kConsumed)));
}

TEST(LeaseBook, TheLastFetchOfAnEndingOneMayBeGivenUp) {
  LeaseBook book;
  ASSERT_OK_AND_ASSIGN(const LeaseId lease, book.Grant(At(5)));
  EXPECT_OK(book.Begin(lease, 1, 1, At(9), At(0)));
  EXPECT_OK(book.Release(lease, At(1)));
  book.Abandon(lease, 1, 1, At(1));
  EXPECT_THAT(book.End(At(1)), ElementsAre(Pair(lease, KvLeaseEnd::kReleased)));
}

TEST(LeaseBook, AFetchThatTakesTooLongIsWorthNothing) {
  LeaseBook book;
  ASSERT_OK_AND_ASSIGN(const LeaseId lease, book.Grant(At(5)));
  EXPECT_OK(book.Begin(lease, 1, 1, At(8), At(4)));
  EXPECT_TRUE(Fails(book.Finish(lease, 1, 1, false, At(8)), kEnded, {"fetch 1", "worth nothing"}));
  EXPECT_THAT(book.End(At(8)), ElementsAre(Pair(lease, KvLeaseEnd::kExpired)));
}

TEST(LeaseBook, AConsumedOneIsGone) {
  LeaseBook book;
  ASSERT_OK_AND_ASSIGN(const LeaseId lease, book.Grant(At(5)));
  EXPECT_OK(book.Begin(lease, 1, 1, At(9), At(0)));
  EXPECT_OK(book.Begin(lease, 2, 1, At(9), At(0)));
  EXPECT_OK(book.Finish(lease, 1, 1, true, At(1)));
  EXPECT_TRUE(Fails(book.Begin(lease, 3, 1, At(9), At(1)), kEnded, {"consumed"}));
  EXPECT_THAT(book.End(At(1)), IsEmpty()) << "another reads it still";
  EXPECT_OK(book.Finish(lease, 2, 1, false, At(2)));
  EXPECT_THAT(book.End(At(2)), ElementsAre(Pair(lease, KvLeaseEnd::kConsumed)));
  EXPECT_TRUE(Fails(book.Begin(lease, 1, 2, At(9), At(2)), kEnded, {"lease 1", "consumed"}));
  EXPECT_TRUE(Fails(book.Finish(lease, 1, 1, true, At(2)), kEnded, {"worth nothing"}));
}

TEST(LeaseBook, AReleasedOneWaitsForItsReaders) {
  LeaseBook book;
  ASSERT_OK_AND_ASSIGN(const LeaseId lease, book.Grant(At(5)));
  EXPECT_OK(book.Begin(lease, 1, 1, At(9), At(0)));
  EXPECT_OK(book.Begin(lease, 1, 2, At(9), At(0)));
  EXPECT_TRUE(
      Fails(book.Begin(lease, 1, 2, At(9), At(0)), absl::StatusCode::kAlreadyExists, {"fetch 2"}));
  EXPECT_OK(book.Release(lease, At(1)));
  EXPECT_TRUE(Fails(book.Release(lease, At(1)), kEnded, {"released by its owner"}));
  EXPECT_TRUE(Fails(book.Begin(lease, 2, 1, At(9), At(1)), kEnded, {"released by its owner"}));
  book.Abandon(lease, 1, 1, At(1));
  book.Abandon(lease, 1, 7, At(1));
  EXPECT_THAT(book.End(At(1)), IsEmpty());
  EXPECT_OK(book.Finish(lease, 1, 2, false, At(2)));
  EXPECT_THAT(book.End(At(2)), ElementsAre(Pair(lease, KvLeaseEnd::kReleased)));
}

TEST(LeaseBook, ALostReaderHoldsNothing) {
  LeaseBook book;
  ASSERT_OK_AND_ASSIGN(const LeaseId one, book.Grant(At(5)));
  ASSERT_OK_AND_ASSIGN(const LeaseId two, book.Grant(At(50)));
  for (uint64_t fetch : {uint64_t{0}, uint64_t{UINT64_MAX}}) {
    EXPECT_OK(book.Begin(one, 1, fetch, At(90), At(0)));
  }
  EXPECT_OK(book.Begin(two, 1, 5, At(90), At(0)));
  EXPECT_OK(book.Begin(two, 2, 5, At(90), At(0)));
  EXPECT_OK(book.Release(two, At(0)));
  book.Sweep(1, At(6));
  EXPECT_THAT(book.End(At(6)), ElementsAre(Pair(one, KvLeaseEnd::kExpired)));
  EXPECT_TRUE(Fails(book.Finish(two, 1, 5, false, At(6)), kEnded, {"worth nothing"}));
  EXPECT_OK(book.Finish(two, 2, 5, false, At(6)));
  EXPECT_THAT(book.End(At(6)), ElementsAre(Pair(two, KvLeaseEnd::kReleased)));
}

TEST(LeaseBook, UnknownAndForgottenOnes) {
  LeaseBook book;
  constexpr auto kUnknown = absl::StatusCode::kNotFound;
  EXPECT_TRUE(Fails(book.Renew(LeaseId::kNone, At(1), At(0)), kUnknown, {"lease 0", "never"}));
  EXPECT_TRUE(Fails(book.Begin(LeaseId{7}, 1, 1, At(9), At(0)), kUnknown, {"lease 7", "never"}));
  EXPECT_TRUE(Fails(book.Finish(LeaseId{7}, 1, 1, true, At(0)), kEnded, {"worth nothing"}));
  book.Abandon(LeaseId{7}, 1, 1, At(0));
  for (size_t i = 0; i <= LeaseBook::kMaxEnded; ++i) {
    ASSERT_OK_AND_ASSIGN(const LeaseId lease, book.Grant(At(1)));
    ASSERT_OK(book.Release(lease, At(0)));
  }
  EXPECT_EQ(book.End(At(0)).size(), LeaseBook::kMaxEnded + 1);
  EXPECT_TRUE(Fails(book.Begin(LeaseId{1}, 1, 1, At(9), At(0)), kEnded, {"a while ago"}));
  EXPECT_TRUE(Fails(book.Begin(LeaseId{2}, 1, 1, At(9), At(0)), kEnded, {"released"}));
}

TEST(LeaseBook, IsBounded) {
  LeaseBook book;
  for (size_t i = 0; i < LeaseBook::kMaxLeases; ++i) ASSERT_OK(book.Grant(At(1)));
  EXPECT_TRUE(Fails(book.Grant(At(1)), absl::StatusCode::kResourceExhausted, {"65536 leases"}));
  for (uint64_t i = 0; i < LeaseBook::kMaxFetches; ++i) {
    ASSERT_OK(book.Begin(LeaseId{1 + i % 2}, 7, i, At(9), At(0)));
  }
  EXPECT_TRUE(Fails(book.Begin(LeaseId{3}, 7, 9999, At(9), At(0)),
                    absl::StatusCode::kResourceExhausted, {"16384 fetches", "one reader"}));
  EXPECT_OK(book.Begin(LeaseId{3}, 8, 0, At(9), At(0))) << "others have places of their own";
  EXPECT_OK(book.Finish(LeaseId{1}, 7, 0, false, At(0)));
  EXPECT_OK(book.Begin(LeaseId{3}, 7, 9999, At(9), At(0)));
  // What was not told of counts.
  EXPECT_OK(book.Release(LeaseId{9}, At(0)));
  EXPECT_TRUE(Fails(book.Grant(At(1)), absl::StatusCode::kResourceExhausted, {"65536 leases"}));
  EXPECT_EQ(book.End(At(1)).size(), LeaseBook::kMaxLeases - 3);
  EXPECT_OK(book.Grant(At(2)));
}

// Whoever reads, and however far it is: what it has read is worth nothing.
TEST(LeaseBook, ARevokedLeaseEndsAtOnceAndNoFetchOfItIsGood) {
  LeaseBook book;
  ASSERT_OK_AND_ASSIGN(const LeaseId lease, book.Grant(At(100)));
  ASSERT_OK(book.Begin(lease, 1, 1, At(50), At(0)));
  ASSERT_OK(book.Begin(lease, 2, 1, At(60), At(0)));
  ASSERT_OK(book.Finish(lease, 1, 1, false, At(1)));
  ASSERT_OK(book.Revoke(lease, At(2)));
  EXPECT_THAT(book.End(At(2)), ElementsAre(Pair(lease, KvLeaseEnd::kReleased)));
  EXPECT_FALSE(book.IsReading(2));
  EXPECT_EQ(book.NextExpiry(), std::nullopt);
  EXPECT_FALSE(book.Finish(lease, 2, 1, true, At(3)).ok());
  EXPECT_FALSE(book.Begin(lease, 3, 1, At(9), At(3)).ok());
  EXPECT_TRUE(Fails(book.Revoke(lease, At(3)), absl::StatusCode::kFailedPrecondition));
  EXPECT_TRUE(Fails(book.Revoke(LeaseId{7}, At(3)), absl::StatusCode::kNotFound));
  EXPECT_EQ(book.count(KvLeaseEnd::kReleased), 1u);
}

TEST(LeaseBook, WhatWasReleasedOrHasExpiredWhileItIsReadCanBeRevoked) {
  LeaseBook book;
  ASSERT_OK_AND_ASSIGN(const LeaseId released, book.Grant(At(100)));
  ASSERT_OK_AND_ASSIGN(const LeaseId expired, book.Grant(At(1)));
  ASSERT_OK(book.Begin(released, 1, 1, At(50), At(0)));
  ASSERT_OK(book.Begin(expired, 1, 2, At(50), At(0)));
  ASSERT_OK(book.Release(released, At(2)));
  EXPECT_THAT(book.End(At(2)), ElementsAre());
  ASSERT_OK(book.Revoke(released, At(2)));
  ASSERT_OK(book.Revoke(expired, At(2)));
  EXPECT_EQ(book.End(At(2)).size(), 2u);
  EXPECT_FALSE(book.IsReading(1));
  EXPECT_EQ(book.held(), 0u);
}

}  // namespace
}  // namespace kvxfer::testing
