// What no agent would say of staging memory: it ends the connection, or is refused, and touches
// nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kvxfer/agent.h"
#include "src/agent/staging/staging.h"
#include "src/core/protocol/metadata.h"
#include "src/core/protocol/wire_format.h"
#include "tests/support/agents.h"
#include "tests/support/blocks.h"
#include "tests/support/pattern.h"
#include "tests/support/scale.h"
#include "tests/support/scripted_peer.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

using ::testing::HasSubstr;

class HostileStager : public ::testing::Test {
 protected:
  void SetUp() override {
    AgentOptions options = OptionsFor(PlainFlavour("Loopback"), "target");
    ASSERT_OK_AND_ASSIGN(node_, Node::Create(options, MemoryType::kCuda, kBytes));
    ASSERT_OK_AND_ASSIGN(peer_, ScriptedPeer::Initiator(*node_.agent, "hostile"));
  }
  // One buffer is lent.
  void Borrow() {
    ASSERT_TRUE(peer_->Say(FrameType::kStageAsk, Encode(StageAskFrame{.count = 1})));
    ASSERT_TRUE(peer_->Until([&] { return !peer_->Heard(FrameType::kStageLend).empty(); }));
    const std::string body = peer_->Heard(FrameType::kStageLend).back();
    ASSERT_OK_AND_ASSIGN(const auto lend, Decode<StageLendFrame>(std::as_bytes(std::span(body))));
    ASSERT_EQ(lend.buffers.size(), 1u);
    buffer_ = lend.buffers[0];
  }
  void Say(const StageFrame& frame) { ASSERT_TRUE(peer_->Say(FrameType::kStage, Encode(frame))); }

  static constexpr size_t kBytes = 8192;
  Node node_;
  std::unique_ptr<ScriptedPeer> peer_;
  uint32_t buffer_ = 0;
};

TEST_F(HostileStager, ABufferThatIsNotLentEndsTheConnection) {
  ASSERT_NO_FATAL_FAILURE(Borrow());
  ASSERT_NO_FATAL_FAILURE(Say({.transfer = 1,
                               .when = StageWhen::kScatter,
                               .buffer = buffer_ + 1,
                               .runs = {{.address = node_.memory.address(), .bytes = 1}}}));
  EXPECT_TRUE(peer_->UntilDown());
}

TEST_F(HostileStager, MoreBytesThanABufferHasEndTheConnection) {
  ASSERT_NO_FATAL_FAILURE(Borrow());
  ASSERT_NO_FATAL_FAILURE(
      Say({.transfer = 1,
           .when = StageWhen::kScatter,
           .buffer = buffer_,
           .runs = {{.address = node_.memory.address(), .bytes = Staging::kBufferBytes},
                    {.address = node_.memory.address(), .bytes = 1}}}));
  EXPECT_TRUE(peer_->UntilDown());
}

TEST_F(HostileStager, MemoryThatIsNotItsOwnIsNotTouched) {
  ASSERT_NO_FATAL_FAILURE(Borrow());
  Pattern(3).Fill(node_.memory.bytes());
  // Any rkey but the right one, and a guess at that with other addresses.
  for (const StageRun run : {StageRun{.address = node_.memory.address(), .bytes = 64, .rkey = 0},
                             StageRun{.address = node_.memory.address(), .bytes = 64, .rkey = 77},
                             StageRun{.address = 0, .bytes = 64, .rkey = 1}}) {
    const size_t heard = peer_->Heard(FrameType::kStaged).size();
    ASSERT_NO_FATAL_FAILURE(
        Say({.transfer = 5, .when = StageWhen::kScatter, .buffer = buffer_, .runs = {run}}));
    ASSERT_TRUE(peer_->Until([&] { return peer_->Heard(FrameType::kStaged).size() > heard; }));
    const std::string body = peer_->Heard(FrameType::kStaged).back();
    ASSERT_OK_AND_ASSIGN(const auto staged, Decode<StagedFrame>(std::as_bytes(std::span(body))));
    EXPECT_FALSE(staged.good);
    EXPECT_THAT(staged.why, HasSubstr("no region grants this"));
  }
  EXPECT_EQ(Pattern(3).Mismatch(node_.memory.bytes()), kNoMismatch);
  EXPECT_FALSE(peer_->down());
}

// Buffers are no memory of the application: a copy within them could overlap itself.
TEST_F(HostileStager, TheBuffersThemselvesAreNoDestination) {
  ASSERT_NO_FATAL_FAILURE(Borrow());
  ASSERT_OK_AND_ASSIGN(const std::string text, node_.agent->Metadata());
  ASSERT_OK_AND_ASSIGN(const AgentMetadata metadata, DecodeMetadata(text));
  const auto staging = std::ranges::find(metadata.regions, true, &AgentMetadata::Region::staging);
  ASSERT_NE(staging, metadata.regions.end());
  ASSERT_NO_FATAL_FAILURE(Say(
      {.transfer = 5,
       .when = StageWhen::kScatter,
       .buffer = buffer_,
       .runs = {
           {.address = staging->region.base + 1, .bytes = 4096, .rkey = staging->region.rkey}}}));
  ASSERT_TRUE(peer_->Until([&] { return !peer_->Heard(FrameType::kStaged).empty(); }));
  const std::string body = peer_->Heard(FrameType::kStaged).back();
  ASSERT_OK_AND_ASSIGN(const auto staged, Decode<StagedFrame>(std::as_bytes(std::span(body))));
  EXPECT_FALSE(staged.good);
}

// Expect a target that lends what it cannot, or what nobody asked for, to be let go of.
TEST(HostileLender, BuffersThatMakeNoSenseEndTheConnection) {
  constexpr uint64_t kBuffers = 4;
  const std::vector<std::vector<uint32_t>> lies = {
      {kBuffers}, {0, 0}, {0, 1, 2, 3, 4, 5, 6, 7, 8}, {UINT32_MAX}};
  for (size_t i = 0; i <= lies.size(); ++i) {
    SCOPED_TRACE(i);
    ASSERT_OK_AND_ASSIGN(Node node, Node::Create(OptionsFor(PlainFlavour("Loopback"), "a"),
                                                 MemoryType::kCuda, 8192));
    const std::vector<RemoteRegion> regions = {{.id = RegionId{1},
                                                .rkey = 1,
                                                .base = 0x10000,
                                                .bytes = 8192,
                                                .kind = MemoryKind::kCuda,
                                                .access = Access::kReadWrite},
                                               {.id = RegionId{2},
                                                .rkey = 2,
                                                .base = 0x1000000,
                                                .bytes = kBuffers * Staging::kBufferBytes,
                                                .access = Access::kReadWrite}};
    ASSERT_OK_AND_ASSIGN(const auto peer,
                         ScriptedPeer::Target(*node.agent, "b", regions, "loopback", RegionId{2}));
    const BlockSet blocks({}, node.memory.address(), 0x10000);
    ASSERT_OK_AND_ASSIGN(const Transfer transfer, blocks.Write(*node.agent, "b", Unhurried()));
    ASSERT_TRUE(peer->Accept());
    ASSERT_TRUE(peer->Until([&] { return !peer->Heard(FrameType::kStageAsk).empty(); }));
    if (i == lies.size()) {  // twice
      ASSERT_TRUE(peer->Say(FrameType::kStageLend, Encode(StageLendFrame{.buffers = {}})));
      // Else the one after it may end the connection already.
      ASSERT_TRUE(peer->Until([&] { return peer->Heard(FrameType::kStageAsk).size() == 2; }));
      ASSERT_TRUE(peer->Say(FrameType::kStageLend, Encode(StageLendFrame{.buffers = {0}})));
      ASSERT_TRUE(peer->Say(FrameType::kStageLend, Encode(StageLendFrame{.buffers = {1}})));
    } else {
      ASSERT_TRUE(peer->Say(FrameType::kStageLend, Encode(StageLendFrame{.buffers = lies[i]})));
    }
    EXPECT_TRUE(peer->UntilDown());
    EXPECT_THAT(std::string(transfer.Wait(kAmple).message()), HasSubstr("broke the protocol"));
  }
}

TEST_F(HostileStager, AskingAgainWhileItWaitsEndsTheConnection) {
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(peer_->Say(FrameType::kStageAsk, Encode(StageAskFrame{.count = 1000})));
  }
  // The first gets all that one may have; of the others, which get none, one waits.
  EXPECT_TRUE(peer_->Until([&] { return !peer_->Heard(FrameType::kStageLend).empty(); }));
  ASSERT_TRUE(peer_->Say(FrameType::kStageBack, Encode(StageBackFrame{.buffers = {1'000'000}})));
  EXPECT_TRUE(peer_->UntilDown());
}

}  // namespace
}  // namespace kvxfer::testing
