// G7 against a peer that means harm or has lost its mind: what it can make this side keep is
// bounded, and it loses its connection, not the host process.
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "src/core/protocol/reliable_channel.h"
#include "tests/support/agents.h"
#include "tests/support/scale.h"
#include "tests/support/scripted_peer.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

constexpr int kFlood = 200'000;

class HostilePeer : public ::testing::Test {
 protected:
  void SetUp() override {
    AgentOptions options{.name = "victim", .backends = {"loopback", "tcp"}};
    options.max_notifications = 64;
    // Bounds end these connections, not time: a slow machine takes seconds to meet some of them.
    options.connect_timeout = kAmple;
    ASSERT_OK_AND_ASSIGN(agent_, Agent::Create(options));
  }
  // The agent serves others as before.
  void ExpectServes() {
    AgentOptions options{.name = "honest", .backends = {"loopback"}};
    ASSERT_OK_AND_ASSIGN(const auto honest, Agent::Create(options));
    ASSERT_OK(Introduce(*honest, *agent_));
    ASSERT_OK_AND_ASSIGN(const Transfer hello, honest->Notify("victim", "hello", Unhurried()));
    EXPECT_OK(hello.Wait(kAmple));
  }
  // Says `frame(1)`, `frame(2)`, … until the connection is down.
  template <typename Frame>
  void Flood(ScriptedPeer& peer, FrameType type, int bound, Frame frame) {
    int said = 0;
    while (said < kFlood && peer.Say(type, Encode(frame(static_cast<uint64_t>(said) + 1)))) ++said;
    EXPECT_TRUE(peer.UntilDown());
    // What was under way when the bound was met comes on top.
    EXPECT_GE(said, bound);
    EXPECT_LT(said, kFlood);
  }

  std::unique_ptr<Agent> agent_;
};

TEST_F(HostilePeer, NotificationsWithoutCredit) {
  ASSERT_OK_AND_ASSIGN(const auto peer, ScriptedPeer::Initiator(*agent_, "hostile"));
  Flood(*peer, FrameType::kOpen, 64, [](uint64_t i) {
    return OpenFrame{
        .transfer = i, .order = i, .notice = Notice::kNotification, .notification = "x"};
  });
  int told = 0;
  while (agent_->PollNotification().has_value()) ++told;
  EXPECT_EQ(told, 64);
  ExpectServes();
}

// Numbers with gaps wait in order for ever.
TEST_F(HostilePeer, NumbersThatLeaveGaps) {
  ASSERT_OK_AND_ASSIGN(const auto peer, ScriptedPeer::Initiator(*agent_, "hostile"));
  Flood(*peer, FrameType::kOpen, static_cast<int>(kMaxSessionTransfers),
        [](uint64_t i) { return OpenFrame{.transfer = i, .order = 2 * i}; });
  ExpectServes();
}

TEST_F(HostilePeer, NumbersGivenUpThatLeaveGaps) {
  ASSERT_OK_AND_ASSIGN(const auto peer, ScriptedPeer::Initiator(*agent_, "hostile"));
  Flood(*peer, FrameType::kAbort, static_cast<int>(kMaxSessionTransfers),
        [](uint64_t i) { return AbortFrame{.transfer = i, .order = 2 * i, .opened = false}; });
  ExpectServes();
}

TEST_F(HostilePeer, NothingIsAcknowledged) {
  ASSERT_OK_AND_ASSIGN(const auto peer, ScriptedPeer::Initiator(*agent_, "hostile"));
  Flood(*peer, FrameType::kOpen, static_cast<int>(ReliableChannel::kMaxKept),
        [](uint64_t i) { return OpenFrame{.transfer = i, .order = i}; });
  ExpectServes();
}

// Expect that few questions are kept for a peer that answers none, and that it is asked about the
// other regions together once it has answered one.
TEST_F(HostilePeer, DeregistrationsThatItDoesNotAnswer) {
  constexpr size_t kAsked = kMaxRevocations / 2;
  std::vector<std::byte> memory(4 * kAsked);
  std::vector<MemorySpan> spans;
  spans.reserve(memory.size());
  for (std::byte& byte : memory) spans.push_back({.data = &byte, .bytes = 1});
  ASSERT_OK_AND_ASSIGN(const auto regions, agent_->RegisterMemory(spans, Access::kReadWrite));
  ASSERT_OK_AND_ASSIGN(const auto peer, ScriptedPeer::Initiator(*agent_, "hostile"));
  for (size_t i = 0; i < regions.size(); ++i) {
    ASSERT_TRUE(Fails(agent_->DeregisterMemory(regions[i], Duration(0)), kTimedOut,
                      {i < kAsked ? "in use by hostile" : "one of 512 earlier questions"}));
  }
  const auto heard = [&] { return peer->Heard(FrameType::kQuiesce); };
  const auto frame = [&](size_t i) {
    const std::string body = heard()[i];
    return *Decode<QuiesceFrame>(std::as_bytes(std::span(body)));
  };
  const auto answer = [&](size_t i) {
    return peer->Say(FrameType::kQuiet, Encode(QuietFrame{.id = frame(i).id}));
  };
  ExpectServes();
  peer->TakeAll();
  ASSERT_EQ(heard().size(), kAsked);
  ASSERT_TRUE(answer(0));
  ASSERT_TRUE(peer->Until([&] { return heard().size() > kAsked; }));
  EXPECT_EQ(frame(kAsked).regions.size(), regions.size() - kAsked);
  for (size_t i = 1; i <= kAsked; ++i) ASSERT_TRUE(answer(i));
  EXPECT_OK(agent_->DeregisterMemory(regions, kAmple));
  ExpectServes();
}

// A connection that is not up yet does not keep its session: what such a frame led to ended the
// half that was taking it.
TEST_F(HostilePeer, FramesAheadOfThePages) {
  ASSERT_OK_AND_ASSIGN(const auto peer, ScriptedPeer::Target(*agent_, "hostile", {}));
  ASSERT_TRUE(peer->Hello(*agent_, false));
  peer->Drop();
  ASSERT_OK_AND_ASSIGN(const Transfer word, agent_->Notify("hostile", "word", Unhurried()));
  ASSERT_TRUE(peer->Prove());
  ASSERT_TRUE(peer->Answer(5));
  const OpenFrame open{
      .transfer = 1, .order = 1, .notice = Notice::kKvPart, .notification = "no part"};
  ASSERT_TRUE(peer->Say(FrameType::kOpen, Encode(open)));
  const RegionsFrame page{.target = peer->self(), .last = 5};
  ASSERT_TRUE(peer->Send(EncodeMessage(FrameType::kRegions, 0, 0, page)));
  EXPECT_TRUE(peer->UntilDown());
  EXPECT_FALSE(word.Wait(kAmple).ok());
  ExpectServes();
}

TEST_F(HostilePeer, FramesOfRailsThatNobodyDrains) {
  ASSERT_OK_AND_ASSIGN(const auto peer, ScriptedPeer::Initiator(*agent_, "hostile"));
  ASSERT_TRUE(peer->Say(FrameType::kDiscard, Encode(DiscardFrame{.transfer = 1})));
  EXPECT_TRUE(peer->UntilDown());
  ExpectServes();
}

// A connection broke unseen by the target, which waits for what may still come over it, until it is
// told. Of others it knows nothing.
TEST_F(HostilePeer, AConnectionThatIsGone) {
  ASSERT_OK_AND_ASSIGN(const auto peer, ScriptedPeer::Initiator(*agent_, "initiator"));
  ASSERT_TRUE(peer->Hello(*agent_, true));
  ASSERT_TRUE(
      peer->Say(FrameType::kAbort, Encode(AbortFrame{.transfer = 1, .order = 1, .opened = false})));
  peer->Fence(1);
  ASSERT_TRUE(peer->Say(FrameType::kLinkGone, Encode(LinkGoneFrame{.link = 3})));
  const auto aborted = [&] { return !peer->Heard(FrameType::kReleased).empty(); };
  const Time end = Now() + std::chrono::milliseconds(50);
  peer->Until([&] { return Now() > end; });
  EXPECT_FALSE(aborted());
  ASSERT_TRUE(peer->Say(FrameType::kLinkGone, Encode(LinkGoneFrame{.link = 1})));
  EXPECT_TRUE(peer->Until(aborted));
  ASSERT_TRUE(peer->Say(FrameType::kLinkGone, Encode(LinkGoneFrame{.link = 2})));
  EXPECT_TRUE(peer->UntilDown());
  ExpectServes();
}

TEST_F(HostilePeer, FencesOfRailsThatAreNotThereOrTwice) {
  const auto fence = [](uint32_t rail) {
    return EncodeMessage(FrameType::kFenceRail, 0, 0, RailFrame{.rail = rail});
  };
  {
    // No rail of loopback fails alone.
    ASSERT_OK_AND_ASSIGN(const auto peer, ScriptedPeer::Initiator(*agent_, "none"));
    ASSERT_TRUE(peer->Send(fence(0)));
    EXPECT_TRUE(peer->UntilDown());
  }
  {
    ASSERT_OK_AND_ASSIGN(const auto peer, ScriptedPeer::Initiator(*agent_, "hostile", "tcp"));
    ASSERT_TRUE(peer->Send(fence(1000)));
    EXPECT_TRUE(peer->UntilDown());
  }
  {
    ASSERT_OK_AND_ASSIGN(const auto peer, ScriptedPeer::Initiator(*agent_, "twice", "tcp"));
    ASSERT_TRUE(peer->Send(fence(0) + fence(0)));
    EXPECT_TRUE(peer->UntilDown());
  }
  ASSERT_OK_AND_ASSIGN(const auto peer, ScriptedPeer::Initiator(*agent_, "short", "tcp"));
  ASSERT_TRUE(peer->Send(EncodeMessage(FrameType::kFenceRail, 0, 0, std::string_view("x"))));
  EXPECT_TRUE(peer->UntilDown());
  ExpectServes();
}

// Expect what a target says to end a session in which this agent has initiated nothing.
TEST_F(HostilePeer, AnswersToAnAgentThatNeverBegan) {
  ASSERT_OK_AND_ASSIGN(const auto peer, ScriptedPeer::Initiator(*agent_, "hostile"));
  ASSERT_TRUE(peer->Say(FrameType::kCredit, Encode(CreditFrame{.notifications = 1, .bytes = 1})));
  EXPECT_TRUE(peer->UntilDown());
  ExpectServes();
}

TEST_F(HostilePeer, AcknowledgementsOfWhatWasNeverSent) {
  ASSERT_OK_AND_ASSIGN(const auto peer, ScriptedPeer::Initiator(*agent_, "hostile"));
  ASSERT_TRUE(peer->Send(EncodeMessage(FrameType::kAck, 0, 1'000'000, std::string_view())));
  EXPECT_TRUE(peer->UntilDown());
  ExpectServes();
}

// An honest one, whose frames the target may have acted upon: replayed into a session that begins
// anew, its notification would come twice.
TEST_F(HostilePeer, AForgottenSessionIsNotReplayed) {
  ASSERT_OK_AND_ASSIGN(const auto peer, ScriptedPeer::Initiator(*agent_, "hasty"));
  const std::string open = Encode(OpenFrame{
      .transfer = 1, .order = 1, .notice = Notice::kNotification, .notification = "once"});
  ASSERT_TRUE(peer->Say(FrameType::kOpen, open));
  ASSERT_OK(agent_->WaitNotification(kAmple));
  peer->Drop();
  ASSERT_TRUE(Eventually(kAmple, [&] {
    const std::optional<PeerEvent> event = agent_->PollPeerEvent();
    return event.has_value() && event->kind == PeerEventKind::kLost;
  }));
  ASSERT_OK(agent_->Quiesce({}, kAmple));
  // It could still replay from the first frame on.
  ASSERT_TRUE(peer->Hello(*agent_, true));
  EXPECT_TRUE(peer->Heard(FrameType::kHelloAck).empty());
  EXPECT_FALSE(peer->Heard(FrameType::kRefuse).empty());
  EXPECT_FALSE(agent_->PollNotification().has_value());
}

// One range of slots is as many as an initiator may ask for at once; the table has an end.
TEST_F(HostilePeer, AllSlotsTakenAndGivenBack) {
  constexpr uint32_t kRanges = (1u << kSlotBits) / 64;
  constexpr uint32_t kEach = 32;
  std::vector<std::unique_ptr<ScriptedPeer>> hoarders;
  for (uint32_t i = 0; i < kRanges / kEach; ++i) {
    ASSERT_OK_AND_ASSIGN(auto peer,
                         ScriptedPeer::Initiator(*agent_, "hoarder" + std::to_string(i)));
    for (uint32_t r = 0; r < kEach; ++r) {
      ASSERT_TRUE(peer->Say(FrameType::kSlotRequest, Encode(SlotRequestFrame{.count = 64})));
    }
    ASSERT_TRUE(peer->Until([&] { return peer->Heard(FrameType::kSlotGrant).size() == kEach; }));
    hoarders.push_back(std::move(peer));
  }
  ASSERT_OK_AND_ASSIGN(Node honest, Node::Create({.name = "honest", .backends = {"loopback"}},
                                                 MemoryType::kAttached, 4096));
  ASSERT_OK_AND_ASSIGN(TestMemory memory, TestMemory::Allocate(MemoryType::kAttached, 4096));
  ASSERT_OK_AND_ASSIGN(const RegionId region,
                       agent_->RegisterMemory(memory.span(), Access::kReadWrite));
  ASSERT_OK(Introduce(*honest.agent, *agent_));
  const Descriptor local{honest.memory.address(), 4096};
  const Descriptor remote{memory.address(), 4096};
  ASSERT_OK_AND_ASSIGN(const Transfer write,
                       honest.agent->Write("victim",
                                           DescriptorBlocks{.local = std::span(&local, 1),
                                                            .remote = std::span(&remote, 1)},
                                           Unhurried()));
  EXPECT_EQ(write.Wait(std::chrono::milliseconds(50)).code(), kTimedOut);
  // Expect the write to go on once a hoarder is gone and swept.
  hoarders.pop_back();
  EXPECT_TRUE(Eventually(kAmple, [&] {
    const auto quiet = agent_->Quiesce({.peer = "hoarder511", .regions = {}}, kAmple);
    return quiet.ok() && quiet->quiet && write.Wait(std::chrono::milliseconds(10)).ok();
  }));
  hoarders.clear();
  EXPECT_OK(agent_->DeregisterMemory(region, kAmple));
}

// --- a hostile target
// -----------------------------------------------------------------------------

class HostileTarget : public HostilePeer {
 protected:
  // A target that has come to know of the agent, with a notification posted to it, has proved
  // itself, and has not answered its hello.
  std::unique_ptr<ScriptedPeer> Asked() {
    auto peer = ScriptedPeer::Target(*agent_, "hostile", {});
    EXPECT_OK(peer);
    auto posted = agent_->Notify("hostile", "x", Unhurried());
    EXPECT_OK(posted);
    transfer_ = *std::move(posted);
    EXPECT_TRUE((*peer)->Prove());
    return *std::move(peer);
  }
  // One that has answered it.
  std::unique_ptr<ScriptedPeer> Answered() {
    auto peer = Asked();
    EXPECT_TRUE(peer->Answer());
    return peer;
  }
  void ExpectFailed() {
    EXPECT_FALSE(transfer_.Wait(kAmple).ok());
    EXPECT_NE(transfer_.Poll(), TransferState::kActive);
    EXPECT_NE(transfer_.status().message().find("hostile"), std::string::npos)
        << transfer_.status();
  }

  Transfer transfer_;
};

TEST_F(HostileTarget, AcknowledgementsOfWhatWasNeverSent) {
  const auto peer = Answered();
  ASSERT_TRUE(peer->Send(EncodeMessage(FrameType::kAck, 0, 1'000'000, std::string_view())));
  EXPECT_TRUE(peer->UntilDown());
  ExpectFailed();
}

// Expect what an initiator says to end a session in which it has no connection of its own.
TEST_F(HostileTarget, ItInitiatesWithoutAConnectionOfItsOwn) {
  const auto peer = Answered();
  ASSERT_TRUE(peer->Say(FrameType::kSlotRequest, Encode(SlotRequestFrame{.count = 64})));
  EXPECT_TRUE(peer->UntilDown());
  ExpectFailed();
}

// A message may overtake another one. Expect frames to wait for the answer to the hello, which says
// of which session they are, and few of them to be kept.
TEST_F(HostileTarget, FramesBeforeTheAnswerToTheHello) {
  const CreditFrame credit{.notifications = 9, .bytes = 99};
  {
    const auto peer = Asked();
    ASSERT_TRUE(peer->Say(FrameType::kCredit, Encode(credit)));
    ASSERT_TRUE(peer->Answer());
    EXPECT_TRUE(peer->Until([&] { return !peer->Heard(FrameType::kOpen).empty(); }));
  }
  ExpectFailed();
  ASSERT_OK(agent_->RemovePeer("hostile"));
  const auto peer = Asked();
  Flood(*peer, FrameType::kCredit, static_cast<int>(ReliableChannel::kMaxGap),
        [&](uint64_t) { return credit; });
  ExpectFailed();
}

TEST_F(HostileTarget, GrantsThatOverlapOrDoNotExist) {
  for (const SlotRange range :
       {SlotRange{.first = 0, .count = 0}, SlotRange{.first = 1u << kSlotBits, .count = 1},
        SlotRange{.first = 5, .count = 1u << kSlotBits}}) {
    const auto peer = Answered();
    ASSERT_TRUE(peer->Say(FrameType::kSlotGrant, Encode(SlotGrantFrame{.range = range})));
    EXPECT_TRUE(peer->UntilDown());
    ExpectFailed();
    ASSERT_OK(agent_->RemovePeer("hostile"));
  }
  const auto peer = Answered();
  const SlotGrantFrame grant{.range = {.first = 64, .count = 64}};
  ASSERT_TRUE(peer->Say(FrameType::kSlotGrant, Encode(grant)));
  ASSERT_TRUE(peer->Say(FrameType::kSlotGrant, Encode(grant)));
  EXPECT_TRUE(peer->UntilDown());
  ExpectFailed();
}

TEST_F(HostileTarget, QuestionsWhoseAnswersAreNotAcknowledged) {
  const auto peer = Answered();
  Flood(*peer, FrameType::kQuiesce, static_cast<int>(ReliableChannel::kMaxKept),
        [](uint64_t i) { return QuiesceFrame{.id = i, .all_regions = true}; });
  ExpectFailed();
}

// A peer with a region, and a write to it that waits, for no slot is granted.
class HostileTargetOfAWrite : public HostilePeer {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(node_, Node::Create({.name = "honest", .backends = {"loopback"}},
                                             MemoryType::kAttached, 4096));
    const RemoteRegion region{
        .id = RegionId{1}, .rkey = 5, .base = 4096, .bytes = 4096, .access = Access::kReadWrite};
    ASSERT_OK_AND_ASSIGN(peer_, ScriptedPeer::Target(*node_.agent, "hostile", {region}));
    const Descriptor local{node_.memory.address(), 4096};
    const Descriptor remote{4096, 4096};
    ASSERT_OK_AND_ASSIGN(write_,
                         node_.agent->Write("hostile",
                                            DescriptorBlocks{.local = std::span(&local, 1),
                                                             .remote = std::span(&remote, 1)},
                                            Unhurried()));
  }

  Node node_;
  std::unique_ptr<ScriptedPeer> peer_;
  Transfer write_;
};

TEST_F(HostileTargetOfAWrite, QuestionsThatWaitForIt) {
  ASSERT_TRUE(peer_->Accept());
  ASSERT_TRUE(peer_->Until([&] { return !peer_->Heard(FrameType::kSlotRequest).empty(); }));
  Flood(*peer_, FrameType::kQuiesce, static_cast<int>(kMaxQuestions),
        [](uint64_t i) { return QuiesceFrame{.id = i, .all_regions = true}; });
  EXPECT_FALSE(write_.Wait(kAmple).ok());
}

TEST_F(HostileTargetOfAWrite, RevocationsThatWaitForIt) {
  ASSERT_OK(node_.agent->Notify("hostile", "behind", Unhurried()));
  ASSERT_TRUE(peer_->Accept());
  const CreditFrame credit{.notifications = 10, .bytes = 1000};
  ASSERT_TRUE(peer_->Say(FrameType::kCredit, Encode(credit)));
  // The write, which has no slot, has left the queue before it.
  ASSERT_TRUE(peer_->Until([&] { return !peer_->Heard(FrameType::kOpen).empty(); }));
  const auto ask = [&](uint64_t id, uint32_t about) {
    return peer_->Say(FrameType::kQuiesce,
                      Encode(QuiesceFrame{.id = id, .revoke = true, .regions = {about}}));
  };
  for (uint64_t i = 1; i < kMaxRevocations; ++i) ASSERT_TRUE(ask(i, 1));
  // What waits for nothing is answered, and makes room again.
  for (uint64_t i = 1; i <= 2; ++i) {
    ASSERT_TRUE(ask(kMaxRevocations + i, 2));
    ASSERT_TRUE(peer_->Until([&] { return peer_->Heard(FrameType::kQuiet).size() == i; }));
  }
  ASSERT_TRUE(ask(kMaxRevocations, 1));
  EXPECT_FALSE(peer_->down());
  ASSERT_TRUE(ask(1, 1));
  EXPECT_TRUE(peer_->UntilDown());
  EXPECT_FALSE(write_.Wait(kAmple).ok());
}

TEST_F(HostileTarget, RegionsThatNeverWere) {
  const auto peer = Answered();
  Flood(*peer, FrameType::kQuiesce, 500, [](uint64_t i) {
    QuiesceFrame frame{.id = i, .revoke = true};
    for (uint32_t region = 1; region <= 1000; ++region) {
      frame.regions.push_back(static_cast<uint32_t>(2 * (1000 * i + region)));
    }
    return frame;
  });
  ExpectFailed();
}

// Pages of regions without end, before the hello is answered or after that.
TEST_F(HostileTarget, PagesOfRegionsThatNeverWere) {
  const auto peer = Asked();
  const auto page = [&](uint32_t i) {
    RegionsFrame frame{.target = peer->self(), .first = 40'000 * i + 1, .last = 40'000 * (i + 1)};
    for (uint32_t k = 0; k < kMaxRegionRuns; ++k) {
      frame.live.push_back({.first = frame.first + 2 * k + 1, .last = frame.first + 2 * k + 1});
    }
    return EncodeMessage(FrameType::kRegions, 0, 0, frame);
  };
  uint32_t said = 0;
  while (said < 1000 && peer->Send(page(said))) ++said;
  EXPECT_TRUE(peer->UntilDown());
  EXPECT_GE(said, 2 * kMaxRegions / kMaxRegionRuns);
  EXPECT_LT(said, 1000u);
  ExpectFailed();
}

TEST_F(HostileTarget, PagesOfAnotherIncarnation) {
  const auto peer = Asked();
  const RegionsFrame page{.target = Incarnation::Random(), .first = 1, .last = 1};
  ASSERT_TRUE(peer->Send(EncodeMessage(FrameType::kRegions, 0, 0, page)));
  EXPECT_TRUE(peer->UntilDown());
  ExpectFailed();
}

TEST_F(HostileTarget, AHelloAnsweredTwice) {
  const auto peer = Asked();
  ASSERT_TRUE(peer->Answer(7));
  ASSERT_TRUE(peer->Answer(7));
  EXPECT_TRUE(peer->UntilDown());
  ExpectFailed();
}

// Nothing is sent to it before it has said of all of its regions whether they live.
TEST_F(HostileTarget, APageThatNeverComes) {
  const auto peer = Asked();
  ASSERT_TRUE(peer->Answer(9));
  const auto say = [&](uint32_t first, uint32_t last) {
    const RegionsFrame page{.target = peer->self(), .first = first, .last = last};
    ASSERT_TRUE(peer->Send(EncodeMessage(FrameType::kRegions, 0, 0, page)));
  };
  const CreditFrame credit{.notifications = 10, .bytes = 1000};
  ASSERT_TRUE(peer->Say(FrameType::kCredit, Encode(credit)));
  say(5, 9);
  // The agent takes what comes over loopback in order, and sends to its targets before it answers
  // its initiators: once it has answered one, it has done with the page all that it does.
  ExpectServes();
  peer->TakeAll();
  EXPECT_TRUE(peer->Heard(FrameType::kOpen).empty());
  say(1, 4);
  EXPECT_TRUE(peer->Until([&] { return !peer->Heard(FrameType::kOpen).empty(); }));
}

TEST_F(HostileTarget, RailsFencedThatNobodyAskedFor) {
  for (const uint32_t rail : {0u, 1000u}) {
    const auto peer = Answered();
    ASSERT_TRUE(peer->Send(EncodeMessage(FrameType::kRailFenced, 0, 0, RailFrame{.rail = rail})));
    EXPECT_TRUE(peer->UntilDown());
    ExpectFailed();
    ASSERT_OK(agent_->RemovePeer("hostile"));
  }
}

TEST_F(HostileTarget, AnswersToDiscardsThatNobodySent) {
  const auto peer = Answered();
  const ReleasedFrame released{.discarded = {{.transfer = transfer_.id()}}};
  ASSERT_TRUE(peer->Say(FrameType::kCredit, Encode(CreditFrame{.notifications = 9, .bytes = 99})));
  ASSERT_TRUE(peer->Until([&] { return !peer->Heard(FrameType::kOpen).empty(); }));
  ASSERT_TRUE(peer->Say(FrameType::kReleased, Encode(released)));
  EXPECT_TRUE(peer->UntilDown());
  ExpectFailed();
}

// An initiator of one block whose only rail fails with the first op; the peer grants one slot.
struct RailFailure {
  static constexpr Descriptor kRemote{4096, 4096};

  absl::Status Begin() {
    AgentOptions options{.name = "honest", .backends = {"faulty:loopback"}};
    options.backend["faulty"] = WriteOptions(
        faulty::FaultOptions{.rail_down_probability = 1, .rail_down_for = std::chrono::hours(1)});
    options.connect_timeout = std::chrono::milliseconds(200);
    options.backend["loopback"]["rails"] = "1";
    auto made = Node::Create(options, MemoryType::kAttached, 4096);
    if (!made.ok()) return made.status();
    node.emplace(*std::move(made));
    const RemoteRegion region{
        .id = RegionId{1}, .rkey = 5, .base = 4096, .bytes = 4096, .access = Access::kReadWrite};
    auto target = ScriptedPeer::Target(*node->agent, "hostile", {region}, "faulty:loopback");
    if (!target.ok()) return target.status();
    peer = *std::move(target);
    const Descriptor local{node->memory.address(), 4096};
    auto begun = node->agent->Write(
        "hostile",
        DescriptorBlocks{.local = std::span(&local, 1), .remote = std::span(&kRemote, 1)},
        Unhurried());
    if (!begun.ok()) return begun.status();
    write = *std::move(begun);
    const SlotGrantFrame grant{.range = {.first = 0, .count = 1}};
    if (!peer->Accept() || !peer->Say(FrameType::kSlotGrant, Encode(grant)) ||
        !peer->Until([&] { return !peer->Heard(FrameType::kFenceRail).empty(); })) {
      return absl::InternalError("the rail did not fail");
    }
    return absl::OkStatus();
  }

  std::optional<Node> node;
  std::unique_ptr<ScriptedPeer> peer;
  Transfer write;
};

TEST_F(HostileTarget, ALaneLetGoWithoutItsSlot) {
  RailFailure rail;
  ASSERT_OK(rail.Begin());
  ASSERT_TRUE(rail.peer->Send(EncodeMessage(FrameType::kRailFenced, 0, 0, RailFrame{.rail = 0})));
  ASSERT_TRUE(rail.peer->Until([&] { return !rail.peer->Heard(FrameType::kDiscard).empty(); }));
  const std::string body = rail.peer->Heard(FrameType::kDiscard).back();
  const auto discard = Decode<DiscardFrame>(std::as_bytes(std::span(body)));
  ASSERT_OK(discard.status());
  ASSERT_EQ(discard->slots.size(), 1u);
  const ReleasedFrame released{
      .discarded = {{.transfer = discard->transfer, .ref = discard->slots.front()}}};
  ASSERT_TRUE(rail.peer->Say(FrameType::kReleased, Encode(released)));
  EXPECT_TRUE(rail.peer->UntilDown());
  EXPECT_FALSE(rail.write.Wait(kAmple).ok());
}

// Long before the transfer's deadline: without the fence nothing of it can go again.
TEST_F(HostileTarget, ARailThatItNeverFences) {
  RailFailure rail;
  ASSERT_OK(rail.Begin());
  EXPECT_TRUE(rail.peer->UntilDown());
  EXPECT_TRUE(Fails(rail.write.Wait(kAmple), absl::StatusCode::kUnavailable,
                    {"did not make rail 0 quiet", "injected failure"}));
}

TEST_F(HostileTarget, AnswersToWhatNobodySent) {
  for (int lie = 0; lie < 3; ++lie) {
    const auto peer = Answered();
    ReleasedFrame released;
    if (lie == 0) released.aborted = {{.transfer = transfer_.id()}};
    if (lie == 1) released.arrived = {transfer_.id()};
    if (lie == 2) released.freed = {{.slot = 5, .generation = 0}};
    ASSERT_TRUE(peer->Say(FrameType::kReleased, Encode(released)));
    EXPECT_TRUE(peer->UntilDown());
    ExpectFailed();
    ASSERT_OK(agent_->RemovePeer("hostile"));
  }
}

}  // namespace
}  // namespace kvxfer::testing
