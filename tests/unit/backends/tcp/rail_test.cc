// One data stream against a peer that is a bare socket.
#include "src/backends/tcp/rail.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/run_blocks.h"
#include "tests/support/status_macros.h"

namespace kvxfer::tcp {
namespace {

using testing::Fails;

class RailOwner : public RailHost, public net::StreamClient {
 public:
  bool CanTakeEvents() const override { return true; }
  bool MayRead() override { return true; }
  std::span<std::byte> scratch() override { return scratch_; }
  StagePool& stages() override { return stages_; }
  absl::StatusOr<const net::Region*> Check(const net::WireRun& run, Access wanted) override {
    return regions_.Check(run, wanted);
  }
  void OnMarker(uint64_t /*transfer*/, uint32_t /*rail*/) override {}
  void OnImmediate(uint32_t /*rail*/, uint32_t /*immediate*/) override {}
  void OnCompletion(uint64_t op, uint32_t /*rail*/, absl::Status status) override {
    completions.emplace_back(op, std::move(status));
  }
  void OnSent(uint32_t /*rail*/) override {}
  net::Reactor& reactor() override { return *reactor_; }
  void Activate() override {}

  std::vector<std::pair<uint64_t, absl::Status>> completions;

 private:
  std::vector<std::byte> scratch_ = std::vector<std::byte>(4096);
  StagePool stages_;
  net::RegionMap regions_;
  std::unique_ptr<net::Reactor> reactor_ = *net::Reactor::Create();
};

// The connecting side of a rail that is up, with one read of 8 bytes.
class ReadingRail : public ::testing::Test {
 protected:
  void SetUp() override {
    std::array<int, 2> ends{};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()), 0);
    peer_ = net::Fd(ends[1]);
    ASSERT_OK(owner_.reactor().Add(ends[0], &rail_));
    rail_.Take(net::Fd(ends[0]), /*life=*/1);
  }

  void PushRead() {
    rail_.Push({.kind = OpKind::kRead, .id = 5, .transfer = 9, .blocks = blocks_.range()});
  }

  // As if the peer had read nothing for long. Returns how many bytes that takes.
  size_t FillTheSocket() {
    const std::string junk(64 * 1024, 'x');
    size_t bytes = 0;
    while (true) {
      const ssize_t n = ::send(rail_.fd(), junk.data(), junk.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n <= 0) return bytes;
      bytes += static_cast<size_t>(n);
    }
  }

  void Answer() {
    std::array<std::byte, kFrameHeadBytes + 8 + kTrailerBytes> frame{};
    Encode(FrameHead{.kind = FrameKind::kReadResponse, .bytes = 8, .transfer = 9, .number = 1},
           std::span(frame).first<kFrameHeadBytes>());
    std::memset(frame.data() + kFrameHeadBytes, 0x5a, 8);
    Encode(Trailer{.valid = true}, std::span(frame).last<kTrailerBytes>());
    ASSERT_EQ(::send(peer_.get(), frame.data(), frame.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(frame.size()));
  }

  RailOwner owner_;
  TcpRail rail_{&owner_, &owner_, /*connecting=*/true, /*index=*/0};
  net::Fd peer_;
  std::array<std::byte, 8> memory_{};
  net::RkeyOnly key_{7};
  testing::RunBlocks blocks_{
      std::vector<kvxfer::Run>{{.local = reinterpret_cast<uint64_t>(memory_.data()),
                                .remote = 4096,
                                .bytes = 8,
                                .key = &key_}}};
};

TEST_F(ReadingRail, TakesTheAnswerToWhatItAsked) {
  PushRead();
  ASSERT_OK(rail_.Send(4096));
  ASSERT_NO_FATAL_FAILURE(Answer());
  rail_.OnReady(EPOLLIN);
  ASSERT_OK(rail_.Receive(4096));
  ASSERT_EQ(owner_.completions.size(), 1u);
  EXPECT_EQ(owner_.completions[0].first, 5u);
  EXPECT_OK(owner_.completions[0].second);
  EXPECT_EQ(memory_[7], std::byte{0x5a});
}

// With the answer the application gets its blocks back, and the request is still to be sent from
// them: a peer that guesses the number would make the rail read what is freed.
TEST_F(ReadingRail, RefusesAnAnswerToWhatItHasNotAskedYet) {
  ASSERT_GT(FillTheSocket(), 0u);
  PushRead();
  ASSERT_OK(rail_.Send(4096));
  ASSERT_NO_FATAL_FAILURE(Answer());
  rail_.OnReady(EPOLLIN);
  EXPECT_TRUE(Fails(rail_.Receive(4096), absl::StatusCode::kInvalidArgument,
                    {"answered a read before it was asked"}));
  EXPECT_TRUE(owner_.completions.empty());
  EXPECT_EQ(memory_[0], std::byte{0});
  rail_.Close(absl::CancelledError("the end of the test"));
  EXPECT_EQ(owner_.completions.size(), 1u);
}

}  // namespace
}  // namespace kvxfer::tcp
