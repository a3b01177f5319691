// Scattered blocks between the GPU memory of two processes, looked at by kernels of the one where
// they are to be.
#include <vector>

#include "tests/gpu/peer.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

// As a paged cache has them, and lengths and distances of which nothing is a multiple.
std::vector<Layout> Layouts() {
  const uint32_t less = !IsStandIn() ? 1 : kSlow ? 64 : 32;
  return {{.block_bytes = 4096, .blocks = 16384 / less},
          {.block_bytes = 64 << 10, .blocks = 1024 / less},
          {.block_bytes = 1 << 20, .blocks = 64 / less},
          {.block_bytes = 656, .blocks = 4096 / less, .gap = 16},
          {.block_bytes = 4099, .blocks = 2048 / less, .gap = 29}};
}

uint64_t MostBytes() {
  uint64_t most = 0;
  for (const Layout& layout : Layouts()) most = std::max(most, layout.bytes());
  return most;
}

class GpuBlocks : public ::testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNot(GetParam()); !why.empty()) GTEST_SKIP() << why;
    auto here = GpuSide::Create(GetParam(), "here", MostBytes());
    ASSERT_OK(here);
    here_ = *std::move(here);
    peer_.emplace(GetParam(), MostBytes());
    ASSERT_OK(peer_->MeetBy(*here_));
  }
  void Ends(const absl::StatusOr<Transfer>& transfer) {
    ASSERT_OK(transfer);
    ASSERT_OK(transfer->Wait(kAmple));
    EXPECT_EQ(transfer->stats().path, GetParam().path);
  }

  const Current current_;
  std::unique_ptr<GpuSide> here_;
  std::optional<GpuPeer> peer_;
};
INSTANTIATE_TEST_SUITE_P(, GpuBlocks,
                         ::testing::Values(kCudaIpc, kCudaIpcPieces, kTcpStaged, kShmStaged),
                         WayName);

TEST_P(GpuBlocks, AreWritten) {
  uint64_t seed = 1;
  for (const Layout& layout : Layouts()) {
    FillNow(here_->at(), here_->bytes(), ++seed);
    peer_->Fill(0);
    // The kernel sees what is missing: all of it.
    EXPECT_EQ(peer_->Look(layout, seed).wrong, layout.blocks * layout.block_bytes);
    ASSERT_NO_FATAL_FAILURE(
        Ends(PostWrite(here_->agent(), "peer", layout, here_->at(), peer_->at(), Patient())));
    EXPECT_TRUE(IsGood(peer_->Look(layout, seed), layout));
  }
}

TEST_P(GpuBlocks, AreRead) {
  uint64_t seed = 100;
  for (const Layout& layout : Layouts()) {
    peer_->Fill(++seed);
    FillNow(here_->at(), here_->bytes(), 0);
    const std::vector<uint32_t> sources =
        SourcesOf(layout, layout.Places(false), layout.Places(true));
    EXPECT_EQ(Check(layout, here_->at(), sources, seed).Now().wrong,
              layout.blocks * layout.block_bytes);
    ASSERT_NO_FATAL_FAILURE(
        Ends(PostRead(here_->agent(), "peer", layout, here_->at(), peer_->at(), Patient())));
    EXPECT_TRUE(IsGood(Check(layout, here_->at(), sources, seed).Now(), layout));
  }
}

}  // namespace
}  // namespace kvxfer::testing
