// Leases by name: who holds which blocks, how many have to fetch them, and when they end.
#include "src/core/kv/kv_leases.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/core/base/strings.h"
#include "src/core/kv/lease_refusal.h"
#include "tests/support/status_macros.h"
#include "tests/unit/core/kv/leases.h"

namespace kvxfer::testing {
namespace {

using std::chrono::hours;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr auto kUnknown = absl::StatusCode::kNotFound;

std::vector<std::pair<std::string, KvLeaseEnd>> Ends(KvLeases& leases, Time now) {
  std::vector<std::pair<std::string, KvLeaseEnd>> ends;
  for (auto& [lease, end] : leases.End(now)) ends.emplace_back(std::move(lease), end);
  return ends;
}

// --- names ---

TEST(KvLeases, NamesHaveABoundedLength) {
  KvLeases leases;
  EXPECT_TRUE(Fails(leases.Grant("", 1, At(5)), kInvalid, {"KV lease", "0 bytes", "1 to 255"}));
  EXPECT_TRUE(Fails(leases.Grant(std::string(256, 'n'), 1, At(5)), kInvalid, {"256 bytes"}));
  EXPECT_EQ(leases.granted(), 0u);
  EXPECT_EQ(leases.NextExpiry(), std::nullopt);
  const std::string longest(255, 'n');
  const std::string no_text("\0\xff\n", 3);
  EXPECT_OK(leases.Grant(longest, 1, At(5)));
  EXPECT_OK(leases.Grant("größe", 1, At(6)));
  EXPECT_TRUE(Fails(leases.Grant(no_text, 1, At(6)), kInvalid, {"KV lease", "UTF-8"}));
  EXPECT_THAT(Ends(leases, At(7)), ElementsAre(Pair(longest, kExpired), Pair("größe", kExpired)));
}

TEST(KvLeases, ANameIsGivenOutOnce) {
  KvLeases leases;
  const auto again = [&] {
    return Fails(leases.Grant("a", 2, At(50)), kUsed, {"KV lease a", "another name"});
  };
  ASSERT_OK(leases.Grant("a", 1, At(5)));
  EXPECT_TRUE(again()) << "held";
  EXPECT_OK(leases.Grant("b", 1, At(5))) << "the same blocks under another name";
  EXPECT_OK(leases.Release("a", At(0)));
  EXPECT_TRUE(again()) << "ended, and not told of";
  EXPECT_THAT(Ends(leases, At(0)), ElementsAre(Pair("a", kReleased)));
  EXPECT_TRUE(again()) << "told of";
  EXPECT_TRUE(Fails(leases.Begin("a", 1, 1, 1, seconds(1), At(0)), kEnded, {"a", "released"}));
  EXPECT_EQ(leases.granted(), 2u);
  EXPECT_EQ(leases.NextExpiry(), At(5)) << "those that were refused hold nothing";
}

TEST(KvLeases, ANameIsForgottenLongAfterItsEnd) {
  KvLeases leases;
  ASSERT_OK(leases.Grant("held", 1, At(1000)));
  ASSERT_OK(leases.Grant("0", 1, At(5)));
  ASSERT_OK(leases.Begin("0", 1, 1, 1, seconds(9), At(0)));
  ASSERT_OK(leases.Finish("0", 1, 1, 2, At(0)));
  ASSERT_OK(leases.Release("0", At(0)));
  size_t told = leases.End(At(0)).size();
  for (size_t i = 1; i < KvLeases::kMaxRemembered; ++i) {
    ASSERT_OK(leases.Grant(std::to_string(i), 1, At(5)));
    ASSERT_OK(leases.Release(std::to_string(i), At(0)));
    if (i % 1000 == 0) told += leases.End(At(0)).size();
  }
  told += leases.End(At(0)).size();
  ASSERT_EQ(told, KvLeases::kMaxRemembered);
  EXPECT_TRUE(Fails(leases.Grant("0", 2, At(5)), kUsed, {"KV lease 0"}));
  EXPECT_TRUE(Fails(leases.Renew("0", At(9), At(0)), kEnded, {"a while ago"}));
  // What is not told of makes nothing forgotten.
  ASSERT_OK(leases.Grant("last", 1, At(5)));
  ASSERT_OK(leases.Release("last", At(0)));
  EXPECT_TRUE(Fails(leases.Grant("0", 2, At(5)), kUsed));
  EXPECT_THAT(Ends(leases, At(0)), ElementsAre(Pair("last", kReleased)));
  EXPECT_TRUE(Fails(leases.Renew("0", At(9), At(0)), kUnknown, {"KV lease 0", "long ago"}));
  EXPECT_TRUE(Fails(leases.Grant("1", 2, At(5)), kUsed));
  EXPECT_TRUE(Fails(leases.Grant("held", 2, At(5)), kUsed));
  EXPECT_OK(leases.Begin("held", 1, 1, 1, seconds(1), At(0)));
  // It begins anew: other blocks, and nobody has fetched them.
  EXPECT_OK(leases.Grant("0", 2, At(5)));
  EXPECT_TRUE(Fails(leases.Begin("0", 1, 2, 1, seconds(9), At(0)), kInvalid, {"not the blocks"}));
  EXPECT_OK(leases.Begin("0", 2, 2, 1, seconds(9), At(0)));
  EXPECT_OK(leases.Finish("0", 2, 1, 2, At(1)));
  EXPECT_THAT(Ends(leases, At(1)), IsEmpty());
  EXPECT_THAT(Ends(leases, At(5)), ElementsAre(Pair("0", kExpired)));
  EXPECT_TRUE(Fails(leases.Grant("0", 3, At(9)), kUsed));
}

TEST(KvLeases, UnknownNames) {
  KvLeases leases;
  EXPECT_TRUE(Fails(leases.Renew("a", At(1), At(0)), kUnknown, {"KV lease a", "never"}));
  EXPECT_TRUE(Fails(leases.Release("a", At(0)), kUnknown, {"KV lease a", "never"}));
  EXPECT_TRUE(Fails(leases.Begin("a", 1, 1, 1, seconds(1), At(0)), kUnknown, {"a", "never"}));
  EXPECT_TRUE(Fails(leases.Finish("a", 1, 1, 1, At(0)), kUnknown, {"KV lease a", "never"}));
  EXPECT_TRUE(Fails(leases.Renew("", At(1), At(0)), kUnknown));
  leases.Abandon("a", 1, 1, At(0));
  leases.Sweep(1, At(0));
  EXPECT_THAT(Ends(leases, At(9)), IsEmpty());
  EXPECT_OK(leases.Grant("a", 1, At(5)));
}

TEST(KvLeases, OneThatIsRefusedForLackOfRoomLeavesItsName) {
  KvLeases leases;
  for (size_t i = 0; i < LeaseBook::kMaxLeases; ++i) {
    ASSERT_OK(leases.Grant(std::to_string(i), 1, At(5)));
  }
  EXPECT_TRUE(Fails(leases.Grant("a", 1, At(9)), absl::StatusCode::kResourceExhausted,
                    {"KV lease a", "65536 leases"}));
  EXPECT_TRUE(Fails(leases.Renew("a", At(9), At(0)), kUnknown));
  EXPECT_OK(leases.Release("7", At(0)));
  EXPECT_THAT(Ends(leases, At(0)), ElementsAre(Pair("7", kReleased)));
  EXPECT_OK(leases.Grant("a", 1, At(9)));
  EXPECT_EQ(leases.granted(), LeaseBook::kMaxLeases + 1);
}

// --- one lease ---

class KvLease : public ::testing::Test {
 protected:
  static constexpr uint64_t kBlocks = 0x123456789abcdef0;

  KvLease() { EXPECT_OK(leases_.Grant("a", kBlocks, At(5))); }

  absl::Status Begin(KvLeases::Reader reader, uint64_t fetch, Duration within, Time now) {
    return leases_.Begin("a", kBlocks, reader, fetch, within, now);
  }
  absl::Status Finish(KvLeases::Reader reader, uint64_t fetch, uint32_t readers, Time now) {
    return leases_.Finish("a", reader, fetch, readers, now);
  }

  KvLeases leases_;
};

TEST_F(KvLease, ItsContentsAreSaidByReadersAndAreNoPartOfItsName) {
  ASSERT_OK(leases_.Grant("b", kBlocks, At(5), "prompt"));
  EXPECT_TRUE(Fails(leases_.Grant("b", kBlocks, At(5), "another"), kUsed)) << "one name, one lease";
  EXPECT_TRUE(Fails(leases_.Grant("c", kBlocks, At(5), std::string(256, 'c')), kInvalid, {"256"}));
  EXPECT_OK(leases_.Grant("c", kBlocks, At(5), std::string(255, 'c')));
  for (const char* other : {"", "promp", "prompt2", "Prompt"}) {
    const absl::Status status = leases_.Begin("b", kBlocks, 1, 1, seconds(9), At(0), other);
    EXPECT_TRUE(Fails(status, kInvalid, {"KV lease b"}));
    EXPECT_EQ(LeaseRefusalOf(status), KvLeaseRefusal::kOtherContents);
    EXPECT_EQ(std::string(status.message()).find("prompt"), std::string::npos) << status;
  }
  EXPECT_EQ(LeaseRefusalOf(leases_.Begin("a", kBlocks, 1, 1, seconds(9), At(0), "prompt")),
            KvLeaseRefusal::kOtherContents);
  EXPECT_OK(leases_.Begin("b", kBlocks, 1, 1, seconds(9), At(0), "prompt"));
}

TEST_F(KvLease, ARefusalHasACode) {
  const auto begin = [&](std::string_view lease, uint64_t hash, uint64_t fetch) {
    return LeaseRefusalOf(leases_.Begin(lease, hash, 1, fetch, seconds(9), At(0)));
  };
  EXPECT_EQ(begin("b", kBlocks, 1), KvLeaseRefusal::kUnknown);
  EXPECT_EQ(begin("a", kBlocks + 1, 1), KvLeaseRefusal::kOtherBlocks);
  EXPECT_EQ(begin("a", kBlocks, 1), std::nullopt);
  EXPECT_EQ(begin("a", kBlocks, 1), KvLeaseRefusal::kBusy) << "it has begun";
  EXPECT_OK(Finish(1, 1, 1, At(1)));
  EXPECT_EQ(begin("a", kBlocks, 2), KvLeaseRefusal::kEnded);
  EXPECT_EQ(LeaseRefusalOf(Finish(1, 2, 1, At(1))), KvLeaseRefusal::kEnded);
  EXPECT_EQ(LeaseRefusalOf(leases_.Finish("b", 1, 1, 1, At(1))), KvLeaseRefusal::kUnknown);
  EXPECT_EQ(LeaseRefusalOf(absl::NotFoundError("another error")), std::nullopt);
  // Whoever says where it came from keeps it.
  const absl::Status told = Annotate(Annotate(Finish(1, 2, 1, At(1)), "peer p"), "rank p");
  EXPECT_TRUE(Fails(told, kEnded, {"rank p: peer p: KV lease a"}));
  EXPECT_EQ(LeaseRefusalOf(told), KvLeaseRefusal::kEnded);
  EXPECT_OK(Annotate(absl::OkStatus(), "peer p"));
  for (const auto refusal :
       {KvLeaseRefusal::kUnknown, KvLeaseRefusal::kOtherContents, KvLeaseRefusal::kOtherBlocks,
        KvLeaseRefusal::kEnded, KvLeaseRefusal::kBusy}) {
    EXPECT_EQ(LeaseRefusalOf(WithRefusal(absl::AbortedError(""), refusal)), refusal);
  }
}

TEST_F(KvLease, TheBlocksMustBeThoseThatItHolds) {
  ASSERT_OK(leases_.Grant("b", kBlocks + 1, At(5)));
  const auto begin = [&](std::string_view lease, uint64_t hash) {
    return leases_.Begin(lease, hash, 1, 1, seconds(9), At(0));
  };
  for (const uint64_t hash : {uint64_t{0}, kBlocks + 1, ~kBlocks, kBlocks | uint64_t{1} << 63}) {
    EXPECT_TRUE(Fails(begin("a", hash), kInvalid, {"KV lease a", "not the blocks"}));
  }
  EXPECT_TRUE(Fails(begin("b", kBlocks), kInvalid, {"KV lease b"}));
  EXPECT_TRUE(Fails(Finish(1, 1, 1, At(0)), kEnded, {"KV lease a", "worth nothing"}));
  EXPECT_OK(begin("a", kBlocks));
  EXPECT_OK(begin("b", kBlocks + 1)) << "one fetch may be under several leases";
  EXPECT_TRUE(Fails(begin("a", kBlocks), kUsed, {"KV lease a", "fetch 1"}));
  EXPECT_OK(Finish(1, 1, 1, At(1)));
  EXPECT_THAT(Ends(leases_, At(1)), ElementsAre(Pair("a", kConsumed)));
  EXPECT_OK(leases_.Finish("b", 1, 1, 2, At(1)));
  EXPECT_THAT(Ends(leases_, At(5)), ElementsAre(Pair("b", kExpired)));
}

TEST_F(KvLease, IsConsumedByTheOnlyReader) {
  EXPECT_OK(Begin(1, 1, seconds(9), At(0)));
  EXPECT_OK(Finish(1, 1, 1, At(1)));
  EXPECT_TRUE(Fails(Begin(2, 1, seconds(9), At(1)), kEnded, {"KV lease a", "consumed"}));
  EXPECT_TRUE(Fails(leases_.Renew("a", At(9), At(1)), kEnded, {"KV lease a", "consumed"}));
  EXPECT_TRUE(Fails(leases_.Release("a", At(1)), kEnded, {"KV lease a", "consumed"}));
  EXPECT_THAT(Ends(leases_, At(1)), ElementsAre(Pair("a", kConsumed)));
  EXPECT_THAT(Ends(leases_, At(9)), IsEmpty());
}

TEST_F(KvLease, IsConsumedWhenTheLastReaderHasFinished) {
  for (KvLeases::Reader reader = 1; reader <= 3; ++reader) {
    EXPECT_OK(Begin(reader, 1, seconds(9), At(0)));
    EXPECT_THAT(Ends(leases_, At(0)), IsEmpty());
    EXPECT_OK(Finish(reader, 1, 3, At(1)));
  }
  EXPECT_THAT(Ends(leases_, At(1)), ElementsAre(Pair("a", kConsumed)));
  EXPECT_TRUE(Fails(Begin(4, 1, seconds(9), At(1)), kEnded, {"KV lease a", "consumed"}));
  EXPECT_TRUE(Fails(Finish(4, 1, 3, At(1)), kEnded, {"KV lease a", "worth nothing"}));
}

TEST_F(KvLease, AReaderCountsOnce) {
  for (uint64_t fetch = 1; fetch <= 5; ++fetch) {
    EXPECT_OK(Begin(1, fetch, seconds(9), At(0)));
    EXPECT_OK(Finish(1, fetch, 2, At(1)));
  }
  // Also with fetches that are under way at once.
  EXPECT_OK(Begin(1, 6, seconds(9), At(1)));
  EXPECT_OK(Begin(1, 7, seconds(9), At(1)));
  EXPECT_OK(Finish(1, 6, 2, At(1)));
  EXPECT_OK(Finish(1, 7, 2, At(1)));
  EXPECT_THAT(Ends(leases_, At(2)), IsEmpty());
  EXPECT_OK(Begin(2, 1, seconds(9), At(2)));
  EXPECT_OK(Finish(2, 1, 2, At(3)));
  EXPECT_THAT(Ends(leases_, At(3)), ElementsAre(Pair("a", kConsumed)));
}

TEST_F(KvLease, OfAnotherOneAReaderCountsAnew) {
  ASSERT_OK(leases_.Grant("b", kBlocks, At(6)));
  for (const char* lease : {"a", "b"}) {
    EXPECT_OK(leases_.Begin(lease, kBlocks, 1, 1, seconds(9), At(0)));
    EXPECT_OK(leases_.Finish(lease, 1, 1, 2, At(1)));
  }
  EXPECT_OK(Begin(2, 1, seconds(9), At(1)));
  EXPECT_OK(Finish(2, 1, 2, At(2)));
  EXPECT_THAT(Ends(leases_, At(2)), ElementsAre(Pair("a", kConsumed)));
  EXPECT_THAT(Ends(leases_, At(6)), ElementsAre(Pair("b", kExpired)));
}

TEST_F(KvLease, WhoDoesNotFinishDoesNotCount) {
  EXPECT_OK(Begin(1, 1, seconds(1), At(0)));
  EXPECT_TRUE(Fails(Finish(1, 1, 2, At(1)), kEnded, {"worth nothing"})) << "took too long";
  EXPECT_TRUE(Fails(Finish(3, 1, 2, At(1)), kEnded, {"worth nothing"})) << "never began";
  EXPECT_OK(Begin(4, 1, seconds(9), At(1)));
  leases_.Abandon("a", 4, 1, At(1));
  EXPECT_OK(Begin(5, 1, seconds(9), At(1)));
  leases_.Sweep(5, At(1));
  EXPECT_OK(Begin(2, 1, seconds(9), At(1)));
  EXPECT_OK(Finish(2, 1, 2, At(2)));
  EXPECT_TRUE(Fails(Finish(2, 1, 2, At(2)), kEnded, {"worth nothing"})) << "a second time";
  EXPECT_THAT(Ends(leases_, At(2)), IsEmpty());
  // The same one tries again, and does.
  EXPECT_OK(Begin(1, 2, seconds(9), At(2)));
  EXPECT_OK(Finish(1, 2, 2, At(3)));
  EXPECT_THAT(Ends(leases_, At(3)), ElementsAre(Pair("a", kConsumed)));
}

TEST_F(KvLease, WhoHasFinishedCountsThoughLost) {
  EXPECT_OK(Begin(1, 1, seconds(9), At(0)));
  EXPECT_OK(Finish(1, 1, 2, At(1)));
  leases_.Sweep(1, At(1));
  EXPECT_OK(Begin(2, 1, seconds(9), At(1)));
  EXPECT_OK(Finish(2, 1, 2, At(2)));
  EXPECT_THAT(Ends(leases_, At(2)), ElementsAre(Pair("a", kConsumed)));
}

TEST_F(KvLease, OneReaderTooMany) {
  for (KvLeases::Reader reader = 1; reader <= 3; ++reader)
    EXPECT_OK(Begin(reader, 1, seconds(9), At(0)));
  EXPECT_OK(Finish(1, 1, 2, At(1)));
  EXPECT_OK(Finish(2, 1, 2, At(1)));
  EXPECT_THAT(Ends(leases_, At(1)), IsEmpty()) << "the third reads still";
  EXPECT_OK(Finish(3, 1, 2, At(2)));
  EXPECT_THAT(Ends(leases_, At(2)), ElementsAre(Pair("a", kConsumed)));
}

TEST_F(KvLease, WhoFinishesAfterItsEndIsRefused) {
  EXPECT_OK(Begin(3, 1, seconds(2), At(0)));
  for (KvLeases::Reader reader = 1; reader <= 2; ++reader) {
    EXPECT_OK(Begin(reader, 1, seconds(9), At(0)));
    EXPECT_OK(Finish(reader, 1, 2, At(1)));
  }
  EXPECT_EQ(leases_.NextExpiry(), At(2)) << "only the fetch holds it";
  EXPECT_THAT(Ends(leases_, At(2)), ElementsAre(Pair("a", kConsumed)));
  EXPECT_TRUE(Fails(Finish(3, 1, 2, At(2)), kEnded, {"KV lease a", "worth nothing"}));
  EXPECT_THAT(Ends(leases_, At(2)), IsEmpty());
  EXPECT_EQ(leases_.count(kConsumed), 1u);
}

// --- time ---

TEST_F(KvLease, IsHeldUntilItExpires) {
  EXPECT_EQ(leases_.NextExpiry(), At(5));
  EXPECT_OK(leases_.Renew("a", At(7), At(4)));
  EXPECT_OK(leases_.Renew("a", At(6), At(4))) << "an earlier time takes nothing away";
  EXPECT_EQ(leases_.NextExpiry(), At(7));
  EXPECT_THAT(Ends(leases_, At(7) - Duration(1)), IsEmpty());
  // The clock decides, not when somebody looked.
  EXPECT_TRUE(Fails(Begin(1, 1, seconds(9), At(7)), kEnded, {"KV lease a", "expired"}));
  EXPECT_TRUE(Fails(leases_.Renew("a", At(9), At(7)), kEnded, {"KV lease a", "expired"}));
  EXPECT_TRUE(Fails(leases_.Release("a", At(7)), kEnded, {"KV lease a", "expired"}));
  EXPECT_THAT(Ends(leases_, At(7)), ElementsAre(Pair("a", kExpired)));
}

TEST_F(KvLease, AFetchHoldsItBeyondItsTime) {
  EXPECT_OK(Begin(1, 1, seconds(16), At(4)));
  EXPECT_OK(Begin(2, 1, seconds(2), At(4)));
  EXPECT_THAT(Ends(leases_, At(5)), IsEmpty());
  EXPECT_TRUE(Fails(Begin(3, 1, seconds(1), At(5)), kEnded, {"expired"}));
  EXPECT_EQ(leases_.NextExpiry(), At(6));
  EXPECT_TRUE(Fails(Finish(2, 1, 1, At(6)), kEnded, {"worth nothing"})) << "its own time is over";
  EXPECT_EQ(leases_.NextExpiry(), At(20));
  EXPECT_THAT(Ends(leases_, At(19)), IsEmpty());
  EXPECT_OK(Finish(1, 1, 2, At(19)));
  EXPECT_THAT(Ends(leases_, At(19)), ElementsAre(Pair("a", kExpired)));
}

TEST_F(KvLease, IsConsumedThoughItsTimeIsOver) {
  EXPECT_OK(Begin(1, 1, seconds(9), At(4)));
  EXPECT_OK(Begin(2, 1, seconds(9), At(4)));
  EXPECT_OK(Finish(1, 1, 2, At(6)));
  EXPECT_OK(Finish(2, 1, 2, At(7)));
  EXPECT_THAT(Ends(leases_, At(7)), ElementsAre(Pair("a", kConsumed)));
}

TEST_F(KvLease, AFetchThatTakesNoTimeIsOverAtOnce) {
  uint64_t fetch = 0;
  for (const Duration within : {Duration(0), Duration(-1), Duration(hours(-1)), Duration::min()}) {
    EXPECT_OK(Begin(1, ++fetch, within, At(3)));
    EXPECT_EQ(leases_.NextExpiry(), At(3)) << within.count();
    EXPECT_TRUE(Fails(Finish(1, fetch, 1, At(3)), kEnded, {"worth nothing"}));
    EXPECT_EQ(leases_.NextExpiry(), At(5));
  }
  EXPECT_OK(Begin(1, ++fetch, Duration(1), At(3)));
  EXPECT_OK(Finish(1, fetch, 2, At(3)));
  EXPECT_OK(Begin(1, ++fetch, Duration(1), At(3)));
  EXPECT_TRUE(Fails(Finish(1, fetch, 2, At(3) + Duration(1)), kEnded, {"worth nothing"}));
}

TEST(KvLeases, NoFetchHoldsOneForLong) {
  const auto held = [](Duration within) {
    KvLeases leases;
    EXPECT_OK(leases.Grant("a", 1, At(5)));
    EXPECT_OK(leases.Begin("a", 1, 1, 1, within, At(4)));
    EXPECT_OK(leases.Release("a", At(4)));
    const Time end = leases.NextExpiry().value_or(At(0));
    EXPECT_THAT(Ends(leases, end - Duration(1)), IsEmpty());
    EXPECT_THAT(Ends(leases, end), ElementsAre(Pair("a", kReleased)));
    EXPECT_TRUE(Fails(leases.Finish("a", 1, 1, 1, end), kEnded, {"worth nothing"}));
    return end - At(4);
  };
  const Duration longest = KvLeases::kLongestFetch;
  EXPECT_EQ(longest, std::chrono::minutes(5));
  EXPECT_EQ(held(longest - Duration(1)), longest - Duration(1));
  EXPECT_EQ(held(longest), longest);
  EXPECT_EQ(held(longest + Duration(1)), longest);
  EXPECT_EQ(held(hours(1000)), longest);
  EXPECT_EQ(held(Duration::max()), longest);
}

// --- ends ---

TEST_F(KvLease, AReleasedOneWaitsForItsReaders) {
  EXPECT_OK(Begin(1, 1, seconds(9), At(0)));
  EXPECT_OK(Begin(2, 1, seconds(9), At(0)));
  EXPECT_OK(leases_.Release("a", At(1)));
  EXPECT_TRUE(Fails(leases_.Release("a", At(1)), kEnded, {"KV lease a", "released by its owner"}));
  EXPECT_TRUE(Fails(Begin(3, 1, seconds(9), At(1)), kEnded, {"released by its owner"}));
  EXPECT_THAT(Ends(leases_, At(1)), IsEmpty());
  EXPECT_OK(Finish(1, 1, 2, At(1)));
  EXPECT_THAT(Ends(leases_, At(1)), IsEmpty());
  EXPECT_OK(Finish(2, 1, 2, At(2)));
  EXPECT_THAT(Ends(leases_, At(2)), ElementsAre(Pair("a", kReleased)));
  EXPECT_EQ(leases_.NextExpiry(), std::nullopt);
}

TEST_F(KvLease, WhatIsAbandonedHoldsNothing) {
  EXPECT_OK(Begin(1, 1, seconds(9), At(0)));
  EXPECT_OK(Begin(1, 2, seconds(9), At(0)));
  EXPECT_OK(leases_.Release("a", At(0)));
  leases_.Abandon("a", 1, 3, At(0));
  leases_.Abandon("a", 2, 1, At(0));
  leases_.Abandon("b", 1, 1, At(0));
  leases_.Abandon("a", 1, 1, At(0));
  EXPECT_TRUE(Fails(Finish(1, 1, 1, At(0)), kEnded, {"worth nothing"}));
  EXPECT_THAT(Ends(leases_, At(0)), IsEmpty());
  leases_.Abandon("a", 1, 2, At(0));
  EXPECT_THAT(Ends(leases_, At(0)), ElementsAre(Pair("a", kReleased)));
  leases_.Abandon("a", 1, 2, At(0));
  EXPECT_THAT(Ends(leases_, At(9)), IsEmpty());
}

TEST_F(KvLease, ALostReaderHoldsNothing) {
  ASSERT_OK(leases_.Grant("b", kBlocks, At(50)));
  EXPECT_OK(Begin(1, 1, seconds(90), At(0)));
  EXPECT_OK(leases_.Begin("b", kBlocks, 1, 1, seconds(90), At(0)));
  EXPECT_OK(leases_.Begin("b", kBlocks, 2, 1, seconds(90), At(0)));
  EXPECT_OK(leases_.Release("b", At(0)));
  leases_.Sweep(1, At(6));
  EXPECT_THAT(Ends(leases_, At(6)), ElementsAre(Pair("a", kExpired)));
  EXPECT_TRUE(Fails(leases_.Finish("b", 1, 1, 1, At(6)), kEnded, {"worth nothing"}));
  leases_.Sweep(2, At(7));
  EXPECT_THAT(Ends(leases_, At(7)), ElementsAre(Pair("b", kReleased)));
}

TEST_F(KvLease, EachEndIsToldOnceByItsName) {
  for (const char* name : {"b", "c", "d", "e"}) ASSERT_OK(leases_.Grant(name, kBlocks, At(6)));
  EXPECT_OK(leases_.Begin("c", kBlocks, 1, 1, seconds(9), At(0)));
  EXPECT_OK(leases_.Begin("e", kBlocks, 1, 1, seconds(9), At(0)));
  EXPECT_OK(leases_.Release("d", At(1)));
  EXPECT_EQ(leases_.NextExpiry(), Time::min()) << "there is something to tell";
  EXPECT_OK(leases_.Finish("c", 1, 1, 1, At(2)));
  EXPECT_THAT(Ends(leases_, At(5)),
              ElementsAre(Pair("d", kReleased), Pair("c", kConsumed), Pair("a", kExpired)));
  EXPECT_EQ(leases_.NextExpiry(), At(6));
  EXPECT_THAT(Ends(leases_, At(8)), ElementsAre(Pair("b", kExpired)));
  EXPECT_EQ(leases_.NextExpiry(), At(9));
  EXPECT_THAT(Ends(leases_, At(9)), ElementsAre(Pair("e", kExpired)));
  EXPECT_EQ(leases_.NextExpiry(), std::nullopt);
  EXPECT_THAT(Ends(leases_, At(99)), IsEmpty());
}

TEST_F(KvLease, AreCounted) {
  const auto counts = [&] {
    return std::vector<uint64_t>{leases_.granted(), leases_.count(kConsumed),
                                 leases_.count(kReleased), leases_.count(kExpired)};
  };
  for (const char* name : {"b", "c", "d", "e", "f"}) ASSERT_OK(leases_.Grant(name, 1, At(6)));
  EXPECT_FALSE(leases_.Grant("a", 1, At(6)).ok());
  EXPECT_FALSE(leases_.Grant("", 1, At(6)).ok());
  EXPECT_THAT(counts(), ElementsAre(6, 0, 0, 0));
  EXPECT_OK(leases_.Begin("b", 1, 1, 1, seconds(9), At(0)));
  EXPECT_OK(leases_.Finish("b", 1, 1, 1, At(0)));
  EXPECT_OK(leases_.Release("c", At(0)));
  EXPECT_OK(leases_.Release("d", At(0)));
  EXPECT_THAT(counts(), ElementsAre(6, 1, 2, 0));
  EXPECT_EQ(leases_.End(At(6)).size(), 6u);
  EXPECT_THAT(counts(), ElementsAre(6, 1, 2, 3));
}

}  // namespace
}  // namespace kvxfer::testing
