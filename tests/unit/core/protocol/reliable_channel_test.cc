#include "src/core/protocol/reliable_channel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvxfer::testing {
namespace {

Envelope Decoded(const std::string& message) {
  const auto envelope = DecodeEnvelope(std::as_bytes(std::span(message)));
  EXPECT_TRUE(envelope.ok()) << envelope.status();
  return *envelope;
}

// Hands over everything that is to be sent.
std::vector<std::string> SendAll(ReliableChannel& channel) {
  std::vector<std::string> messages;
  while (const std::string* message = channel.NextToSend()) {
    messages.push_back(*message);
    channel.MessageSent();
  }
  return messages;
}

auto CollectInto(std::vector<std::string>& bodies) {
  return [&bodies](const ReliableChannel::Incoming& frame) {
    bodies.emplace_back(reinterpret_cast<const char*>(frame.body.data()), frame.body.size());
    return absl::OkStatus();
  };
}

std::vector<std::string> Receive(ReliableChannel& channel, const std::string& message) {
  std::vector<std::string> bodies;
  const Envelope envelope = Decoded(message);
  EXPECT_TRUE(channel.OnAck(envelope.ack).ok());
  EXPECT_TRUE(envelope.sequence == 0 || channel.OnFrame(envelope, CollectInto(bodies)).ok());
  return bodies;
}

TEST(ReliableChannelTest, NumbersFromOneAndKeepsUntilAcknowledged) {
  ReliableChannel channel;
  EXPECT_EQ(channel.NextToSend(), nullptr);
  channel.Push(FrameType::kOpen, "a");
  channel.Push(FrameType::kAbort, "b");
  const auto messages = SendAll(channel);
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(Decoded(messages[0]).sequence, 1u);
  EXPECT_EQ(Decoded(messages[1]).type, FrameType::kAbort);
  EXPECT_EQ(channel.kept(), 2u);
  EXPECT_TRUE(channel.OnAck(1).ok());
  EXPECT_EQ(channel.kept(), 1u);
  EXPECT_TRUE(channel.OnAck(1).ok());
  EXPECT_TRUE(channel.OnAck(2).ok());
}

TEST(ReliableChannelTest, AckOfWhatWasNeverSentIsRefused) {
  ReliableChannel channel;
  channel.Push(FrameType::kOpen, "a");
  EXPECT_EQ(channel.OnAck(1).code(), absl::StatusCode::kInvalidArgument);
  SendAll(channel);
  EXPECT_FALSE(channel.OnAck(2).ok());
  EXPECT_TRUE(channel.OnAck(1).ok());
}

TEST(ReliableChannelTest, EarlierConnectionsFramesMayBeAcknowledgedAfterRewind) {
  ReliableChannel channel;
  for (const char* body : {"a", "b", "c"}) channel.Push(FrameType::kOpen, body);
  SendAll(channel);
  channel.Rewind();
  EXPECT_TRUE(channel.OnAck(2).ok());
  // Expect only what is not acknowledged to be replayed.
  const auto again = SendAll(channel);
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(Decoded(again[0]).sequence, 3u);
}

TEST(ReliableChannelTest, OutOfOrderIsPutInOrderAndDuplicatesVanish) {
  ReliableChannel from;
  ReliableChannel to;
  for (const char* body : {"a", "b", "c"}) from.Push(FrameType::kOpen, body);
  const auto messages = SendAll(from);
  EXPECT_TRUE(Receive(to, messages[2]).empty());
  EXPECT_TRUE(Receive(to, messages[2]).empty());
  EXPECT_EQ(Receive(to, messages[0]), std::vector<std::string>{"a"});
  EXPECT_TRUE(Receive(to, messages[0]).empty());
  EXPECT_EQ(Receive(to, messages[1]), (std::vector<std::string>{"b", "c"}));
  EXPECT_TRUE(Receive(to, messages[1]).empty());
  EXPECT_EQ(to.received(), 3u);
}

TEST(ReliableChannelTest, FrameTooFarAheadOrWithoutNumberIsRefused) {
  ReliableChannel channel;
  std::vector<std::string> out;
  Envelope envelope{.type = FrameType::kOpen, .sequence = 0, .ack = 0, .body = {}};
  EXPECT_EQ(channel.OnFrame(envelope, CollectInto(out)).code(), absl::StatusCode::kInvalidArgument);
  envelope.sequence = ReliableChannel::kMaxGap + 1;
  EXPECT_EQ(channel.OnFrame(envelope, CollectInto(out)).code(),
            absl::StatusCode::kResourceExhausted);
  envelope.sequence = ReliableChannel::kMaxGap;
  EXPECT_TRUE(channel.OnFrame(envelope, CollectInto(out)).ok());
  EXPECT_TRUE(out.empty());
}

TEST(ReliableChannelTest, WhatWaitsForAMissingFrameIsBoundedInBytes) {
  ReliableChannel channel;
  std::vector<std::string> frames;
  const std::string body(200 * 1024, 'x');
  const auto frame = [&](uint64_t sequence) {
    return channel.OnFrame(Decoded(EncodeMessage(FrameType::kOpen, sequence, 0, body)),
                           CollectInto(frames));
  };
  const size_t fit = ReliableChannel::kMaxAheadBytes / body.size();
  for (size_t i = 0; i < fit; ++i) ASSERT_TRUE(frame(2 + i).ok());
  EXPECT_EQ(frame(2 + fit).code(), absl::StatusCode::kResourceExhausted);
  // Expect the room to be there again once they are in order.
  ASSERT_TRUE(frame(1).ok());
  EXPECT_EQ(frames.size(), fit + 1);
  EXPECT_TRUE(frame(fit + 3).ok());
}

TEST(ReliableChannelTest, AckIsDueUntilToldOnThisConnection) {
  ReliableChannel from;
  ReliableChannel to;
  EXPECT_FALSE(to.ack_due());
  from.Push(FrameType::kOpen, "a");
  Receive(to, SendAll(from)[0]);
  EXPECT_TRUE(to.ack_due());
  const Envelope ack = Decoded(to.AckMessage());
  EXPECT_EQ(std::pair(ack.type, ack.ack), std::pair(FrameType::kAck, uint64_t{1}));
  EXPECT_FALSE(to.ack_due());
  // Expect it to be due again on a new connection, for that message may have been lost.
  to.Rewind();
  EXPECT_TRUE(to.ack_due());
  to.Push(FrameType::kReleased, "r");
  EXPECT_EQ(Decoded(SendAll(to)[0]).ack, 1u);
  EXPECT_FALSE(to.ack_due());
}

// Whatever is kept delays what comes behind it, so the peer hears soon that large bodies came.
TEST(ReliableChannelTest, AnAckPressesAfterManyFramesOrBytes) {
  const auto pressing = [](size_t frames, size_t bytes, bool ahead) {
    ReliableChannel from;
    ReliableChannel to;
    for (size_t i = 0; i < frames; ++i) from.Push(FrameType::kOpen, std::string(bytes, 'x'));
    std::vector<std::string> messages = SendAll(from);
    if (ahead) std::ranges::reverse(messages);
    for (const std::string& message : messages) {
      EXPECT_FALSE(to.ack_pressing());
      Receive(to, message);
    }
    const bool pressed = to.ack_pressing();
    to.AckMessage();
    EXPECT_FALSE(to.ack_pressing());
    return pressed;
  };
  for (const bool ahead : {false, true}) {
    EXPECT_FALSE(pressing(ReliableChannel::kAckEvery - 1, 1, ahead));
    EXPECT_TRUE(pressing(ReliableChannel::kAckEvery, 1, ahead));
    EXPECT_FALSE(pressing(4, ReliableChannel::kAckEveryBytes / 4 - 1, ahead));
    EXPECT_TRUE(pressing(4, ReliableChannel::kAckEveryBytes / 4, ahead));
  }
}

TEST(ReliableChannelTest, KeptBytesAreThoseOfTheMessages) {
  ReliableChannel channel;
  channel.Push(FrameType::kOpen, std::string(100, 'x'));
  channel.Push(FrameType::kOpen, "y");
  SendAll(channel);
  EXPECT_EQ(channel.kept_bytes(), 2 * kEnvelopeBytes + 101);
  EXPECT_TRUE(channel.OnAck(1).ok());
  EXPECT_EQ(channel.kept_bytes(), kEnvelopeBytes + 1);
  channel.Rewind();
  EXPECT_TRUE(channel.OnAck(2).ok());
  EXPECT_EQ(channel.kept_bytes(), 0u);
}

TEST(ReliableChannelTest, ReplayCarriesTheLatestAck) {
  ReliableChannel channel;
  ReliableChannel other;
  channel.Push(FrameType::kOpen, "a");
  EXPECT_EQ(Decoded(SendAll(channel)[0]).ack, 0u);
  other.Push(FrameType::kReleased, "r");
  Receive(channel, SendAll(other)[0]);
  channel.Rewind();
  EXPECT_EQ(Decoded(SendAll(channel)[0]).ack, 1u);
}

// Every schedule of a few frames each way over connections that lose what is in flight when they
// are cut, deliver in any order and deliver twice.
struct ChannelPair {
  ReliableChannel sides[2];
  std::vector<std::string> wires[2];  // to side i
  int pushed[2] = {0, 0};
  int given[2] = {0, 0};
  int cuts = 2;
  int twice = 1;

  void Pump() {
    for (int i = 0; i < 2; ++i) {
      for (auto& message : SendAll(sides[i])) wires[1 - i].push_back(std::move(message));
      if (sides[i].ack_due()) wires[1 - i].push_back(sides[i].AckMessage());
    }
  }
};

class PairSearch {
 public:
  void Visit(const ChannelPair& pair) {
    if (!seen_.insert(Key(pair)).second) return;
    if (pair.wires[0].empty() && pair.wires[1].empty()) {
      // Expect that at rest nothing is missing and nothing is kept.
      for (int i = 0; i < 2; ++i) {
        ASSERT_EQ(pair.given[i], pair.pushed[1 - i]);
        ASSERT_EQ(pair.sides[i].kept(), 0u);
      }
    }
    for (int i = 0; i < 2; ++i) {
      if (pair.pushed[i] < kFrames) {
        ChannelPair next = pair;
        next.sides[i].Push(FrameType::kOpen, std::to_string(++next.pushed[i]));
        next.Pump();
        Visit(next);
      }
      for (size_t m = 0; m < pair.wires[i].size(); ++m) {
        for (int keep = 0; keep <= (pair.twice > 0 ? 1 : 0); ++keep) Deliver(pair, i, m, keep);
      }
    }
    if (pair.cuts > 0) {
      ChannelPair next = pair;
      --next.cuts;
      for (int i = 0; i < 2; ++i) {
        next.wires[i].clear();
        next.sides[i].Rewind();
      }
      next.Pump();
      Visit(next);
    }
  }
  size_t states() const { return seen_.size(); }

 private:
  static constexpr int kFrames = 2;

  void Deliver(const ChannelPair& pair, int to, size_t message, int keep) {
    ChannelPair next = pair;
    const std::string text = next.wires[to][message];
    if (keep == 0) next.wires[to].erase(next.wires[to].begin() + static_cast<ptrdiff_t>(message));
    next.twice -= keep;
    for (const std::string& body : Receive(next.sides[to], text)) {
      ASSERT_EQ(body, std::to_string(++next.given[to])) << "lost, doubled or out of order";
    }
    next.Pump();
    Visit(next);
  }

  static std::string Key(const ChannelPair& pair) {
    std::string key;
    for (int i = 0; i < 2; ++i) {
      const ReliableChannel& side = pair.sides[i];
      for (const uint64_t number :
           {uint64_t(pair.pushed[i]), uint64_t(pair.given[i]), uint64_t{side.kept()},
            side.received(), uint64_t{side.ack_due()}}) {
        key += std::to_string(number) + ",";
      }
      const std::multiset<std::string> wire(pair.wires[i].begin(), pair.wires[i].end());
      for (const std::string& message : wire) key += message;
      key += ";";
    }
    return key + std::to_string(pair.cuts) + "," + std::to_string(pair.twice);
  }

  std::set<std::string> seen_;
};

TEST(ReliableChannelTest, EveryScheduleGivesEachFrameOnceAndInOrder) {
  PairSearch search;
  search.Visit(ChannelPair{});
  std::printf("  %zu states\n", search.states());
  EXPECT_GT(search.states(), 1000u);
}

}  // namespace
}  // namespace kvxfer::testing
