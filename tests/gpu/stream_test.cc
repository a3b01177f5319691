// Stream order, proven by kernels: one that reads right behind a transfer, with no host in between,
// and one that writes right before.
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "tests/gpu/peer.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

using std::chrono::milliseconds;

// Longer than anything takes to begin that does not wait.
constexpr milliseconds kLook{20};

class GpuStreamOrder : public ::testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNot(GetParam()); !why.empty()) GTEST_SKIP() << why;
    if (IsStandIn()) layout_.blocks = kSlow ? 64 : 512;
    // The second half is where it is read back to.
    auto here = GpuSide::Create(GetParam(), "here", 2 * layout_.bytes());
    ASSERT_OK(here);
    here_ = *std::move(here);
    peer_.emplace(GetParam(), layout_.bytes());
    ASSERT_OK(peer_->MeetBy(*here_));
    // The connection is up, and whatever is made once is there: making it might wait for streams.
    for (const auto& first : {Write(Patient()), ReadTo(here_->at(), Patient())}) {
      ASSERT_OK(first);
      ASSERT_OK(first->Wait(kAmple));
    }
  }
  absl::StatusOr<Transfer> Write(const TransferOptions& options) {
    return PostWrite(here_->agent(), "peer", layout_, here_->at(), peer_->at(), options);
  }
  absl::StatusOr<Transfer> ReadTo(CUdeviceptr at, const TransferOptions& options) {
    return PostRead(here_->agent(), "peer", layout_, at, peer_->at(), options);
  }
  static CudaStream Name(const OwnStream& stream) {
    return {.handle = reinterpret_cast<uint64_t>(stream.get())};
  }
  static TransferOptions After(const OwnStream& stream) {
    TransferOptions options = Patient();
    options.after = Name(stream);
    return options;
  }

  const Current current_;
  Layout layout_{.block_bytes = 4096, .blocks = 8192, .gap = 256};
  std::unique_ptr<GpuSide> here_;
  std::optional<GpuPeer> peer_;
};
INSTANTIATE_TEST_SUITE_P(, GpuStreamOrder, ::testing::Values(kCudaIpc, kTcpStaged), WayName);

TEST_P(GpuStreamOrder, AKernelRightBehindATransferSeesItsBytes) {
  peer_->Fill(5);
  FillNow(here_->at(), layout_.bytes(), 0);
  Check check(layout_, here_->at(), SourcesOf(layout_, layout_.Places(false), layout_.Places(true)),
              5);
  const OwnStream stream;
  std::atomic<uint32_t> ready{0};
  TransferOptions options = Patient();
  options.ready = &ready;
  const auto transfer = ReadTo(here_->at(), options);
  ASSERT_OK(transfer);
  ASSERT_OK(transfer->StreamWait(Name(stream)));
  check.Launch(stream.get());
  // Both are there before either begins; from here on this thread waits for the kernel alone.
  std::this_thread::sleep_for(kLook);
  EXPECT_CUDA(CUDA_ERROR_NOT_READY, cuStreamQuery(stream.get()));
  EXPECT_EQ(transfer->Poll(), TransferState::kActive);
  ready = 1;
  EXPECT_TRUE(IsGood(check.Result(stream.get()), layout_));
  EXPECT_EQ(transfer->Poll(), TransferState::kDone);
}

TEST_P(GpuStreamOrder, AKernelRightBeforeATransferIsWaitedFor) {
  FillNow(here_->at(), layout_.bytes(), 6);
  peer_->Fill(0);
  const OwnStream stream;
  const OwnEvent event;
  for (const bool by_event : {false, true}) {
    const uint64_t seed = by_event ? 8 : 7;
    Gate gate(stream.get());
    FillIn(stream.get(), here_->at(), layout_.bytes(), seed);
    TransferOptions options = After(stream);
    if (by_event) {
      ASSERT_CUDA(cuEventRecord(event.get(), stream.get()));
      options = Patient();
      options.after_event = reinterpret_cast<uint64_t>(event.get());
    }
    const auto transfer = Write(options);
    ASSERT_OK(transfer);
    std::this_thread::sleep_for(kLook);
    EXPECT_EQ(transfer->Poll(), TransferState::kActive);
    gate.Open();
    ASSERT_OK(transfer->Wait(kAmple));
    EXPECT_TRUE(IsGood(peer_->Look(layout_, seed), layout_));
  }
}

// Run with CUDA_DEVICE_MAX_CONNECTIONS=1: a stream that waited would hold up the copies.
class GpuOneQueue : public GpuStreamOrder {};
INSTANTIATE_TEST_SUITE_P(, GpuOneQueue, ::testing::Values(kCudaIpc, kTcpStaged), WayName);

TEST_P(GpuOneQueue, NoStreamWaitsForATransfer) {
  const OwnStream stream;
  std::atomic<uint32_t> ready{0};
  TransferOptions options = Patient();
  options.ready = &ready;
  const auto transfer = ReadTo(here_->at(), options);
  ASSERT_OK(transfer);
  EXPECT_TRUE(Fails(transfer->StreamWait(Name(stream)), absl::StatusCode::kFailedPrecondition,
                    {"CUDA_DEVICE_MAX_CONNECTIONS=1"}));
  ready = 1;
  EXPECT_OK(transfer->Wait(kAmple));
}

// Written there, read back to another place, looked at, and the next: all is put into one stream
// before any of it begins.
TEST_P(GpuStreamOrder, KernelsAndTransfersTakeTurns) {
  constexpr uint64_t kTurns = 8;
  peer_->Fill(0);
  const CUdeviceptr back = here_->at() + layout_.bytes();
  // It comes back to where it was.
  const std::vector<uint32_t> own = layout_.Places(false);
  const std::vector<uint32_t> sources = SourcesOf(layout_, own, own);
  std::vector<std::unique_ptr<Check>> checks;
  for (uint64_t i = 0; i < kTurns; ++i) {
    checks.push_back(std::make_unique<Check>(layout_, back, sources, 10 + i));
  }
  const OwnStream stream;
  std::vector<Transfer> transfers;
  const auto in_turn = [&](absl::StatusOr<Transfer> transfer) {
    ASSERT_OK(transfer);
    ASSERT_OK(transfer->StreamWait(Name(stream)));
    transfers.push_back(*std::move(transfer));
  };
  Gate gate(stream.get());
  for (uint64_t i = 0; i < kTurns; ++i) {
    FillIn(stream.get(), here_->at(), layout_.bytes(), 10 + i);
    FillIn(stream.get(), back, layout_.bytes(), 0);
    ASSERT_NO_FATAL_FAILURE(in_turn(Write(After(stream))));
    ASSERT_NO_FATAL_FAILURE(in_turn(ReadTo(back, After(stream))));
    checks[i]->Launch(stream.get());
  }
  gate.Open();
  for (const auto& check : checks) EXPECT_TRUE(IsGood(check->Result(stream.get()), layout_));
  for (const Transfer& transfer : transfers) EXPECT_EQ(transfer.Poll(), TransferState::kDone);
}

}  // namespace
}  // namespace kvxfer::testing
