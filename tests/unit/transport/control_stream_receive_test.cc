// Control streams that receive into one space: what one has received is neither lost nor changed by
// what the others receive, for as long as it is needed.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/transport/control_stream.h"
#include "src/transport/sockets/reactor.h"
#include "tests/support/status_macros.h"

namespace kvxfer::net {
namespace {

// A frame as it is sent.
std::string WithHead(const std::string& payload) {
  std::string bytes(kControlHeadBytes, 0);
  Encode(ControlHead{.bytes = static_cast<uint32_t>(payload.size()), .kind = ControlKind::kMessage},
         std::as_writable_bytes(std::span(bytes)).first<kControlHeadBytes>());
  return bytes + payload;
}

std::string_view TextIn(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class ControlStreamReceive : public ::testing::Test, public StreamClient {
 protected:
  struct Receiver {
    Fd peer;
    std::unique_ptr<ControlStream> stream;

    void Sends(std::string_view bytes) const {
      constexpr int kSome = 1 << 19;
      ASSERT_EQ(::setsockopt(peer.get(), SOL_SOCKET, SO_SNDBUF, &kSome, sizeof kSome), 0);
      ASSERT_EQ(::send(peer.get(), bytes.data(), bytes.size(), MSG_DONTWAIT),
                static_cast<ssize_t>(bytes.size()));
    }
  };

  void SetUp() override { ASSERT_OK_AND_ASSIGN(reactor_, Reactor::Create()); }
  Reactor& reactor() override { return *reactor_; }
  void Activate() override {}

  Receiver NewReceiver() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
    Receiver made{.peer = Fd(ends[1]),
                  .stream = std::make_unique<ControlStream>(this, space_.get())};
    EXPECT_OK(made.stream->Attach(Fd(ends[0])));
    return made;
  }

  // Takes the next frame, which has been received already.
  static std::span<const std::byte> Take(ControlStream& stream) {
    auto frame = stream.Front();
    EXPECT_OK(frame.status());
    if (!frame.ok() || !frame->has_value()) {
      ADD_FAILURE() << "no frame";
      return {};
    }
    stream.Pop(**frame);
    return (*frame)->payload;
  }
  static void Fill(ControlStream& stream) {
    const absl::StatusOr<bool> filled = stream.Fill();
    EXPECT_TRUE(filled.ok() && *filled) << filled.status();
  }

  std::unique_ptr<Reactor> reactor_;
  std::unique_ptr<ReceiveSpace> space_ = std::make_unique<ReceiveSpace>();
};

TEST_F(ControlStreamReceive, MessagesStayWhileOthersAreReceivedInTheTurn) {
  constexpr int kStreams = 100;
  constexpr size_t kBytes = 20'000;
  std::vector<Receiver> all;
  std::vector<std::span<const std::byte>> got;
  for (int i = 0; i < kStreams; ++i) {
    all.push_back(NewReceiver());
    all.back().Sends(WithHead(std::string(kBytes, static_cast<char>('0' + i % 64))));
  }
  for (Receiver& one : all) {
    Fill(*one.stream);
    got.push_back(Take(*one.stream));
  }
  for (int i = 0; i < kStreams; ++i) {
    const auto at = static_cast<size_t>(i);
    EXPECT_EQ(TextIn(got[at]), std::string(kBytes, static_cast<char>('0' + i % 64))) << i;
  }
}

TEST_F(ControlStreamReceive, HalfAFrameIsKeptOverTurns) {
  const Receiver slow = NewReceiver();
  const Receiver other = NewReceiver();
  const std::string frame = WithHead("what comes in many pieces");
  for (size_t i = 0; i < frame.size(); ++i) {
    EXPECT_FALSE(slow.stream->HasFrame());
    slow.Sends(frame.substr(i, 1));
    Fill(*slow.stream);
    space_->BeginTurn();
    other.Sends(WithHead(std::string(100, 'x')));
    Fill(*other.stream);
    EXPECT_EQ(TextIn(Take(*other.stream)), std::string(100, 'x'));
  }
  const std::span<const std::byte> payload = Take(*slow.stream);
  other.Sends(WithHead(std::string(100, 'y')));
  Fill(*other.stream);
  EXPECT_EQ(TextIn(payload), "what comes in many pieces");
}

TEST_F(ControlStreamReceive, FramesThatMustWaitAreKeptOverTurns) {
  const Receiver one = NewReceiver();
  const Receiver other = NewReceiver();
  one.Sends(WithHead("first") + WithHead("second") + WithHead("third").substr(0, 10));
  Fill(*one.stream);
  EXPECT_EQ(TextIn(Take(*one.stream)), "first");
  for (int turn = 0; turn < 3; ++turn) {
    space_->BeginTurn();
    other.Sends(WithHead(std::string(1000, 'x')));
    Fill(*other.stream);
    Take(*other.stream);
  }
  EXPECT_EQ(TextIn(Take(*one.stream)), "second");
  EXPECT_FALSE(one.stream->HasFrame());
  one.Sends(WithHead("third").substr(10) + WithHead("fourth"));
  Fill(*one.stream);
  EXPECT_EQ(TextIn(Take(*one.stream)), "third");
  EXPECT_EQ(TextIn(Take(*one.stream)), "fourth");
  EXPECT_TRUE(one.stream->buffered().empty());
}

TEST_F(ControlStreamReceive, AFrameBeyondOneReadIsWhole) {
  const Receiver one = NewReceiver();
  std::string payload(5 * ReceiveSpace::kReadBytes + 3, 0);
  for (size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<char>(i * 7 + i / 251);
  one.Sends(WithHead("before") + WithHead(payload));
  Fill(*one.stream);
  EXPECT_EQ(TextIn(Take(*one.stream)), "before");
  for (int i = 0; i < 100 && !one.stream->HasFrame(); ++i) {
    space_->BeginTurn();
    Fill(*one.stream);
  }
  EXPECT_EQ(TextIn(Take(*one.stream)), payload);
}

TEST_F(ControlStreamReceive, ARestartForgetsWhatWasReceived) {
  const Receiver one = NewReceiver();
  one.Sends(WithHead("half").substr(0, 3));
  Fill(*one.stream);
  one.stream->Restart();
  space_->BeginTurn();
  EXPECT_TRUE(one.stream->buffered().empty());
}

TEST_F(ControlStreamReceive, EitherMayBeDestroyedFirst) {
  {
    const Receiver gone = NewReceiver();
    gone.Sends("x");
    Fill(*gone.stream);
  }
  space_->BeginTurn();
  const Receiver longer = NewReceiver();
  longer.Sends("x");
  Fill(*longer.stream);
  space_.reset();
}

}  // namespace
}  // namespace kvxfer::net
