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
#include "tests/conformance/verbs_device.h"
#include "tests/support/pattern.h"

namespace kvxfer::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using verbs::kMaxPartBytes;

Flavour Controlled(ControlCarrier control) {
  Flavour flavour = VerbsDeviceFlavour();
  flavour.control = control;
  flavour.name += control == ControlCarrier::kAuto  ? "Auto"
                  : control == ControlCarrier::kTcp ? "Tcp"
                                                    : "Rdma";
  return flavour;
}

// Messages both ways: what was accepted at one side is what comes at the other.
class VerbsControl : public VerbsDevice {
 protected:
  void Begin(int devices = 1) {
    Use(Devices(devices, devices));
    ASSERT_NO_FATAL_FAILURE(Start(64 * kOp));
    ASSERT_THAT(out().path(), HasSubstr("control by SEND (i0:1 → t0:1)"));
    ASSERT_THAT(in().path(), HasSubstr("control by SEND (t0:1 → i0:1)"));
    out().messages.clear();
  }
  bool fixed() const { return GetParam().control == ControlCarrier::kRdma; }
  std::string Message(size_t bytes) {
    std::string message(bytes, '\0');
    for (char& c : message) c = static_cast<char>(random_());
    return message;
  }
  // Sizes around the borders of parts, and up to the largest.
  std::vector<std::string> Messages() {
    std::vector<std::string> messages;
    for (const size_t bytes :
         {size_t{0}, size_t{1}, kMaxPartBytes - 1, kMaxPartBytes, kMaxPartBytes + 1, size_t{100},
          2 * kMaxPartBytes, 3 * kMaxPartBytes + 5, caps().max_message_bytes, size_t{7}}) {
      messages.push_back(Message(bytes));
    }
    return messages;
  }
  // Sends as much of `messages` as is taken.
  static void Offer(TestLink& link, const std::vector<std::string>& messages, size_t& sent) {
    while (sent < messages.size() && link.Send(messages[sent])) ++sent;
  }
  // A message after "before".
  bool ComesAfter() {
    bool sent = false;
    return pair_->Until([&] {
      sent = sent || out().Send("after");
      return in().messages == std::vector<std::string>{"before", "after"} || out().down;
    }) && !out().down;
  }
  // Both ways at once. False: a side is down, or they do not come.
  bool Exchange(const std::vector<std::string>& messages) {
    size_t there = 0;
    size_t back = 0;
    const size_t before_in = in().messages.size();
    const size_t before_out = out().messages.size();
    return pair_->Until([&] {
      Offer(out(), messages, there);
      Offer(in(), messages, back);
      return (in().messages.size() - before_in == messages.size() &&
              out().messages.size() - before_out == messages.size()) ||
             out().down || in().down;
    }) && !out().down &&
           !in().down;
  }
};

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
      woken = woken || party->Sleep(milliseconds(50));
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

TEST_P(VerbsControl, APortThatGoesDownTakesThePair) {
  for (const char* device : {"i0", "t0"}) {
    SCOPED_TRACE(device);
    ASSERT_NO_FATAL_FAILURE(Begin());
    ASSERT_TRUE(out().Send("before"));
    fabric_->SetPort(device, 1, false);
    ASSERT_TRUE(pair_->Until([&] {
      return fixed() ? out().down && in().down
                     : out().path().find("control by TCP (") != std::string::npos &&
                           in().path().find("control by TCP (") != std::string::npos;
    }));
    EXPECT_TRUE(fixed() || ComesAfter());
    End();
  }
}

TEST_P(VerbsControl, ADeviceThatBreaksTakesThePair) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  ASSERT_TRUE(out().Send("before"));
  fabric_->Raise("t0", IBV_EVENT_DEVICE_FATAL);
  if (fixed()) {
    ASSERT_TRUE(pair_->Until([&] { return out().down && in().down; }));
  } else {
    ASSERT_TRUE(ComesAfter());
  }
}

// Rails and messages have nothing to do with each other.
TEST_P(VerbsControl, WithoutARailMessagesStillPass) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  fabric_->FailWrites(1, kOp, IBV_WC_RETRY_EXC_ERR);
  const Op op = out().Make(OpKind::kWrite, 1, {RunAt(0, kOp)}, 1);
  ASSERT_TRUE(pair_->PostAll(std::span(&op, 1)));
  ASSERT_TRUE(DownIs(1));
  const std::vector<std::string> messages = Messages();
  ASSERT_TRUE(Exchange(messages));
  EXPECT_EQ(in().messages, messages);
  EXPECT_THAT(out().path(), HasSubstr("control by SEND"));
  EXPECT_THAT(in().path(), HasSubstr("control by SEND"));
  FenceAndReopen(0);
  ASSERT_TRUE(pair_->Until([&] { return out().rail_up(0); }));
  ASSERT_NO_FATAL_FAILURE(ExpectAllRailsWork());
}

// What was accepted before Shutdown arrives, although nothing of it has been read.
TEST_P(VerbsControl, MessagesBeforeShutdownArrive) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  const std::vector<std::string> messages(100, Message(2 * kMaxPartBytes));
  size_t sent = 0;
  Offer(out(), messages, sent);
  ASSERT_GT(sent, 0u);
  out().endpoint->Shutdown(absl::CancelledError("enough of it"));
  ASSERT_TRUE(pair_->Until([&] { return in().down; }));
  EXPECT_EQ(in().messages,
            std::vector<std::string>(messages.begin(), messages.begin() + static_cast<int>(sent)));
  EXPECT_THAT(std::string(in().why.message()), HasSubstr("enough of it"));
}

// kDown waits for the control pair's end as well: the device may still write into its receives.
TEST_P(VerbsControl, ALinkIsDownOnlyWhenItsPairIsGone) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  fabric_->RefuseDestroy("t0", true);
  in().endpoint->Shutdown(absl::CancelledError("over"));
  pair_->Until([&] { return in().down; }, milliseconds(100));
  EXPECT_FALSE(in().down);
  fabric_->RefuseDestroy("t0", false);
  EXPECT_TRUE(pair_->Until([&] { return in().down; }));
  EXPECT_EQ(fabric_->queue_pairs("t0"), 0u);
}

TEST_P(VerbsControl, APairThatCannotBeMade) {
  struct Case {
    Call call;
    uint64_t n;
    int error;
  };
  // A rail is made first: its ends are the first two queue pairs, and become ready in five calls.
  std::vector<Case> cases = {{Call::kCreateQp, 3, ENOMEM}, {Call::kCreateQp, 4, ENOMEM},
                             {Call::kPostRecv, 1, ENOMEM}, {Call::kPostRecv, 2, ENOMEM},
                             {Call::kPostRecv, 3, ENOMEM}, {Call::kPostRecv, 4, ENOMEM}};
  for (uint64_t n = 6; n <= 11; ++n) cases.push_back({Call::kModifyQp, n, EINVAL});
  for (const Case& one : cases) {
    SCOPED_TRACE(::testing::Message() << CallName(one.call) << " " << one.n);
    verbs::VerbsOptions options;
    options.max_inline = 0;  // a queue pair is tried once, then
    Use(Devices(1, 1), options);
    fabric_->FailCall(one.call, one.n, one.error);
    pair_ = BackendPair::Make(GetParam());
    ASSERT_NE(pair_, nullptr);
    if (fixed()) {
      EXPECT_TRUE(pair_->Until([&] { return out().down && in().down; }));
      const std::string why = absl::StrCat(out().why.message(), in().why.message());
      EXPECT_THAT(why, HasSubstr("`control` (KVXFER_CONTROL) is rdma"));
    } else {
      EXPECT_THAT(out().path(), HasSubstr("control by TCP ("));
      EXPECT_THAT(in().path(), HasSubstr("control by TCP ("));
      EXPECT_TRUE(Exchange(Messages()));
    }
    End();
  }
}

// Credit comes in a buffer of its own if the device sends nothing inline.
TEST_P(VerbsControl, ADeviceThatSendsNothingInline) {
  verbs::VerbsOptions options;
  options.max_inline = 0;
  Use(Devices(1, 1), options);
  ASSERT_NO_FATAL_FAILURE(Start(64 * kOp));
  out().messages.clear();
  const std::vector<std::string> messages = Messages();
  ASSERT_TRUE(Exchange(messages));
  EXPECT_EQ(in().messages, messages);
  EXPECT_EQ(out().messages, messages);
  EXPECT_EQ(fabric_->not_ready(), 0u);
}

// --- settings that differ ------------------------------------------------------------------------

class VerbsControlSettings : public VerbsDevice {};

INSTANTIATE_TEST_SUITE_P(InMemory, VerbsControlSettings, ::testing::Values(VerbsDeviceFlavour()),
                         FlavourName);

TEST_P(VerbsControlSettings, AutoGoesWithAnything) {
  for (const ControlCarrier here : {ControlCarrier::kAuto, ControlCarrier::kRdma}) {
    for (const bool dials : {true, false}) {
      Use(Devices(1, 1));
      const Flavour other = Controlled(here);
      pair_ = dials ? BackendPair::Make(GetParam(), other) : BackendPair::Make(other, GetParam());
      ASSERT_NE(pair_, nullptr);
      EXPECT_THAT(out().path(), HasSubstr("control by SEND"));
      EXPECT_THAT(in().path(), HasSubstr("control by SEND"));
      End();
    }
  }
}

TEST_P(VerbsControlSettings, APeerOnTcpIsFollowedByAutoAndRefusedByRdma) {
  for (const ControlCarrier here : {ControlCarrier::kAuto, ControlCarrier::kRdma}) {
    for (const bool dials : {true, false}) {
      SCOPED_TRACE(::testing::Message() << static_cast<int>(here) << dials);
      Use(Devices(1, 1));
      const Flavour mine = Controlled(here);
      const Flavour tcp = Controlled(ControlCarrier::kTcp);
      pair_ = dials ? BackendPair::Make(mine, tcp) : BackendPair::Make(tcp, mine);
      ASSERT_NE(pair_, nullptr);
      TestLink& link = dials ? out() : in();
      if (here == ControlCarrier::kAuto) {
        ASSERT_TRUE(pair_->Until([&] {
          return link.path().find("the peer: `control` (KVXFER_CONTROL) is tcp") !=
                 std::string::npos;
        }));
        EXPECT_TRUE(link.Send("by TCP"));
        TestLink& peer = dials ? in() : out();
        EXPECT_TRUE(pair_->Until(
            [&] { return !peer.messages.empty() && peer.messages.back() == "by TCP"; }));
      } else {
        ASSERT_TRUE(pair_->Until([&] { return out().down && in().down; }));
        EXPECT_TRUE(Fails(link.why, absl::StatusCode::kUnavailable,
                          {"is rdma", "the peer: `control` (KVXFER_CONTROL) is tcp",
                           "set it to auto or rdma at both sides"}));
      }
      EXPECT_EQ(fabric_->sends(), 0u);
      End();
    }
  }
}

}  // namespace
}  // namespace kvxfer::testing
