// SIGKILL of a process in the middle of IPC: the other one goes on, and nothing of the GPU's memory
// stays in use.
#include <utility>
#include <vector>

#include "tests/gpu/peer.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

class GpuDeath : public ::testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNot(GetParam()); !why.empty()) GTEST_SKIP() << why;
    if (IsStandIn()) layout_.blocks = kSlow ? 8 : 64;
    auto here = GpuSide::Create(GetParam(), "here", layout_.bytes());
    ASSERT_OK(here);
    here_ = *std::move(here);
    FillNow(here_->at(), layout_.bytes(), 1);
  }
  uint64_t weight() const { return WeightOf(layout_.bytes()); }

  const Current current_;
  // Half a GiB: far more than all else that comes and goes.
  Layout layout_{.block_bytes = 64 << 10, .blocks = 8192};
  std::unique_ptr<GpuSide> here_;
};
INSTANTIATE_TEST_SUITE_P(, GpuDeath, ::testing::Values(kCudaIpc, kCudaIpcPieces), WayName);

// Its memory is open here, and copies into it run.
TEST_P(GpuDeath, OfTheOwnerLeavesNoMemoryInUse) {
  const uint64_t before = GpuInUse();
  for (int round = 0; round < 2; ++round) {
    GpuPeer peer(GetParam(), layout_.bytes());
    ASSERT_OK(peer.MeetBy(*here_));
    std::vector<Transfer> transfers;
    for (int i = 0; i < 100; ++i) {
      auto one = PostWrite(here_->agent(), "peer", layout_, here_->at(), peer.at(), Patient());
      ASSERT_OK(one);
      transfers.push_back(*std::move(one));
    }
    ASSERT_OK(transfers.front().Wait(kAmple));
    EXPECT_GE(GpuInUse(), before + weight()) << "what is looked for would not be seen";
    peer.Kill();
    for (const Transfer& transfer : transfers) {
      EXPECT_TRUE(Eventually(kAmple, [&] { return transfer.Poll() != TransferState::kActive; }));
    }
    EXPECT_TRUE(Eventually(kAmple, [&] { return GpuInUse() < before + weight(); }))
        << "in use before: " << before << ", now: " << GpuInUse();
    // The agent is sound, and so is the context.
    EXPECT_OK(here_->agent().RemovePeer("peer"));
    EXPECT_TRUE(KernelsWork());
  }
}

// It has opened memory of this process, and writes there.
TEST_P(GpuDeath, OfTheInitiatorLeavesNoMemoryInUse) {
  const uint64_t with_memory = GpuInUse();
  GpuPeer peer(GetParam(), layout_.bytes());
  ASSERT_NO_FATAL_FAILURE(peer.BeginWriting(*here_, layout_));
  peer.Kill();
  // Nobody writes there any more.
  EXPECT_OK(here_->agent().DeregisterMemory(here_->region(), kAmple));
  here_->FreeMemory();
  EXPECT_TRUE(Eventually(kAmple, [&] { return GpuInUse() + weight() <= with_memory; }))
      << "in use with the memory: " << with_memory << ", without: " << GpuInUse();
  EXPECT_TRUE(KernelsWork());
}

}  // namespace
}  // namespace kvxfer::testing
