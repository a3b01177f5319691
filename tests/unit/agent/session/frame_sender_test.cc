// Which frames of a session go alone, which are piggybacked, and over which connection.

#include "src/agent/session/frame_sender.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/agent/session/fake_peer.h"

namespace kvxfer::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// The session the other way, and a connection of it.
class FakeReverse : public ReverseSession {
 public:
  Piggyback PiggybackTo(const Incarnation& initiator) override {
    asked = initiator;
    Piggyback piggyback;
    if (channel.NextToSend() == nullptr) return piggyback;
    piggyback.channel = &channel;
    piggyback.session = 88;
    piggyback.endpoint = connected ? &endpoint : nullptr;
    piggyback.heard = heard;
    piggyback.carried = &carried;
    return piggyback;
  }
  bool IsConnected(const Incarnation& /*initiator*/) const override { return connected; }
  void PiggybackLinkFromLost(const Incarnation& /*peer*/) override {}
  void PiggybackLinkToLost(const Incarnation& /*peer*/) override {}
  absl::Status OnPiggybackedFrom(const Incarnation& /*peer*/, uint64_t /*session*/,
                                 std::span<const std::byte> /*message*/) override {
    return absl::OkStatus();
  }
  absl::Status OnPiggybackedTo(const Incarnation& /*peer*/, uint64_t /*session*/,
                               std::span<const std::byte> /*message*/) override {
    return absl::OkStatus();
  }

  ReliableChannel channel{};
  FakeEndpoint endpoint{};
  bool connected = true;
  bool carried = false;
  Time heard{};
  Incarnation asked{};
};

class FrameSenderTest : public ::testing::Test, public FakePeer {
 protected:
  FrameSenderTest() {
    runtime_.reverse_session = &reverse_;
    made_.GoUp(now_);
    reverse_.heard = now_ - kMs;  // the peer spoke last over the link
  }
  void Push(size_t bytes = 1) {
    session_.channel().Push(FrameType::kQuiet, std::string(bytes, 'q'));
  }
  void PushBack(size_t bytes = 1) {
    reverse_.channel.Push(FrameType::kCredit, std::string(bytes, 'c'));
  }
  bool Send(bool inline_data = false) { return sender_.Send(*made_.link, inline_data); }
  static std::vector<FrameType> Take(FakeEndpoint& endpoint) {
    std::vector<FrameType> types;
    for (const std::string& message : std::exchange(endpoint.sent, {})) {
      types.push_back(DecodeEnvelope(std::as_bytes(std::span(message)))->type);
    }
    return types;
  }

  const Incarnation there_ = Incarnation::Random();
  FakeReverse reverse_;
  FakeLink made_;
  Session session_{{.name = "here"}, {.name = "decode-0", .incarnation = there_}, 77, now_};
  FrameSender sender_{&runtime_, &session_, there_};
};

TEST_F(FrameSenderTest, WithNothingTheOtherWayFramesGoAlone) {
  Push();
  Push();
  EXPECT_TRUE(Send());
  EXPECT_THAT(Take(*made_.endpoint), ElementsAre(FrameType::kQuiet, FrameType::kQuiet));
  EXPECT_EQ(reverse_.asked, there_);
  EXPECT_TRUE(Send());
  EXPECT_THAT(Take(*made_.endpoint), IsEmpty());
}

TEST_F(FrameSenderTest, TheFirstFrameTakesOneOfTheOtherSessionAlong) {
  Push();
  Push();
  PushBack();
  EXPECT_TRUE(Send());
  ASSERT_EQ(made_.endpoint->sent.size(), 2u);
  const auto envelope = DecodeEnvelope(std::as_bytes(std::span(made_.endpoint->sent[0])));
  const auto both = DecodePiggyback(envelope->body);
  ASSERT_OK(both);
  EXPECT_EQ(both->session, 88u);
  EXPECT_EQ(DecodeNumbered(both->carried)->type, FrameType::kCredit);
  EXPECT_EQ(DecodeNumbered(both->own)->type, FrameType::kQuiet);
  EXPECT_THAT(Take(*made_.endpoint), ElementsAre(FrameType::kPiggyback, FrameType::kQuiet));
  EXPECT_TRUE(made_.link->carried);
  EXPECT_FALSE(reverse_.carried);
  EXPECT_EQ(reverse_.channel.NextToSend(), nullptr);
}

TEST_F(FrameSenderTest, TheyTakeTheConnectionOverWhichThePeerSpokeLast) {
  reverse_.heard = now_ + kMs;
  Push();
  PushBack();
  EXPECT_TRUE(Send());
  EXPECT_THAT(Take(*made_.endpoint), IsEmpty());
  ASSERT_EQ(reverse_.endpoint.sent.size(), 1u);
  const auto envelope = DecodeEnvelope(std::as_bytes(std::span(reverse_.endpoint.sent[0])));
  const auto both = DecodePiggyback(envelope->body);
  ASSERT_OK(both);
  EXPECT_EQ(both->session, 77u);
  EXPECT_EQ(DecodeNumbered(both->own)->type, FrameType::kCredit);
  EXPECT_TRUE(reverse_.carried);
  EXPECT_FALSE(made_.link->carried);
}

TEST_F(FrameSenderTest, AFrameWhoseDataWaitsInTheLinkStaysOnIt) {
  reverse_.heard = now_ + kMs;
  Push();
  PushBack();
  EXPECT_TRUE(Send(true));
  EXPECT_THAT(Take(*made_.endpoint), ElementsAre(FrameType::kPiggyback));
  EXPECT_THAT(Take(reverse_.endpoint), IsEmpty());
}

TEST_F(FrameSenderTest, LargeFramesGoAlone) {
  Push(10'000);
  PushBack();
  EXPECT_TRUE(Send());
  EXPECT_THAT(Take(*made_.endpoint), ElementsAre(FrameType::kQuiet));
  Push();
  EXPECT_TRUE(Send());
  EXPECT_THAT(Take(*made_.endpoint), ElementsAre(FrameType::kPiggyback));
  Push();
  PushBack(10'000);
  EXPECT_TRUE(Send());
  EXPECT_THAT(Take(*made_.endpoint), ElementsAre(FrameType::kQuiet));
}

TEST_F(FrameSenderTest, WithoutSpaceNothingIsLost) {
  Push();
  PushBack();
  made_.endpoint->messages = 0;
  EXPECT_FALSE(Send());
  EXPECT_FALSE(made_.link->carried);
  made_.endpoint->messages = 1;
  EXPECT_TRUE(Send());
  EXPECT_THAT(Take(*made_.endpoint), ElementsAre(FrameType::kPiggyback));
}

TEST_F(FrameSenderTest, WhatFindsNoSpaceOnTheOtherConnectionGoesOverTheLink) {
  reverse_.heard = now_ + kMs;
  reverse_.endpoint.messages = 0;
  Push();
  PushBack();
  EXPECT_TRUE(Send());
  EXPECT_THAT(Take(*made_.endpoint), ElementsAre(FrameType::kQuiet));
  EXPECT_FALSE(reverse_.carried);
  EXPECT_NE(reverse_.channel.NextToSend(), nullptr);
}

}  // namespace
}  // namespace kvxfer::testing
