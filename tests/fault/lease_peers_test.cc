// Readers under leases that ask for more than they may.
#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/core/protocol/lease_waiters.h"
#include "tests/support/agents.h"
#include "tests/support/scale.h"
#include "tests/support/scripted_peer.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

class LeasePeers : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(agent_, Agent::Create({.name = "owner", .backends = {"loopback"}}));
    ASSERT_OK_AND_ASSIGN(peer_, ScriptedPeer::Initiator(*agent_, "reader"));
  }
  // The answers so far.
  template <typename Frame>
  std::vector<Frame> Heard(FrameType type) {
    std::vector<Frame> frames;
    for (const std::string& body : peer_->Heard(type)) {
      auto frame = Decode<Frame>(std::as_bytes(std::span(body)));
      EXPECT_OK(frame.status());
      if (frame.ok()) frames.push_back(*std::move(frame));
    }
    return frames;
  }
  bool AskAndWait(uint64_t transfer) {
    return peer_->Say(FrameType::kLeaseRead, Encode(LeaseReadFrame{.transfer = transfer,
                                                                   .lease = "a",
                                                                   .within_nanos = UINT64_MAX,
                                                                   .wait_nanos = UINT64_MAX}));
  }
  uint64_t Waiting() {
    const auto counts = agent_->CountKv();
    return counts.ok() ? counts->reads_waiting : UINT64_MAX;
  }

  std::unique_ptr<Agent> agent_;
  std::unique_ptr<ScriptedPeer> peer_;
};

TEST_F(LeasePeers, AsManyWaitAsMay) {
  constexpr uint64_t kMost = LeaseWaiters::kMaxOfReader;
  for (uint64_t transfer = 1; transfer <= kMost + 1; ++transfer) {
    ASSERT_TRUE(AskAndWait(transfer));
  }
  ASSERT_TRUE(AskAndWait(7)) << "asked for twice";
  ASSERT_TRUE(peer_->Until([&] { return peer_->Heard(FrameType::kLeaseAnswer).size() == 2; }));
  for (const auto& answer : Heard<LeaseAnswerFrame>(FrameType::kLeaseAnswer)) {
    EXPECT_EQ(answer.refusal, KvLeaseRefusal::kBusy);
    EXPECT_TRUE(answer.transfer == kMost + 1 || answer.transfer == 7) << answer.transfer;
  }
  EXPECT_EQ(Waiting(), kMost);
  ASSERT_TRUE(peer_->Say(FrameType::kFetchEnd,
                         Encode(FetchEndFrame{.transfer = 7, .lease = "a", .readers = 0})));
  EXPECT_TRUE(peer_->Until([&] { return Waiting() == kMost - 1; }));
}

}  // namespace
}  // namespace kvxfer::testing
