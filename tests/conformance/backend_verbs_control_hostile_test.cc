// G7 and G8 against a peer that means harm to control pairs: what it offers before it is
// authorised, and what it SENDs afterwards.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/backends/verbs/message_parts.h"
#include "tests/conformance/verbs_device.h"
#include "tests/support/raw_control.h"
#include "tests/support/raw_pair.h"

namespace kvxfer::testing {
namespace {

using std::chrono::milliseconds;
using verbs::ControlAnswer;
using verbs::ControlLost;
using verbs::ControlOffer;
using verbs::ControlPart;
using verbs::ControlUp;
using verbs::PartHead;
using verbs::PartKind;
using verbs::Ports;

class HostileControl : public VerbsDevice {
 protected:
  void SetUp() override {
    Use(Devices(1, 1));
    ASSERT_OK_AND_ASSIGN(target_, Party::Make(GetParam(), "target"));
  }
  void TearDown() override {
    raw_.reset();
    peer_.reset();
    target_.reset();
    VerbsDevice::TearDown();
  }
  void Turn() {
    target_->Turn();
    if (!peer_->Listen()) over_ = true;
  }
  bool Until(const std::function<bool()>& done) {
    return Eventually(kAmple, [&] {
      Turn();
      return done();
    });
  }
  TestLink& link() { return *target_->links.back(); }
  bool UntilOver() {
    return Until([&] { return over_ && link().down; });
  }
  void Connect() {
    over_ = false;
    ASSERT_OK_AND_ASSIGN(peer_, RawControl::Dial(target_->backend().Describe().address));
    ASSERT_TRUE(Until([&] { return peer_->Count<Ports>() == 1; }));
  }
  ControlOffer Offer(uint32_t number = 0xfffff, uint8_t port = 0) {
    verbs::PortInfo at = std::get<Ports>(peer_->heard().front()).ports.at(0);
    const FabricPort mine = RocePort(1, 10);
    std::memcpy(at.gid.data(), mine.gids.back().gid.raw, at.gid.size());
    return {.port = port, .from = {.number = number, .psn = RawPair::kPsn, .port = at}};
  }
  // A control pair that is up at the target, with this side's end in raw_.
  void ConnectPair() {
    raw_.reset();
    ASSERT_NO_FATAL_FAILURE(Connect());
    link().endpoint->Authorize();
    raw_ = std::make_unique<RawPair>(fabric_->MakeIbv("initiator"));
    ASSERT_TRUE(peer_->Say(Offer(raw_->number())));
    ASSERT_TRUE(Until([&] { return peer_->Count<ControlAnswer>() == 1 || over_; }));
    ASSERT_FALSE(over_);
    ASSERT_NO_FATAL_FAILURE(raw_->Connect(std::get<ControlAnswer>(peer_->heard().back()).at));
    ASSERT_TRUE(peer_->Say(ControlUp{}));
    ASSERT_TRUE(Until([&] { return peer_->Count<ControlUp>() == 1; }));
  }
  static std::string Part(const PartHead& head, std::string_view part = "x") {
    const auto bytes = Encode(head);
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()) +
           std::string(part);
  }

  std::unique_ptr<Party> target_;
  std::unique_ptr<RawControl> peer_;
  std::unique_ptr<RawPair> raw_;
  bool over_ = false;
};

INSTANTIATE_TEST_SUITE_P(InMemory, HostileControl, ::testing::Values(VerbsDeviceFlavour()),
                         FlavourName);

TEST_P(HostileControl, NothingIsMadeForStrangersAndOneOfferIsKept) {
  const uint64_t queue_pairs = fabric_->calls(Call::kCreateQp);
  const uint64_t regions = fabric_->calls(Call::kRegMr);
  ASSERT_NO_FATAL_FAILURE(Connect());
  ASSERT_TRUE(peer_->Say(Offer()));
  for (int i = 0; i < 20; ++i) Turn();
  EXPECT_FALSE(over_);
  EXPECT_EQ(fabric_->calls(Call::kCreateQp), queue_pairs);
  EXPECT_EQ(fabric_->calls(Call::kRegMr), regions);
  ASSERT_TRUE(peer_->Say(Offer()));
  ASSERT_TRUE(UntilOver());
  EXPECT_TRUE(absl::IsInvalidArgument(link().why)) << link().why;
}

TEST_P(HostileControl, FramesOutOfPlaceEndTheConnection) {
  const std::vector<verbs::Blob> misplaced = {
      ControlAnswer{}, ControlUp{}, ControlPart{.number = 0, .more = false, .bytes = "x"}};
  for (const bool authorized : {false, true}) {
    for (const verbs::Blob& blob : misplaced) {
      SCOPED_TRACE(blob.index());
      ASSERT_NO_FATAL_FAILURE(Connect());
      if (authorized) link().endpoint->Authorize();
      verbs::Blob said = blob;
      if (auto* answer = std::get_if<ControlAnswer>(&said)) answer->at = Offer().from;
      ASSERT_TRUE(peer_->Say(said));
      ASSERT_TRUE(UntilOver());
      EXPECT_TRUE(absl::IsInvalidArgument(link().why)) << link().why;
      EXPECT_TRUE(link().messages.empty());
    }
  }
}

TEST_P(HostileControl, OffersOfNothingAreAnsweredOnce) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  link().endpoint->Authorize();
  ASSERT_TRUE(peer_->Say(Offer(0xfffff, 63)));
  ASSERT_TRUE(Until([&] { return peer_->Count<ControlLost>() == 1; }));
  EXPECT_FALSE(over_);
  ASSERT_TRUE(peer_->Say(Offer()));
  ASSERT_TRUE(UntilOver());
}

// Whatever the peer SENDs against the rules ends its connection, and is not reported.
TEST_P(HostileControl, SendsAgainstTheRulesEndTheConnection) {
  const PartHead last{.kind = PartKind::kLast, .report = {.granted = 1}};
  PartHead second = last;
  second.number = 1;
  PartHead greedy = last;
  greedy.report.granted = 1000;
  PartHead taken = last;
  taken.report.received = 1;
  PartHead empty = last;
  empty.kind = PartKind::kMore;
  std::string kind = Part(last);
  kind[0] = 9;
  const std::vector<std::vector<std::string>> cases = {
      {"short"},
      {""},
      {kind},
      {Part(second)},
      {Part(greedy)},
      {Part(taken)},
      {Part(empty, "")},
      {Part({.kind = PartKind::kCredit, .report = {.granted = 1}}, "x")},
      // The last receive is not for parts.
      {Part(last), Part(second)},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i);
    ASSERT_NO_FATAL_FAILURE(ConnectPair());
    for (const std::string& bytes : cases[i]) {
      ASSERT_NO_FATAL_FAILURE(raw_->Send(bytes));
      // The memory that it is sent from is used again.
      const size_t before = static_cast<size_t>(&bytes - cases[i].data());
      ASSERT_TRUE(Eventually(kAmple, [&] { return raw_->Ended() > before; }));
    }
    ASSERT_TRUE(UntilOver());
    EXPECT_TRUE(absl::IsInvalidArgument(link().why)) << link().why;
    EXPECT_LT(link().messages.size(), cases[i].size());
  }
}

// A SEND that is larger than a receive is the device's to refuse: it costs the pair.
TEST_P(HostileControl, ASendThatIsTooLongCostsThePair) {
  ASSERT_NO_FATAL_FAILURE(ConnectPair());
  raw_->Send(std::string(verbs::kMessageBufferBytes + 1, 'x'));
  ASSERT_TRUE(Until([&] { return peer_->Count<ControlLost>() == 1; }));
  EXPECT_FALSE(over_);
  EXPECT_TRUE(link().messages.empty());
}

TEST_P(HostileControl, AMessageWithoutEndEndsTheConnection) {
  ASSERT_NO_FATAL_FAILURE(ConnectPair());
  ASSERT_TRUE(peer_->Say(ControlLost{.why = "by the stream, then"}));
  const std::string bytes(verbs::kMaxPartBytes, 'x');
  uint32_t number = 0;
  while (!over_ && number < 1000) {
    if (peer_->Say(ControlPart{.number = number, .more = true, .bytes = bytes})) ++number;
    Turn();
  }
  ASSERT_TRUE(UntilOver());
  EXPECT_TRUE(absl::IsInvalidArgument(link().why)) << link().why;
  EXPECT_LT(number, 100u);
}

// It SENDs as much as its device takes: what has no receive waits there, and others have theirs.
TEST_P(HostileControl, AFloodWaitsAtItsOwner) {
  ASSERT_NO_FATAL_FAILURE(ConnectPair());
  const std::string credit = Part({.kind = PartKind::kCredit, .report = {.granted = 1}}, "");
  const uint64_t before = fabric_->sends();
  for (int i = 0; i < 100; ++i) raw_->Send(credit);
  ASSERT_TRUE(Eventually(kAmple, [&] { return fabric_->not_ready() > 0; }));
  EXPECT_EQ(fabric_->sends() - before, 2u);
  EXPECT_EQ(fabric_->own_receives("t0"), 0u);
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Party> friendly, Party::Make(GetParam(), "initiator"));
  ASSERT_OK_AND_ASSIGN(TestLink * out, friendly->Connect(*target_));
  bool authorized = false;
  bool sent = false;
  ASSERT_TRUE(Eventually(kAmple, [&] {
    friendly->Turn();
    target_->Turn();
    if (target_->links.size() == 2 && !authorized) {
      target_->links.back()->endpoint->Authorize();
      authorized = true;
    }
    const bool up = out->connected && out->path().find("control by SEND") != std::string::npos;
    if (up && !sent) sent = out->Send("through");
    return sent && target_->links.back()->messages == std::vector<std::string>{"through"};
  }));
}

}  // namespace
}  // namespace kvxfer::testing
