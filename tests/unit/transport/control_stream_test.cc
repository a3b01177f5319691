// What waits for a control stream's socket is bounded, whatever kind it is of.
#include "src/transport/control_stream.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <memory>
#include <string>

#include "src/transport/sockets/reactor.h"
#include "tests/support/status_macros.h"

namespace kvxfer::net {
namespace {

constexpr size_t kPayloadBytes = 1000;

class NetControlStream : public ::testing::Test, public StreamClient {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(reactor_, Reactor::Create());
    std::array<int, 2> ends{};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
    peer_ = Fd(ends[1]);
    ASSERT_OK(stream_.Attach(Fd(ends[0])));
  }
  Reactor& reactor() override { return *reactor_; }
  void Activate() override {}

  absl::StatusOr<bool> Push(ControlKind kind) {
    return stream_.Push(kind, std::as_bytes(std::span(payload_)));
  }
  void FillWithMessages() {
    for (;;) {
      ASSERT_OK_AND_ASSIGN(const bool taken, Push(ControlKind::kMessage));
      if (!taken) return;
    }
  }
  void PeerReadsAll() {
    std::string some(1 << 20, 0);
    while (::recv(peer_.get(), some.data(), some.size(), MSG_DONTWAIT) > 0) {
    }
    reactor_->Collect();
  }

  std::unique_ptr<Reactor> reactor_;
  Fd peer_;
  ReceiveSpace space_;
  ControlStream stream_{this, &space_};
  const std::string payload_ = std::string(kPayloadBytes, 'x');
};

TEST_F(NetControlStream, APeerThatAsksAndDoesNotReadIsAnErrorInTheEnd) {
  ASSERT_NO_FATAL_FAILURE(FillWithMessages());
  const size_t full = stream_.queued_bytes();
  EXPECT_GT(full + kPayloadBytes, ControlStream::kMaxQueued);
  EXPECT_LE(full, ControlStream::kMaxQueued + kPayloadBytes);
  // Answers are taken beside as many messages as there may be.
  absl::Status status;
  while (status.ok() && stream_.queued_bytes() < 2 * ControlStream::kMaxUnsent) {
    EXPECT_LE(stream_.queued_bytes(), ControlStream::kMaxUnsent);
    status = Push(ControlKind::kFrame).status();
  }
  EXPECT_GT(stream_.queued_bytes(), ControlStream::kMaxUnsent);
  EXPECT_TRUE(
      kvxfer::testing::Fails(status, absl::StatusCode::kResourceExhausted, {"does not read"}));
  EXPECT_TRUE(kvxfer::testing::Fails(stream_.Flush(), absl::StatusCode::kResourceExhausted,
                                     {"does not read"}));
}

TEST_F(NetControlStream, WhatIsReadAfterAllMakesRoomAgain) {
  ASSERT_NO_FATAL_FAILURE(FillWithMessages());
  while (stream_.queued_bytes() <= ControlStream::kMaxUnsent) {
    stream_.Append(ControlKind::kFrame, kPayloadBytes);
  }
  EXPECT_FALSE(stream_.Flush().ok());
  PeerReadsAll();
  EXPECT_OK(stream_.Flush());
  for (int i = 0; i < 1000 && stream_.sending(); ++i) {
    PeerReadsAll();
    ASSERT_OK(stream_.Flush());
  }
  EXPECT_FALSE(stream_.sending());
}

}  // namespace
}  // namespace kvxfer::net
