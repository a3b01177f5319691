// The target's half of a session: what a fence waits for, with several links, and what a peer may
// not do. The searches (arrival_tracker_exhaustive_test, _random_test) run the same class with one
// link.

#include "src/core/protocol/target_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace kvxfer::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr SlotTable::SessionId kSession = 7;
constexpr uint64_t kA = 1;  // links
constexpr uint64_t kB = 2;
constexpr TargetSession::Limits kLimits{
    .notifications = 8, .notification_bytes = 4 * kMaxNotificationBytes, .transfers = 4};

std::string ToString(const TargetSession::Fence& fence) {
  const FenceScope& scope = fence.scope;
  return scope.rail == FenceScope::kEveryRail
             ? absl::StrCat("transfer ", scope.transfer, " on ", fence.link)
             : absl::StrCat("rail ", scope.rail, " of ", fence.link);
}

class TargetSessionTest : public ::testing::Test {
 protected:
  TargetSessionTest() : session_(&table_, kSession, kLimits) {
    table_.Grant(kSession);
    session_.AddLink(kA);
    session_.TakeCredit({});
  }

  template <typename Frame>
  absl::Status Take(FrameType type, const Frame& frame) {
    bodies_.push_back(Encode(frame));
    const std::string& body = bodies_.back();
    return session_.OnFrame({.type = type, .body = std::as_bytes(std::span(body))});
  }
  absl::Status Open(uint64_t transfer, const std::string& notification = "n") {
    return Take(FrameType::kOpen, OpenFrame{.transfer = transfer,
                                            .notice = Notice::kNotification,
                                            .notification = notification});
  }
  absl::Status Abort(uint64_t transfer) {
    return Take(FrameType::kAbort, AbortFrame{.transfer = transfer});
  }

  // The fences that are to begin, and the aborts that are answered since the last call.
  std::vector<std::string> Fences() {
    std::vector<std::string> fences;
    TargetSession::Actions actions;
    while (session_.has_actions()) {
      EXPECT_TRUE(session_.TakeActions(actions).ok());
      for (const auto& fence : actions.fences) fences.push_back(ToString(fence));
      for (const AbortAck& ack : actions.tracked.released.aborted)
        answered_.push_back(ack.transfer);
      for (const auto& one : actions.tracked.deliver) delivered_.push_back(one.notification);
    }
    return fences;
  }
  std::vector<uint64_t> Answered() {
    Fences();
    return std::exchange(answered_, {});
  }

  SlotTable table_{1, 0};
  TargetSession session_;
  std::vector<std::string> bodies_;
  std::vector<uint64_t> answered_;
  std::vector<std::string> delivered_;
};

void ExpectRefused(const absl::Status& status, const char* why) {
  EXPECT_TRUE(absl::StrContains(status.message(), why)) << status;
}

TEST_F(TargetSessionTest, AnAbortIsAnsweredWhenEachLinkIsQuiet) {
  session_.AddLink(kB);
  ASSERT_TRUE(Abort(1).ok());
  EXPECT_THAT(Fences(), ElementsAre("transfer 1 on 1", "transfer 1 on 2"));
  EXPECT_TRUE(session_.OnFenced(kB, 1).ok());
  EXPECT_TRUE(session_.OnFenced(kB, 1).ok());
  EXPECT_THAT(Answered(), IsEmpty());
  EXPECT_TRUE(session_.OnFenced(kA, 1).ok());
  EXPECT_THAT(Answered(), ElementsAre(1));
  // Expect that an answer that comes again means nothing.
  EXPECT_TRUE(session_.OnFenced(kA, 1).ok());
  EXPECT_THAT(Answered(), IsEmpty());
}

TEST_F(TargetSessionTest, ALinkThatJoinsIsAskedToo) {
  ASSERT_TRUE(Abort(1).ok());
  EXPECT_THAT(Fences(), ElementsAre("transfer 1 on 1"));
  session_.AddLink(kB);
  EXPECT_THAT(Fences(), ElementsAre("transfer 1 on 2"));
  EXPECT_TRUE(session_.OnFenced(kA, 1).ok());
  EXPECT_THAT(Answered(), IsEmpty());
  EXPECT_TRUE(session_.OnFenced(kB, 1).ok());
  EXPECT_THAT(Answered(), ElementsAre(1));
}

TEST_F(TargetSessionTest, ALinkThatClosesIsNotAskedAndCountsOnceItIsDown) {
  session_.AddLink(kB);
  session_.OnLinkClosing(kB);
  ASSERT_TRUE(Abort(1).ok());
  EXPECT_THAT(Fences(), ElementsAre("transfer 1 on 1"));
  EXPECT_TRUE(session_.OnFenced(kA, 1).ok());
  EXPECT_THAT(Answered(), IsEmpty());
  EXPECT_TRUE(session_.OnLinkDown(kB).ok());
  EXPECT_THAT(Answered(), ElementsAre(1));
  // Expect the same of one that goes down without a word.
  ASSERT_TRUE(Abort(2).ok());
  EXPECT_THAT(Fences(), ElementsAre("transfer 2 on 1"));
  EXPECT_TRUE(session_.OnLinkDown(kA).ok());
  EXPECT_THAT(Answered(), ElementsAre(2));
  // Expect that without any link nothing has to be fenced.
  ASSERT_TRUE(Abort(3).ok());
  EXPECT_THAT(Answered(), ElementsAre(3));
  EXPECT_TRUE(session_.OnLinkDown(kA).ok());
}

// Expect that a fence is not asked of a link that has gone down since.
TEST_F(TargetSessionTest, FencesOfALinkThatIsDownAreNotBegun) {
  ASSERT_TRUE(session_.OnFenceRail(kA, 0, 2).ok());
  EXPECT_TRUE(session_.OnLinkDown(kA).ok());
  EXPECT_THAT(Fences(), IsEmpty());
  EXPECT_TRUE(session_.OnFenceRail(kA, 0, 2).ok());
  EXPECT_TRUE(session_.OnRailFenced(kA, 0).ok());
  EXPECT_TRUE(session_.OnFenced(kA, 1).ok());
  EXPECT_FALSE(session_.NextFencedRail(kA).has_value());
  EXPECT_THAT(Fences(), IsEmpty());
}

TEST_F(TargetSessionTest, WhileARailIsFencedNoTransferIsQuietOnItsLink) {
  ASSERT_TRUE(session_.OnFenceRail(kA, 0, 2).ok());
  ASSERT_TRUE(session_.OnFenceRail(kA, 1, 2).ok());
  EXPECT_THAT(Fences(), ElementsAre("rail 0 of 1", "rail 1 of 1"));
  ASSERT_TRUE(Abort(1).ok());
  ASSERT_TRUE(Abort(2).ok());
  EXPECT_THAT(Fences(), ElementsAre("transfer 1 on 1", "transfer 2 on 1"));
  EXPECT_TRUE(session_.OnFenced(kA, 2).ok());
  EXPECT_TRUE(session_.OnFenced(kA, 1).ok());
  EXPECT_THAT(Answered(), IsEmpty());
  EXPECT_TRUE(session_.OnRailFenced(kA, 1).ok());
  EXPECT_THAT(Answered(), IsEmpty());
  EXPECT_TRUE(session_.OnRailFenced(kA, 0).ok());
  EXPECT_THAT(Answered(), ElementsAre(2, 1));
}

TEST_F(TargetSessionTest, EachFencedRailIsToldOnce) {
  EXPECT_FALSE(session_.NextFencedRail(kA).has_value());
  for (int life = 0; life < 2; ++life) {
    ASSERT_TRUE(session_.OnFenceRail(kA, 1, 2).ok());
    EXPECT_THAT(Fences(), ElementsAre("rail 1 of 1"));
    EXPECT_FALSE(session_.NextFencedRail(kA).has_value());
    // Expect that an answer about another rail means nothing.
    EXPECT_TRUE(session_.OnRailFenced(kA, 0).ok());
    EXPECT_TRUE(session_.OnRailFenced(kA, 9).ok());
    EXPECT_FALSE(session_.NextFencedRail(kA).has_value());
    EXPECT_TRUE(session_.OnRailFenced(kA, 1).ok());
    EXPECT_EQ(session_.NextFencedRail(kA), 1u);
    session_.OnAnswered(kA, 1);
    EXPECT_FALSE(session_.NextFencedRail(kA).has_value());
  }
  ASSERT_TRUE(session_.OnFenceRail(kA, 0, 2).ok());
  EXPECT_TRUE(session_.OnRailFenced(kA, 0).ok());
  session_.OnLinkClosing(kA);
  EXPECT_FALSE(session_.NextFencedRail(kA).has_value());
}

TEST_F(TargetSessionTest, ARailIsNotFencedTwiceAndMustBeThere) {
  ExpectRefused(session_.OnFenceRail(kA, 0, 0), "rail 0, which is not there");
  ExpectRefused(session_.OnFenceRail(kA, 2, 2), "rail 2, which is not there");
  // Expect that rails may be added after the link.
  ASSERT_TRUE(session_.OnFenceRail(kA, 2, 3).ok());
  ExpectRefused(session_.OnFenceRail(kA, 2, 3), "is being fenced already");
  ASSERT_TRUE(session_.OnFenceRail(kA, 0, 2).ok());
  ExpectRefused(session_.OnFenceRail(kA, 0, 2), "is being fenced already");
  EXPECT_TRUE(session_.OnRailFenced(kA, 0).ok());
  ExpectRefused(session_.OnFenceRail(kA, 0, 2), "is being fenced already");
}

TEST_F(TargetSessionTest, LanesAreDiscardedOnlyAfterARailWasFenced) {
  const DiscardFrame discard{.transfer = 1, .slots = {SlotRef{.slot = 0, .generation = 0}}};
  ASSERT_TRUE(session_.OnFenceRail(kA, 0, 2).ok());
  ExpectRefused(Take(FrameType::kDiscard, discard), "no rail was fenced");
  EXPECT_TRUE(session_.OnRailFenced(kA, 0).ok());
  EXPECT_TRUE(Take(FrameType::kDiscard, discard).ok());
  TargetSession::Actions actions;
  ASSERT_TRUE(session_.TakeActions(actions).ok());
  ASSERT_EQ(actions.tracked.released.discarded.size(), 1u);
  EXPECT_FALSE(actions.tracked.released.discarded[0].complete);
}

TEST_F(TargetSessionTest, OnlyFramesAboutTransfersAreTaken) {
  for (int type = 0; type < 64; ++type) {
    const auto frame = static_cast<FrameType>(type);
    const bool takes = frame == FrameType::kOpen || frame == FrameType::kAmend ||
                       frame == FrameType::kAbort || frame == FrameType::kDiscard;
    EXPECT_EQ(TargetSession::Takes(frame), takes) << type;
    if (!takes)
      ExpectRefused(session_.OnFrame({.type = frame, .body = {}}), "not about a transfer");
  }
}

// --- limits and credit ---

TEST_F(TargetSessionTest, NotificationsNeedCredit) {
  for (uint64_t id = 1; id <= kLimits.notifications; ++id) {
    ASSERT_TRUE(Open(id).ok());
    EXPECT_TRUE(session_.CheckLimits().ok()) << id;
  }
  Fences();
  EXPECT_EQ(delivered_.size(), kLimits.notifications);
  ASSERT_TRUE(Open(100).ok());
  ExpectRefused(session_.CheckLimits(), "no credit");
  // Expect that it is told of credit once a quarter has come back, and not before.
  EXPECT_FALSE(session_.TakeCredit({.notifications = 1, .bytes = 1}).has_value());
  const auto credit = session_.TakeCredit({.notifications = 2, .bytes = 2});
  ASSERT_TRUE(credit.has_value());
  EXPECT_EQ(credit->notifications, kLimits.notifications + 2);
  EXPECT_EQ(credit->bytes, kLimits.notification_bytes + 2);
  EXPECT_TRUE(session_.CheckLimits().ok());
}

TEST_F(TargetSessionTest, BytesOfNotificationsNeedCredit) {
  for (uint64_t id = 1; id <= 4; ++id) {
    ASSERT_TRUE(Open(id, std::string(kMaxNotificationBytes, 'x')).ok());
    EXPECT_TRUE(session_.CheckLimits().ok()) << id;
  }
  ASSERT_TRUE(Open(5, "y").ok());
  ExpectRefused(session_.CheckLimits(), "no credit");
  Fences();
  ExpectRefused(session_.CheckLimits(), "no credit");
  const uint64_t step = CreditByteStep(kLimits.notification_bytes);
  EXPECT_FALSE(session_.TakeCredit({.notifications = 1, .bytes = step}).has_value());
  EXPECT_TRUE(session_.TakeCredit({.notifications = 1, .bytes = step + 1}).has_value());
  EXPECT_TRUE(session_.CheckLimits().ok());
}

TEST_F(TargetSessionTest, SoManyTransfersAtOnce) {
  for (uint64_t id = 1; id <= kLimits.transfers; ++id) {
    ASSERT_TRUE(Abort(id).ok());
    EXPECT_TRUE(session_.CheckLimits().ok()) << id;
  }
  ASSERT_TRUE(Abort(100).ok());
  ExpectRefused(session_.CheckLimits(), "more than 4 transfers");
}

// --- random schedules of several links beside a plain oracle ---

class Fencing {
 public:
  explicit Fencing(uint64_t seed) : session_(&table_, kSession, kMany), random_(seed) {
    table_.Grant(kSession);
    session_.TakeCredit({});
  }

  void Step() {
    const uint64_t link = 1 + random_() % (last_link_ + 1);
    switch (random_() % 8) {
      case 0:
        if (links_.size() < 4) AddLink();
        break;
      case 1:
        if (random_() % 4 == 0) Down(link);
        break;
      case 2:
        if (links_.contains(link)) session_.OnLinkClosing(link), links_[link].closing = true;
        break;
      case 3:
        Abort();
        break;
      case 4:
        FenceRail(link, static_cast<uint32_t>(random_() % 2));
        break;
      default:
        Answer();
    }
    Settle();
    for (auto& [transfer, open] : open_) Check(transfer, open);
  }
  // Everything that was asked is answered, or down.
  void Finish() {
    while (!links_.empty()) {
      Down(links_.begin()->first);
      Settle();
    }
    for (auto& [transfer, open] : open_) {
      Check(transfer, open);
      EXPECT_TRUE(open.answered);
    }
  }

 private:
  static constexpr TargetSession::Limits kMany{
      .notifications = 8, .notification_bytes = 4 * kMaxNotificationBytes, .transfers = 1000};
  struct Link {
    bool closing = false;
    std::map<uint32_t, bool> rails{};  // that were asked for: whether it is fenced
  };
  struct Open {
    std::map<uint64_t, bool> fenced{};  // of links that are not quiet
    bool answered = false;
  };

  void AddLink() {
    session_.AddLink(++last_link_);
    links_[last_link_] = {};
    for (auto& [transfer, open] : open_) {
      if (!open.answered) open.fenced[last_link_] = false;
    }
  }
  void Down(uint64_t link) {
    EXPECT_TRUE(session_.OnLinkDown(link).ok());
    links_.erase(link);
    for (auto& [transfer, open] : open_) open.fenced.erase(link);
    std::erase_if(asked_, [&](const TargetSession::Fence& fence) { return fence.link == link; });
  }
  void Abort() {
    const uint64_t transfer = ++last_transfer_;
    const std::string body = Encode(AbortFrame{.transfer = transfer});
    ASSERT_TRUE(
        session_.OnFrame({.type = FrameType::kAbort, .body = std::as_bytes(std::span(body))}).ok());
    for (const auto& [link, state] : links_) open_[transfer].fenced[link] = false;
    open_[transfer];
  }
  void FenceRail(uint64_t number, uint32_t rail) {
    const auto link = links_.find(number);
    if (link == links_.end() || link->second.closing || link->second.rails.contains(rail)) return;
    EXPECT_TRUE(session_.OnFenceRail(number, rail, 2).ok());
    link->second.rails[rail] = false;
  }
  // The backend answers one of the fences that it was asked for, or the initiator is told.
  void Answer() {
    for (auto& [number, link] : links_) {
      const auto rail = session_.NextFencedRail(number);
      if (!rail.has_value() || random_() % 2 == 0) continue;
      EXPECT_TRUE(link.rails.at(*rail));
      session_.OnAnswered(number, *rail);
      link.rails.erase(*rail);
      return;
    }
    if (asked_.empty()) return;
    const auto it = asked_.begin() + static_cast<ptrdiff_t>(random_() % asked_.size());
    const TargetSession::Fence fence = *it;
    asked_.erase(it);
    if (fence.scope.rail != FenceScope::kEveryRail) {
      EXPECT_TRUE(session_.OnRailFenced(fence.link, fence.scope.rail).ok());
      links_[fence.link].rails.at(fence.scope.rail) = true;
    } else {
      EXPECT_TRUE(session_.OnFenced(fence.link, fence.scope.transfer).ok());
      open_[fence.scope.transfer].fenced.at(fence.link) = true;
    }
  }
  void Settle() {
    TargetSession::Actions actions;
    while (session_.has_actions()) {
      ASSERT_TRUE(session_.TakeActions(actions).ok());
      for (const auto& fence : actions.fences) {
        ASSERT_TRUE(links_.contains(fence.link) && !links_[fence.link].closing);
        asked_.push_back(fence);
      }
      for (const AbortAck& ack : actions.tracked.released.aborted) {
        EXPECT_FALSE(std::exchange(open_.at(ack.transfer).answered, true)) << ack.transfer;
      }
    }
    // What is fenced on a link without a rail that is being fenced is quiet.
    for (auto& [transfer, open] : open_) {
      std::erase_if(open.fenced, [&](const auto& one) {
        const auto& rails = links_.at(one.first).rails;
        return one.second &&
               std::ranges::all_of(rails, [](const auto& rail) { return rail.second; });
      });
    }
  }
  void Check(uint64_t transfer, const Open& open) {
    EXPECT_EQ(open.answered, open.fenced.empty()) << transfer;
  }

  SlotTable table_{1, 0};
  TargetSession session_;
  std::minstd_rand random_;
  std::map<uint64_t, Link> links_;
  std::map<uint64_t, Open> open_;
  std::vector<TargetSession::Fence> asked_;
  uint64_t last_link_ = 0;
  uint64_t last_transfer_ = 0;
};

TEST(TargetSessionRandom, AnAbortIsAnsweredExactlyWhenNothingOfItCanLand) {
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    Fencing fencing(seed);
    for (int i = 0; i < 200; ++i) {
      fencing.Step();
      if (::testing::Test::HasFailure()) FAIL() << "seed " << seed << ", step " << i;
    }
    fencing.Finish();
    if (::testing::Test::HasFailure()) FAIL() << "seed " << seed;
  }
}

}  // namespace
}  // namespace kvxfer::testing
