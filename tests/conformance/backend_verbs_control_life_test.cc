// The control pair of verbs: how it is made, what ends it, and settings that differ.

#include <gmock/gmock.h>

#include <cerrno>
#include <memory>
#include <string>
#include <vector>

#include "src/backends/verbs/message_parts.h"
#include "tests/conformance/verbs_control.h"

namespace kvxfer::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using verbs::kMaxPartBytes;

class VerbsControlLife : public VerbsControl {};

INSTANTIATE_TEST_SUITE_P(InMemory, VerbsControlLife,
                         ::testing::Values(Controlled(ControlCarrier::kAuto),
                                           Controlled(ControlCarrier::kRdma)),
                         FlavourName);

TEST_P(VerbsControlLife, APortThatGoesDownTakesThePair) {
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

TEST_P(VerbsControlLife, ADeviceThatBreaksTakesThePair) {
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
TEST_P(VerbsControlLife, WithoutARailMessagesStillPass) {
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
TEST_P(VerbsControlLife, MessagesBeforeShutdownArrive) {
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
TEST_P(VerbsControlLife, ALinkIsDownOnlyWhenItsPairIsGone) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  fabric_->RefuseDestroy("t0", true);
  in().endpoint->Shutdown(absl::CancelledError("over"));
  pair_->Until([&] { return in().down; }, milliseconds(100));
  EXPECT_FALSE(in().down);
  fabric_->RefuseDestroy("t0", false);
  EXPECT_TRUE(pair_->Until([&] { return in().down; }));
  EXPECT_EQ(fabric_->queue_pairs("t0"), 0u);
}

TEST_P(VerbsControlLife, APairThatCannotBeMade) {
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
TEST_P(VerbsControlLife, ADeviceThatSendsNothingInline) {
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
