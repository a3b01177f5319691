// The slots that peers are granted where the receives for their immediates are few: who comes over
// another backend is not bound by them, and who is gone takes none of them.

#include "tests/conformance/verbs_device.h"
#include "tests/support/agents.h"
#include "tests/support/blocks.h"
#include "tests/support/scripted_peer.h"

namespace kvxfer::testing {
namespace {

class VerbsSlots : public VerbsDevice {
 protected:
  // A target with receives for seven ranges, or for one.
  void Serve(uint32_t receives = 512) {
    verbs::VerbsOptions options;
    options.receive_depth = receives;
    Use(Devices(1, 1), options);
    AgentOptions of_target = OptionsFor(GetParam(), "target");
    of_target.backends = {"verbs", "tcp"};
    ASSERT_OK_AND_ASSIGN(target_, Node::Create(of_target, GetParam().memory, kOp));
  }
  void TearDown() override {
    target_ = {};
    VerbsDevice::TearDown();
  }
  // Null after a reported failure.
  std::unique_ptr<ScriptedPeer> Peer(const std::string& backend = "verbs") {
    auto peer = ScriptedPeer::Initiator(*target_.agent, "initiator", backend);
    EXPECT_OK(peer);
    return peer.ok() ? *std::move(peer) : nullptr;
  }
  static void Ask(ScriptedPeer& peer, int ranges) {
    for (int i = 0; i < ranges; ++i) {
      ASSERT_TRUE(peer.Say(FrameType::kSlotRequest, Encode(SlotRequestFrame{.count = 64})));
    }
  }
  static size_t Grants(const ScriptedPeer& peer) {
    return peer.Heard(FrameType::kSlotGrant).size();
  }
  // A peer that asks for so many ranges and is granted all, or `grants` of them.
  std::unique_ptr<ScriptedPeer> PeerWith(int ranges, std::optional<size_t> grants = {},
                                         const std::string& backend = "verbs") {
    auto peer = Peer(backend);
    if (peer == nullptr) return nullptr;
    Ask(*peer, ranges);
    EXPECT_TRUE(Granted(*peer, grants.value_or(static_cast<size_t>(ranges))));
    return HasFailure() ? nullptr : std::move(peer);
  }
  // Whether `peer` has so many grants in the end.
  static bool Granted(ScriptedPeer& peer, size_t grants) {
    return peer.Until([&] { return Grants(peer) >= grants || peer.down(); }) &&
           Grants(peer) == grants;
  }
  static void ExpectNoMore(ScriptedPeer& peer, size_t grants) {
    const Time end = Now() + std::chrono::milliseconds(20);
    peer.Until([&] { return Now() > end; });
    EXPECT_EQ(Grants(peer), grants);
  }
  // Goes away as one that died: the target sees the connection end.
  void Vanish(ScriptedPeer& peer) {
    peer.Drop();
    ASSERT_TRUE(Eventually(kAmple, [&] {
      const std::optional<PeerEvent> event = target_.agent->PollPeerEvent();
      return event.has_value() && event->kind == PeerEventKind::kLost;
    }));
  }
  static void ExpectRefused(const ScriptedPeer& peer, RefuseReason reason) {
    const std::vector<std::string> refused = peer.Heard(FrameType::kRefuse);
    ASSERT_EQ(refused.size(), 1u);
    ASSERT_OK_AND_ASSIGN(const auto frame,
                         Decode<RefuseFrame>(std::as_bytes(std::span(refused.front()))));
    EXPECT_EQ(frame.reason, reason) << frame.text;
    EXPECT_NE(frame.text.find("room"), std::string::npos) << frame.text;
  }

  // Writes to the target over `backend`, or any where that is empty.
  void ExpectWritten(Node& peer, uint64_t seed, const std::string& backend) {
    Pattern(seed).Fill(peer.memory.bytes());
    const Descriptor local{peer.memory.address(), kOp};
    const Descriptor remote{target_.memory.address(), kOp};
    TransferOptions options = Unhurried();
    options.backend = backend;
    ASSERT_OK_AND_ASSIGN(const Transfer write,
                         peer.agent->Write("target",
                                           DescriptorBlocks{.local = std::span(&local, 1),
                                                            .remote = std::span(&remote, 1)},
                                           options));
    ASSERT_OK(write.Wait(kAmple));
    EXPECT_EQ(Pattern(seed).Mismatch(target_.memory.bytes()), kNoMismatch);
  }

  Node target_;
};

INSTANTIATE_TEST_SUITE_P(InMemory, VerbsSlots, ::testing::Values(VerbsDeviceFlavour()),
                         FlavourName);

// One that asks for all that there is does not keep others from beginning.
TEST_P(VerbsSlots, HalfAreForWhoHasNone) {
  ASSERT_NO_FATAL_FAILURE(Serve());
  std::vector<std::unique_ptr<ScriptedPeer>> peers;
  for (size_t i = 0; i < 5; ++i) {
    peers.push_back(PeerWith(8, i == 0 ? 4 : i < 4 ? 1 : 0));
    ASSERT_NE(peers.back(), nullptr);
  }
  ExpectNoMore(*peers.back(), 0);
  EXPECT_EQ(Grants(*peers[0]), 4u);
  for (size_t i = 1; i < 4; ++i) EXPECT_EQ(Grants(*peers[i]), 1u);
}

TEST_P(VerbsSlots, WhoComesOverAnotherBackendIsNotBoundByTheReceives) {
  ASSERT_NO_FATAL_FAILURE(Serve());
  const auto other = PeerWith(32, {}, "tcp");
  ASSERT_NE(other, nullptr);
  // Nor does it take anything from the others.
  std::vector<std::unique_ptr<ScriptedPeer>> peers;
  for (size_t i = 0; i < 7; ++i) {
    peers.push_back(PeerWith(1));
    ASSERT_NE(peers.back(), nullptr);
  }
  EXPECT_NE(PeerWith(2, {}, "tcp"), nullptr);
}

// Peers that die or restart one after the other, and hellos of somebody who means harm.
TEST_P(VerbsSlots, WhoIsGoneTakesNone) {
  ASSERT_NO_FATAL_FAILURE(Serve());
  std::vector<std::unique_ptr<ScriptedPeer>> gone;
  for (int round = 0; round < 5; ++round) {
    for (size_t i = 0; i < 7; ++i) {
      gone.push_back(PeerWith(1));
      ASSERT_NE(gone.back(), nullptr) << round << " " << i;
    }
    for (size_t i = 0; i < 7; ++i) gone[gone.size() - 1 - i]->Drop();
  }
}

// Its slots are still its own, and what it asked for comes to it.
TEST_P(VerbsSlots, WhoComesBackWhileThereIsRoomGoesOn) {
  ASSERT_NO_FATAL_FAILURE(Serve());
  const auto peer = PeerWith(5, 4);
  ASSERT_NE(peer, nullptr);
  ExpectNoMore(*peer, 4);
  ASSERT_NO_FATAL_FAILURE(Vanish(*peer));
  const auto other = PeerWith(3);
  ASSERT_NE(other, nullptr);
  ASSERT_TRUE(peer->Hello(*target_.agent, 6));
  ASSERT_FALSE(peer->Heard(FrameType::kHelloAck).empty());
  EXPECT_TRUE(Granted(*peer, 4));  // told again: it has acknowledged none
  ExpectNoMore(*peer, 4);
  // It takes what it took before.
  const auto third = Peer();
  ASSERT_NE(third, nullptr);
  ASSERT_NO_FATAL_FAILURE(Ask(*third, 1));
  ExpectNoMore(*third, 0);
  other->Drop();
  EXPECT_TRUE(Granted(*third, 1));
}

TEST_P(VerbsSlots, WhoComesBackWhenItsRoomIsTakenBeginsAnew) {
  ASSERT_NO_FATAL_FAILURE(Serve());
  const auto peer = PeerWith(4);
  ASSERT_NE(peer, nullptr);
  ASSERT_NO_FATAL_FAILURE(Vanish(*peer));
  const auto other = PeerWith(4);
  ASSERT_NE(other, nullptr);
  ASSERT_TRUE(peer->Hello(*target_.agent, 5));
  EXPECT_TRUE(peer->Heard(FrameType::kHelloAck).empty());
  ExpectRefused(*peer, RefuseReason::kSession);
  ASSERT_TRUE(peer->Hello(*target_.agent, 0));
  ASSERT_FALSE(peer->Heard(FrameType::kHelloAck).empty());
  ASSERT_NO_FATAL_FAILURE(Ask(*peer, 1));
  EXPECT_TRUE(Granted(*peer, 1));
}

// What the target has under way to it goes on over the target's own connection.
TEST_P(VerbsSlots, WhoFindsNoRoomAgainKeepsTheSession) {
  ASSERT_NO_FATAL_FAILURE(Serve());
  const auto peer = PeerWith(4);
  ASSERT_NE(peer, nullptr);
  AgentMetadata metadata{.name = "initiator",
                         .incarnation = peer->self(),
                         .min_version = kMinProtocolVersion,
                         .max_version = kMaxProtocolVersion};
  peer->Serve(metadata);
  ASSERT_OK(target_.agent->AddPeer(EncodeMetadata(metadata)));
  ASSERT_OK_AND_ASSIGN(const Transfer word,
                       target_.agent->Notify("initiator", "word", Unhurried()));
  ASSERT_TRUE(peer->Accept());
  peer->DropEarlier();
  const auto other = PeerWith(4);
  ASSERT_NE(other, nullptr);
  ASSERT_TRUE(peer->Hello(*target_.agent, true));
  ExpectRefused(*peer, RefuseReason::kClosing);
  peer->Drop();
  ASSERT_TRUE(peer->Say(FrameType::kCredit, Encode(CreditFrame{.notifications = 1, .bytes = 100})));
  EXPECT_TRUE(peer->Until([&] { return !peer->Heard(FrameType::kOpen).empty(); }));
  EXPECT_EQ(word.Poll(), TransferState::kActive) << word.status();
}

// An application whose peers restart again and again, with receives for one of them.
TEST_P(VerbsSlots, TheNextOfManyIncarnationsWritesAtOnce) {
  ASSERT_NO_FATAL_FAILURE(Serve(64));
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    ASSERT_OK_AND_ASSIGN(Node peer,
                         Node::Create(OptionsFor(GetParam(), "initiator"), GetParam().memory, kOp));
    ASSERT_OK(Introduce(*peer.agent, *target_.agent));
    ASSERT_NO_FATAL_FAILURE(ExpectWritten(peer, seed, ""));
  }
}

// Its slots are granted over a backend that has room for all.
TEST_P(VerbsSlots, WhoFindsNoRoomGoesOnOverItsOtherConnection) {
  ASSERT_NO_FATAL_FAILURE(Serve(64));
  const auto hoarder = PeerWith(1);
  ASSERT_NE(hoarder, nullptr);
  AgentOptions options = OptionsFor(GetParam(), "initiator");
  options.backends = {"verbs", "tcp"};
  ASSERT_OK_AND_ASSIGN(Node peer, Node::Create(options, GetParam().memory, kOp));
  ASSERT_OK(Introduce(*peer.agent, *target_.agent));
  ASSERT_NO_FATAL_FAILURE(ExpectWritten(peer, 1, "tcp"));
  ASSERT_NO_FATAL_FAILURE(ExpectWritten(peer, 2, ""));
  ASSERT_OK_AND_ASSIGN(const Explanation how, peer.agent->Explain("target"));
  EXPECT_NE(how.ToString().find("have no room here"), std::string::npos) << how.ToString();
  hoarder->Drop();
  ASSERT_NO_FATAL_FAILURE(ExpectWritten(peer, 3, "verbs"));
}

}  // namespace
}  // namespace kvxfer::testing
