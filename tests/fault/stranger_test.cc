// Somebody who knows everything that metadata publishes of an agent, and what it has said on other
// connections, and has not its key.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/core/protocol/handshake_budget.h"
#include "src/core/protocol/metadata.h"
#include "tests/support/agents.h"
#include "tests/support/flavour.h"
#include "tests/support/scale.h"
#include "tests/support/scripted_peer.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

constexpr size_t kBytes = 4096;

std::span<const std::byte> Bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

AgentOptions Over(const std::string& backend, std::string name) {
  AgentOptions options{.name = std::move(name), .backends = {backend}};
  if (backend == "ucx") options.backend["ucx"]["tls"] = "tcp,self";  // as the scripted peers
  return options;
}

std::vector<std::string> Backends() {
  std::vector<std::string> all{"loopback", "tcp", "shm"};
  if (HasUcx()) all.emplace_back("ucx");
  return all;
}

AgentMetadata MetadataOf(const Agent& agent) { return *DecodeMetadata(*agent.Metadata()); }

// Two agents that are connected, "prefill" to "decode", and strangers who come to decode.
class Stranger : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(prefill_, Make("prefill"));
    ASSERT_OK_AND_ASSIGN(decode_, Make("decode"));
    ASSERT_OK(Introduce(*prefill_.agent, *decode_.agent));
    ASSERT_NO_FATAL_FAILURE(Write("first"));
    ASSERT_OK_AND_ASSIGN(stranger_, ScriptedPeer::Stranger("prefill", GetParam()));
  }

  absl::StatusOr<Node> Make(const std::string& name) const {
    return Node::Create(Over(GetParam(), name), MemoryType::kAttached, kBytes);
  }
  // Prefill writes to decode, which is notified.
  void Write(const std::string& word) {
    const Descriptor local{prefill_.memory.address(), kBytes};
    const Descriptor remote{decode_.memory.address(), kBytes};
    std::ranges::fill(prefill_.memory.bytes(), static_cast<std::byte>(++written_));
    ASSERT_OK_AND_ASSIGN(const Transfer write,
                         prefill_.agent->Write("decode",
                                               DescriptorBlocks{.local = std::span(&local, 1),
                                                                .remote = std::span(&remote, 1)},
                                               Telling(word)));
    ASSERT_OK(write.Wait(kAmple));
    ASSERT_OK_AND_ASSIGN(const Notification told, decode_.agent->WaitNotification(kAmple));
    EXPECT_EQ(told.payload, word);
    EXPECT_EQ(told.incarnation, MetadataOf(*prefill_.agent).incarnation);
    EXPECT_TRUE(std::ranges::equal(decode_.memory.bytes(), prefill_.memory.bytes()));
  }
  // The two have met once, and neither has lost the other.
  void ExpectUndisturbed() {
    ASSERT_NO_FATAL_FAILURE(Write("on"));
    for (Agent* const agent : {prefill_.agent.get(), decode_.agent.get()}) {
      while (const std::optional<PeerEvent> event = agent->PollPeerEvent()) {
        EXPECT_EQ(event->kind, PeerEventKind::kJoined) << event->cause;
        EXPECT_EQ(event->incarnation,
                  MetadataOf(agent == prefill_.agent.get() ? *decode_.agent : *prefill_.agent)
                      .incarnation);
      }
    }
  }
  // What prefill would say, of a session of its own that decode does not know.
  HelloFrame HelloOfPrefill() {
    HelloFrame hello = stranger_->NewHello(*decode_.agent);
    hello.initiator = MetadataOf(*prefill_.agent).incarnation;
    return hello;
  }
  void ExpectRefused(ScriptedPeer& peer, RefuseReason reason) {
    EXPECT_TRUE(peer.Until([&] { return peer.Refused().has_value() || peer.down(); }));
    ASSERT_TRUE(peer.Refused().has_value());
    EXPECT_EQ(peer.Refused()->reason, reason) << peer.Refused()->text;
    EXPECT_TRUE(peer.Heard(FrameType::kHelloAck).empty());
    EXPECT_TRUE(peer.UntilDown());
  }
  std::string HeardKey(ScriptedPeer& peer) {
    EXPECT_TRUE(peer.Until([&] { return !peer.Messages(FrameType::kKey).empty() || peer.down(); }));
    const std::vector<std::string> keys = peer.Messages(FrameType::kKey);
    return keys.empty() ? "" : keys.front();
  }

  Node prefill_;
  Node decode_;
  std::unique_ptr<ScriptedPeer> stranger_;
  int written_ = 0;
};

TEST_P(Stranger, WhoSaysThatItIsAnotherIncarnationIsRefused) {
  ASSERT_TRUE(stranger_->Dial(*decode_.agent));
  Handshake handshake = stranger_->Dialling(HelloOfPrefill());
  ASSERT_TRUE(stranger_->Send(handshake.HelloMessage()));
  ASSERT_TRUE(stranger_->Send(handshake.KeyMessage()));
  ExpectRefused(*stranger_, RefuseReason::kNotProved);
  ExpectUndisturbed();
}

// The real agent's public key is no secret either.
TEST_P(Stranger, WhoShowsAnothersKeyCannotProveIt) {
  ASSERT_OK_AND_ASSIGN(const auto met,
                       ScriptedPeer::Target(*prefill_.agent, "met", {}, GetParam()));
  ASSERT_OK(prefill_.agent->Notify("met", "hello", Unhurried()));
  ASSERT_TRUE(met->Until([&] { return !met->Heard(FrameType::kKey).empty(); }));
  const KeyFrame shown = *Decode<KeyFrame>(Bytes(met->Heard(FrameType::kKey).front()));
  ASSERT_EQ(*IncarnationOf(shown.key), MetadataOf(*prefill_.agent).incarnation);

  ASSERT_TRUE(stranger_->Dial(*decode_.agent));
  Handshake handshake = stranger_->Dialling(HelloOfPrefill());
  ASSERT_TRUE(stranger_->Send(handshake.HelloMessage()));
  ASSERT_TRUE(stranger_->Send(EncodeMessage(FrameType::kKey, 0, 0, shown)));
  ASSERT_FALSE(HeardKey(*stranger_).empty());
  ASSERT_TRUE(stranger_->Send(EncodeMessage(FrameType::kProof, 0, 0, ProofFrame{})));
  ExpectRefused(*stranger_, RefuseReason::kNotProved);
  ExpectUndisturbed();
  ASSERT_OK(prefill_.agent->RemovePeer("met"));
}

// An agent that is led to a stranger tells it all that a connection to the real peer needs. Relayed
// at once that is good for this one connection; recorded it is good for nothing.
TEST_P(Stranger, ARecordedConnectionCannotBePlayedAgain) {
  ASSERT_OK_AND_ASSIGN(auto led, Make("led"));
  AgentMetadata false_address = MetadataOf(*decode_.agent);
  ASSERT_OK_AND_ASSIGN(const auto relay, ScriptedPeer::Stranger("relay", GetParam()));
  relay->Serve(false_address);
  ASSERT_OK(led.agent->AddPeer(EncodeMetadata(false_address)));
  ASSERT_OK_AND_ASSIGN(const Transfer hello, led.agent->Notify("decode", "x", Unhurried()));
  ASSERT_TRUE(relay->Until([&] {
    return !relay->Heard(FrameType::kHello).empty() && !relay->Heard(FrameType::kKey).empty();
  }));
  std::vector<std::string> said{relay->Messages(FrameType::kHello).front(),
                                relay->Messages(FrameType::kKey).front()};
  ASSERT_TRUE(stranger_->Dial(*decode_.agent));
  for (const std::string& message : said) ASSERT_TRUE(stranger_->Send(message));
  const std::string key = HeardKey(*stranger_);
  ASSERT_FALSE(key.empty());
  ASSERT_TRUE(relay->Send(key));
  ASSERT_TRUE(relay->Until([&] { return !relay->Messages(FrameType::kProof).empty(); }));
  said.push_back(relay->Messages(FrameType::kProof).front());

  // The proof covers the nonce of the connection that it was made for.
  ASSERT_OK_AND_ASSIGN(const auto again, ScriptedPeer::Stranger("led", GetParam()));
  ASSERT_TRUE(again->Dial(*decode_.agent));
  ASSERT_TRUE(again->Send(said[0]));
  ASSERT_TRUE(again->Send(said[1]));
  const std::string other_key = HeardKey(*again);
  ASSERT_FALSE(other_key.empty());
  EXPECT_NE(other_key, key);
  ASSERT_TRUE(again->Send(said[2]));
  ExpectRefused(*again, RefuseReason::kNotProved);

  // All at once, without waiting for anything.
  ASSERT_OK_AND_ASSIGN(const auto blind, ScriptedPeer::Stranger("led", GetParam()));
  ASSERT_TRUE(blind->Dial(*decode_.agent));
  for (const std::string& message : said) ASSERT_TRUE(blind->Send(message));
  ExpectRefused(*blind, RefuseReason::kNotProved);
  ExpectUndisturbed();
}

TEST_P(Stranger, NothingIsDoneForItBeforeTheProof) {
  const std::string open = EncodeMessage(
      FrameType::kOpen, 1, 0,
      OpenFrame{.transfer = 1, .order = 1, .notice = Notice::kNotification, .notification = "x"});
  for (const bool after_key : {false, true}) {
    ASSERT_OK_AND_ASSIGN(const auto peer, ScriptedPeer::Stranger("early", GetParam()));
    ASSERT_TRUE(peer->Dial(*decode_.agent));
    if (after_key) {
      Handshake handshake = peer->Dialling(peer->NewHello(*decode_.agent));
      ASSERT_TRUE(peer->Send(handshake.HelloMessage()));
      ASSERT_TRUE(peer->Send(handshake.KeyMessage()));
      ASSERT_FALSE(HeardKey(*peer).empty());
    }
    ASSERT_TRUE(peer->Send(open));
    ExpectRefused(*peer, RefuseReason::kNotProved);
  }
  EXPECT_FALSE(decode_.agent->PollNotification().has_value());
  ExpectUndisturbed();
}

// Expect that one that never proves itself loses its connection in a few seconds, whatever it says
// to gain time.
TEST_P(Stranger, ItsConnectionEndsWithoutAProof) {
  ASSERT_OK_AND_ASSIGN(const auto silent, ScriptedPeer::Stranger("silent", GetParam()));
  ASSERT_TRUE(silent->Dial(*decode_.agent));
  ASSERT_TRUE(stranger_->Dial(*decode_.agent));
  Handshake handshake = stranger_->Dialling(stranger_->NewHello(*decode_.agent));
  ASSERT_TRUE(stranger_->Send(handshake.HelloMessage()));
  ASSERT_TRUE(stranger_->Send(handshake.KeyMessage()));
  EXPECT_FALSE(HeardKey(*stranger_).empty());
  EXPECT_TRUE(stranger_->UntilDown());
  EXPECT_TRUE(silent->UntilDown());
  ExpectUndisturbed();
}

// The bytes are those that version 6 knows.
TEST_P(Stranger, AnOlderPeerIsRefusedByName) {
  ASSERT_TRUE(stranger_->Dial(*decode_.agent));
  HelloFrame hello = stranger_->NewHello(*decode_.agent);
  hello.min_version = 1;
  hello.max_version = 6;
  ASSERT_TRUE(stranger_->Send(EncodeMessage(FrameType::kHello, 0, 0, hello)));
  ExpectRefused(*stranger_, RefuseReason::kVersion);
  const RefuseFrame refuse = *stranger_->Refused();
  EXPECT_EQ(refuse.min_version, 7);
  EXPECT_EQ(refuse.max_version, 7);
  EXPECT_EQ(refuse.target, hello.target);
  EXPECT_NE(refuse.text.find("one side speaks 1 to 6, the other 7 to 7"), std::string::npos)
      << refuse.text;
  ExpectUndisturbed();
}

// --- who answers at an agent's address ----------------------------------------------------------

TEST_P(Stranger, WhoAnswersAtAnotherAddressIsNotBelieved) {
  AgentMetadata false_address = MetadataOf(*decode_.agent);
  false_address.name = "elsewhere";
  ASSERT_OK_AND_ASSIGN(auto led, Make("led"));
  stranger_->Serve(false_address);
  ASSERT_OK(led.agent->AddPeer(EncodeMetadata(false_address)));
  ASSERT_OK_AND_ASSIGN(const Transfer hello, led.agent->Notify("elsewhere", "x", Unhurried()));
  // It does not know what to say to a hello that is meant for another one, but for its own key.
  EXPECT_TRUE(stranger_->Until([&] { return !stranger_->Heard(FrameType::kKey).empty(); }));
  EXPECT_TRUE(stranger_->ProveAs(false_address.incarnation));
  EXPECT_TRUE(stranger_->UntilDown());
  EXPECT_TRUE(stranger_->Heard(FrameType::kProof).empty());
  EXPECT_TRUE(Fails(hello.Wait(kAmple), absl::StatusCode::kUnavailable,
                    {"elsewhere", "is another one", "has the key of"}))
      << hello.status();
}

class StrangerInPlaceOfATarget : public Stranger {
 protected:
  // A write to a scripted peer that takes it, and whose connection is lost without an answer.
  void Write(std::unique_ptr<ScriptedPeer>& peer, Transfer& write) {
    const RemoteRegion region{
        .id = RegionId{1}, .rkey = 5, .base = 4096, .bytes = kBytes, .access = Access::kReadWrite};
    ASSERT_OK_AND_ASSIGN(peer, ScriptedPeer::Target(*prefill_.agent, "peer", {region}, GetParam()));
    const Descriptor local{prefill_.memory.address(), kBytes};
    const Descriptor remote{4096, kBytes};
    ASSERT_OK_AND_ASSIGN(
        write, prefill_.agent->Write(
                   "peer",
                   DescriptorBlocks{.local = std::span(&local, 1), .remote = std::span(&remote, 1)},
                   Telling("x")));
    ASSERT_TRUE(peer->Accept());
    ASSERT_TRUE(peer->Say(FrameType::kCredit, Encode(CreditFrame{.notifications = 1, .bytes = 9})));
    peer->Say(FrameType::kSlotGrant, Encode(SlotGrantFrame{.range = {.first = 0, .count = 64}}));
    // Sent, or on its way, and not answered: nobody knows whether it is quiet.
    peer->Until([&] {
      return !peer->Heard(FrameType::kOpen).empty() || write.Poll() != TransferState::kActive;
    });
    peer->Drop();
  }
};

// A refusal that nobody has proved ends no quarantine: of a peer's death only the kernel knows.
TEST_P(StrangerInPlaceOfATarget, ARefusalDeclaresNobodyDead) {
  std::unique_ptr<ScriptedPeer> peer;
  Transfer write;
  ASSERT_NO_FATAL_FAILURE(Write(peer, write));
  EXPECT_FALSE(write.Wait(kAmple).ok());
  EXPECT_TRUE(write.quarantined()) << write.status();
  // Then another one is at the address. The agent has heard it when it tries again.
  const RefuseFrame refuse{.reason = RefuseReason::kIncarnation, .target = Incarnation::Random()};
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(peer->Until([&] { return !peer->Heard(FrameType::kHello).empty(); }));
    ASSERT_TRUE(peer->Send(EncodeMessage(FrameType::kRefuse, 0, 0, refuse)));
    ASSERT_TRUE(peer->UntilDown());
    peer->Drop();
  }
  EXPECT_TRUE(write.quarantined()) << write.status();
}

// Nor does it end what the peer has going here.
TEST_P(StrangerInPlaceOfATarget, ARefusalKeepsThePeersOwnHalf) {
  ASSERT_OK_AND_ASSIGN(const auto peer,
                       ScriptedPeer::Target(*prefill_.agent, "peer", {}, GetParam()));
  ASSERT_TRUE(peer->Hello(*prefill_.agent, false));
  peer->Drop();
  ASSERT_OK_AND_ASSIGN(const Transfer word, prefill_.agent->Notify("peer", "word", Unhurried()));
  const RefuseFrame refuse{.reason = RefuseReason::kIncarnation, .target = Incarnation::Random()};
  ASSERT_TRUE(peer->Until([&] { return !peer->Heard(FrameType::kHello).empty(); }));
  ASSERT_TRUE(peer->Send(EncodeMessage(FrameType::kRefuse, 0, 0, refuse)));
  ASSERT_TRUE(peer->UntilDown());
  EXPECT_FALSE(word.Wait(kAmple).ok());
  ASSERT_TRUE(peer->Hello(*prefill_.agent, true));
  EXPECT_FALSE(peer->Refused().has_value()) << peer->Refused()->text;
}

// That the peer has dialled proves nothing of what the session before left at its side. Only its
// answer in a new session does, so it is dialled for that.
TEST_P(StrangerInPlaceOfATarget, AQuarantineIsSeenToThoughThePeerIsConnected) {
  std::unique_ptr<ScriptedPeer> peer;
  Transfer write;
  ASSERT_NO_FATAL_FAILURE(Write(peer, write));
  ASSERT_TRUE(peer->Prove());
  const RefuseFrame forgotten{.reason = RefuseReason::kSession, .target = peer->self()};
  ASSERT_TRUE(peer->Send(EncodeMessage(FrameType::kRefuse, 0, 0, forgotten)));
  ASSERT_TRUE(peer->UntilDown());
  peer->Drop();
  EXPECT_FALSE(write.Wait(kAmple).ok());
  ASSERT_TRUE(write.quarantined()) << write.status();
  // It is dialled, answers nothing, and dials itself.
  ASSERT_TRUE(peer->Until([&] { return !peer->Heard(FrameType::kHello).empty(); }));
  ASSERT_TRUE(peer->Hello(*prefill_.agent, false));
  ASSERT_FALSE(peer->Refused().has_value()) << peer->Refused()->text;
  peer->DropEarlier();
  ASSERT_TRUE(peer->Accept());
  EXPECT_TRUE(peer->Until([&] { return !write.quarantined(); }));
}

// --- many ---------------------------------------------------------------------------------------

// Expect that the agent takes up a burst of handshakes, refuses the others for now, and serves
// those that are proved as before.
TEST(Strangers, WhoComeInGreatNumberAreRefusedForNow) {
  ASSERT_OK_AND_ASSIGN(auto pair, Pair::Create(PlainFlavour("Loopback"), {.name = "prefill"},
                                               {.name = "decode"}, kBytes));
  ASSERT_OK_AND_ASSIGN(const auto peer, ScriptedPeer::Stranger("many"));
  const HelloFrame hello = peer->NewHello(*pair.b.agent);
  const int64_t dials = (kSlow ? 1 : 4) * HandshakeBudget::kBurst;
  int64_t refused = 0;
  const Time start = Now();
  for (int64_t i = 0; i < dials; ++i) {
    ASSERT_TRUE(peer->Dial(*pair.b.agent));
    const Handshake handshake = peer->Dialling(hello);
    peer->Send(handshake.HelloMessage());
    peer->Send(handshake.KeyMessage());
    ASSERT_TRUE(
        peer->Until([&] { return peer->Refused() || !peer->Heard(FrameType::kKey).empty(); }));
    if (const auto refusal = peer->Refused()) {
      EXPECT_EQ(refusal->reason, RefuseReason::kClosing) << refusal->text;
      ++refused;
    }
  }
  const auto millis = std::chrono::duration_cast<std::chrono::milliseconds>(Now() - start).count();
  // On a slow machine the budget grows as fast as this dials.
  const int64_t most = HandshakeBudget::kBurst + (millis + 1) * HandshakeBudget::kPerSecond / 1000;
  EXPECT_GE(refused, dials - most - 1) << millis << " ms";
  ASSERT_OK_AND_ASSIGN(const Transfer word, pair.a.agent->Notify("decode", "x", Unhurried()));
  EXPECT_OK(word.Wait(kAmple));
}

// Expect that who never shows a key, and so costs no signature, takes no handshake from others.
TEST(Strangers, WhoShowNoKeyTakeNoHandshakes) {
  ASSERT_OK_AND_ASSIGN(auto pair, Pair::Create(PlainFlavour("Loopback"), {.name = "prefill"},
                                               {.name = "decode"}, kBytes));
  ASSERT_OK_AND_ASSIGN(const auto peer, ScriptedPeer::Stranger("many"));
  const HelloFrame hello = peer->NewHello(*pair.b.agent);
  for (int64_t i = 0; i < 2 * HandshakeBudget::kBurst; ++i) {
    ASSERT_TRUE(peer->Dial(*pair.b.agent));
    ASSERT_TRUE(peer->Send(peer->Dialling(hello).HelloMessage()));
    peer->TakeAll();
    EXPECT_FALSE(peer->Refused().has_value()) << i;
  }
  ASSERT_TRUE(peer->Send(peer->Dialling(hello).KeyMessage()));
  EXPECT_TRUE(peer->Until([&] { return !peer->Messages(FrameType::kKey).empty(); }));
}

INSTANTIATE_TEST_SUITE_P(Over, StrangerInPlaceOfATarget, ::testing::Values("loopback", "tcp"),
                         [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Over, Stranger, ::testing::ValuesIn(Backends()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace kvxfer::testing
