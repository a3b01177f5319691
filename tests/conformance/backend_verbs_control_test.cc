// The control pair of verbs: messages by SEND, whole, once and in order, whatever becomes of it.

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/backends/verbs/message_parts.h"
#include "tests/conformance/verbs_control.h"

namespace kvxfer::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using verbs::kMaxPartBytes;

INSTANTIATE_TEST_SUITE_P(InMemory, VerbsControl,
                         ::testing::Values(Controlled(ControlCarrier::kAuto),
                                           Controlled(ControlCarrier::kRdma)),
                         FlavourName);

TEST_P(VerbsControl, LongMessagesAreCutAndJoined) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  std::vector<std::string> messages;
  for (int round = 0; round < 5; ++round) std::ranges::move(Messages(), back_inserter(messages));
  const uint64_t before = fabric_->sends();
  ASSERT_TRUE(Exchange(messages));
  EXPECT_EQ(in().messages, messages);
  EXPECT_EQ(out().messages, messages);
  size_t parts = 0;
  for (const std::string& message : messages) {
    parts += std::max<size_t>((message.size() + kMaxPartBytes - 1) / kMaxPartBytes, 1);
  }
  EXPECT_GE(fabric_->sends() - before, 2 * parts);
  EXPECT_EQ(fabric_->not_ready(), 0u);
}

TEST_P(VerbsControl, WhoDoesNotReadHoldsTheSenderBack) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  const std::vector<std::string> messages(1000, Message(3000));
  size_t sent = 0;
  for (int i = 0; i < 100; ++i) {
    Offer(out(), messages, sent);
    pair_->initiator().Turn();
  }
  // What has a receive, and 64 KiB that wait.
  EXPECT_LE(sent, verbs::SendCredit::kMost + 64 * 1024 / 3000);
  EXPECT_GE(sent, 64 * 1024 / 3000);
  ASSERT_TRUE(pair_->Until([&] {
    Offer(out(), messages, sent);
    return in().messages.size() == messages.size();
  }));
  EXPECT_EQ(in().messages, messages);
  EXPECT_EQ(fabric_->not_ready(), 0u);
}

// G7: two receives for a peer that says little, more for one that has to wait, and never many.
TEST_P(VerbsControl, ReceivesAreFewAndFollowThePeer) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  const auto two = [&] {
    return fabric_->own_receives("t0") == 2 && fabric_->own_receives("i0") == 2;
  };
  ASSERT_TRUE(pair_->Until(two));
  const std::vector<std::string> messages(200, Message(100));
  size_t sent = 0;
  size_t most = 0;
  ASSERT_TRUE(pair_->Until([&] {
    Offer(out(), messages, sent);
    most = std::max(most, fabric_->own_receives("t0"));
    return in().messages.size() == messages.size();
  }));
  EXPECT_EQ(most, verbs::SendCredit::kMost + 1);
  // Expect that a peer which waits no longer is soon back at two.
  EXPECT_TRUE(Eventually(kAmple, [&] {
    const size_t before = in().messages.size();
    EXPECT_TRUE(out().Send("ping"));
    EXPECT_TRUE(pair_->Until([&] { return in().messages.size() > before; }));
    pair_->Idle(milliseconds(1));
    return two();
  }));
}

// Whoever has nothing to say wakes nobody up, and credit is not answered.
TEST_P(VerbsControl, AnIdlePairIsQuiet) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  ASSERT_TRUE(Exchange({"there", "and back"}));
  EXPECT_TRUE(Eventually(kAmple, [&] {
    const uint64_t doorbells = fabric_->doorbells();
    bool woken = false;
    for (Party* party : {&pair_->initiator(), &pair_->target()}) {
      while (!party->backend().Arm()) party->Turn();
      if (!party->Sleep(milliseconds(50))) continue;
      woken = true;
      party->TurnByWaitFd();
    }
    return !woken && fabric_->doorbells() == doorbells;
  }));
}

// A sleeper is woken by a SEND.
TEST_P(VerbsControl, AMessageWakesItsReader) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  for (int i = 0; i < 20; ++i) {
    pair_->Idle(milliseconds(1));
    while (!pair_->target().backend().Arm()) pair_->target().Turn();
    ASSERT_TRUE(out().Send("wake up"));
    // Without credit it goes as soon as there is some.
    ASSERT_TRUE(Eventually(kAmple, [&] {
      pair_->initiator().Turn();
      return pair_->target().Sleep(milliseconds(1));
    }));
    ASSERT_TRUE(pair_->Until([&] { return in().messages.size() > static_cast<size_t>(i); }));
  }
}

// A SEND fails, whether it has arrived or not: nothing is lost, nothing comes twice.
TEST_P(VerbsControl, APairThatFailsLosesNothing) {
  for (const bool arrives : {false, true}) {
    for (uint64_t n = 1; n <= 40; n += fixed() ? 13 : 1) {
      SCOPED_TRACE(::testing::Message() << n << (arrives ? ", arrives" : ", does not arrive"));
      ASSERT_NO_FATAL_FAILURE(Begin());
      const std::vector<std::string> messages = Messages();
      fabric_->FailSend(n, arrives);
      const bool all = Exchange(messages);
      EXPECT_EQ(all, !fixed());
      if (all) {
        EXPECT_EQ(in().messages, messages);
        EXPECT_EQ(out().messages, messages);
        for (TestLink* link : {&out(), &in()}) {
          EXPECT_THAT(link->path(), HasSubstr("control by TCP (")) << "not failed";
          EXPECT_THAT(link->path(), HasSubstr("IBV_WC_RETRY_EXC_ERR"));
        }
        ASSERT_NO_FATAL_FAILURE(ExpectAllRailsWork());
      } else {
        // What has come was right.
        for (TestLink* link : {&out(), &in()}) {
          ASSERT_LE(link->messages.size(), messages.size());
          EXPECT_TRUE(std::equal(link->messages.begin(), link->messages.end(), messages.begin()));
        }
        ASSERT_TRUE(pair_->Until([&] { return out().down && in().down; }));
        const std::string why = absl::StrCat(out().why.message(), in().why.message());
        EXPECT_THAT(why, HasSubstr("`control` (KVXFER_CONTROL) is rdma"));
        EXPECT_THAT(why, HasSubstr("IBV_WC_RETRY_EXC_ERR"));
        EXPECT_THAT(why, HasSubstr("i0:1"));
      }
      End();
    }
  }
}

}  // namespace
}  // namespace kvxfer::testing
