// Two sides of a control pair, in every order of what they may do, and at length in random ones:
// no SEND finds no receive, nobody waits for ever, and credit is not answered by credit.

#include "src/backends/verbs/send_credit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <random>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "tests/support/scale.h"

namespace kvxfer::testing {
namespace {

using verbs::SendCredit;

struct Sent {
  bool part = false;
  bool waited = false;
  uint32_t number = 0;
  SendCredit::Report report;
};

// What a side may do next. Which ones it may is up to `Model::May`.
enum class Step : uint8_t {
  kSend,        // a part that did not wait
  kSendWaited,  // a part that waited
  kCredit,
  kTake,      // the first that has arrived; as many receives are posted as should be
  kTakePoor,  // the same, without memory for more receives than were there
};
constexpr std::array kSteps = {Step::kSend, Step::kSendWaited, Step::kCredit, Step::kTake,
                               Step::kTakePoor};

class Model {
 public:
  explicit Model(uint32_t messages) {
    for (Side& side : sides_) side.left = messages;
  }

  bool May(size_t who, Step step) const {
    const Side& side = sides_[who];
    switch (step) {
      case Step::kSend:
      case Step::kSendWaited:
        return side.left > 0 && side.credit.may_send();
      case Step::kCredit:
        return side.credit.due();
      case Step::kTake:
      case Step::kTakePoor:
        return !side.inbox.empty();
    }
    return false;
  }

  void Do(size_t who, Step step) {
    Side& side = sides_[who];
    if (step == Step::kSend || step == Step::kSendWaited) {
      --side.left;
      const uint32_t number = side.credit.OnSend();
      Send(1 - who, {.part = true,
                     .waited = step == Step::kSendWaited,
                     .number = number,
                     .report = side.credit.MakeReport()});
    } else if (step == Step::kCredit) {
      ++side.credits;
      EXPECT_LE(side.credits, side.taken);
      Send(1 - who, {.report = side.credit.MakeReport()});
    } else {
      Take(side, step == Step::kTakePoor);
    }
  }

  bool AllSent() const {
    return sides_[0].left == 0 && sides_[1].left == 0 && sides_[0].inbox.empty() &&
           sides_[1].inbox.empty();
  }
  uint32_t receives(size_t who) const { return sides_[who].receives; }

  // Equal for equal states.
  std::string Key() const {
    std::string key;
    const auto add = [&key](uint32_t value) { key += std::to_string(value) + ","; };
    for (const Side& side : sides_) {
      key.append(reinterpret_cast<const char*>(&side.credit), sizeof(side.credit));
      add(side.receives);
      add(side.left);
      add(side.credits);
      for (const Sent& sent : side.inbox) {
        add(sent.part ? 1 : 0);
        add(sent.waited ? 1 : 0);
        add(sent.number);
        add(sent.report.received);
        add(sent.report.granted);
      }
      key += ';';
    }
    return key;
  }

 private:
  struct Side {
    SendCredit credit;
    uint32_t receives = SendCredit::kFewest + 1;  // posted, those in use by `inbox` included
    std::deque<Sent> inbox;                       // on the way, or not taken yet
    uint32_t left = 0;                            // messages to send
    uint32_t taken = 0;                           // parts
    uint32_t credits = 0;                         // sent by themselves
  };

  void Send(size_t to, const Sent& sent) {
    EXPECT_LT(sides_[to].inbox.size(), sides_[to].receives) << "a SEND finds no receive";
    sides_[to].inbox.push_back(sent);
  }

  static void Take(Side& side, bool poor) {
    const Sent sent = side.inbox.front();
    side.inbox.pop_front();
    EXPECT_TRUE(side.credit.OnReport(sent.report));
    if (!sent.part) return;  // its receive is posted again
    ++side.taken;
    EXPECT_FALSE(side.credit.IsOld(sent.number));
    EXPECT_TRUE(side.credit.OnPart(sent.number, sent.waited));
    --side.receives;
    bool first = true;
    while (side.credit.to_post() > 0 && (first || !poor)) {
      first = false;
      ++side.receives;
      side.credit.OnPosted();
    }
    EXPECT_LE(side.receives, SendCredit::kMost + 1);
  }

  std::array<Side, 2> sides_;
};

TEST(SendCredit, NoOrderOfTwoSidesLeavesThemWithout) {
  std::unordered_set<std::string> seen;
  std::vector<Model> open = {Model(4)};
  while (!open.empty() && !::testing::Test::HasFailure()) {
    const Model model = std::move(open.back());
    open.pop_back();
    bool stuck = true;
    for (size_t who = 0; who < 2; ++who) {
      for (const Step step : kSteps) {
        if (!model.May(who, step)) continue;
        stuck = false;
        Model next = model;
        next.Do(who, step);
        if (seen.insert(next.Key()).second) open.push_back(std::move(next));
      }
    }
    ASSERT_TRUE(!stuck || model.AllSent()) << "both wait for ever";
  }
  EXPECT_GT(seen.size(), 10'000u);
}

TEST(SendCredit, RandomOrdersOfManyMessagesEnd) {
  std::mt19937_64 random(TestSeed());
  for (int round = 0; round < 50; ++round) {
    SCOPED_TRACE(round);
    Model model(500);
    uint32_t most = 0;
    for (int idle = 0; idle < 10'000;) {
      const size_t who = random() % 2;
      const Step step = kSteps[random() % kSteps.size()];
      if (!model.May(who, step)) {
        ++idle;
        continue;
      }
      idle = 0;
      model.Do(who, step);
      most = std::max(most, model.receives(who));
    }
    ASSERT_FALSE(::testing::Test::HasFailure());
    ASSERT_TRUE(model.AllSent());
    EXPECT_EQ(most, SendCredit::kMost + 1);
  }
}

// One sends, the other takes at once: as many receives as the sender's haste asks for.
TEST(SendCredit, ReceivesFollowThePeer) {
  const auto pass = [](SendCredit& from, SendCredit& to, bool waited) {
    const uint32_t number = from.OnSend();
    ASSERT_TRUE(to.OnReport(from.MakeReport()));
    ASSERT_TRUE(to.OnPart(number, waited));
    while (to.to_post() > 0) to.OnPosted();
  };
  SendCredit a;
  SendCredit b;
  const auto grant = [&] {
    ASSERT_TRUE(b.due());
    ASSERT_TRUE(a.OnReport(b.MakeReport()));
    ASSERT_FALSE(b.due());
    EXPECT_EQ(a.taken(), a.sent());
  };
  const auto granted = [&] {
    uint32_t count = 0;
    for (SendCredit copy = a; copy.may_send(); ++count) copy.OnSend();
    return count;
  };
  EXPECT_EQ(granted(), 1u);
  for (const uint32_t expected : {3u, 7u, 7u}) {
    // One of them is enough.
    for (bool waited = true; a.may_send(); waited = false) {
      ASSERT_NO_FATAL_FAILURE(pass(a, b, waited));
    }
    ASSERT_NO_FATAL_FAILURE(grant());
    EXPECT_EQ(granted(), expected);
  }
  // What is posted already is used up first.
  for (const uint32_t expected : {6u, 2u, 1u, 1u}) {
    while (a.may_send()) ASSERT_NO_FATAL_FAILURE(pass(a, b, false));
    ASSERT_NO_FATAL_FAILURE(grant());
    EXPECT_EQ(granted(), expected);
  }
}

TEST(SendCredit, WhatCannotBeIsRefused) {
  SendCredit credit;
  EXPECT_FALSE(credit.OnReport({.received = 1, .granted = 1}));  // nothing was sent
  EXPECT_FALSE(credit.OnReport({.received = 0, .granted = SendCredit::kMost + 1}));
  EXPECT_FALSE(credit.OnReport({.received = 0, .granted = 0}));  // it had granted one
  EXPECT_FALSE(credit.OnReport({.received = UINT32_MAX, .granted = 1}));
  EXPECT_TRUE(credit.OnReport({.received = 0, .granted = SendCredit::kMost}));
  EXPECT_FALSE(credit.OnPart(1, false));  // the first one is missing
  EXPECT_TRUE(credit.OnPart(0, false));
  EXPECT_TRUE(credit.IsOld(0));
  EXPECT_FALSE(credit.OnPart(1, false));  // without credit
  while (credit.to_post() > 0) credit.OnPosted();
  EXPECT_FALSE(credit.OnPart(1, false));  // its receive is there, but the peer does not know that
  credit.MakeReport();
  EXPECT_TRUE(credit.OnPart(1, false));
}

}  // namespace
}  // namespace kvxfer::testing
