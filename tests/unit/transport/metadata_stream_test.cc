// Metadata over a stream of its own: the bytes on the wire, and who is given how much of a turn.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/transport/handouts.h"
#include "src/transport/hello.h"
#include "src/transport/sockets/reactor.h"
#include "tests/support/open_files.h"
#include "tests/unit/core/protocol/golden/metadata_stream_v3.h"

namespace kvxfer::net {
namespace {

std::string Hex(std::span<const std::byte> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : bytes) {
    text.push_back(kDigits[std::to_integer<uint8_t>(byte) >> 4]);
    text.push_back(kDigits[std::to_integer<uint8_t>(byte) & 15]);
  }
  return text;
}

std::string Golden(std::string text) {
  text.erase(std::remove(text.begin(), text.end(), ' '), text.end());
  return text;
}

TEST(NetMetadataStream, TheQuestionIsAsItWas) {
  const Preamble preamble{.rails = 1, .service = Service::kMetadata};
  std::array<std::byte, kPreambleBytes> bytes;
  Encode(preamble, bytes);
  EXPECT_EQ(Hex(bytes), Golden(golden::kAskForMetadata));
  const auto decoded = DecodePreamble(bytes);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->service, Service::kMetadata);
}

TEST(NetMetadataStream, TheAnswersAreAsTheyWere) {
  const std::pair<Welcome, const char*> cases[] = {
      {{.bytes = 0x010203}, golden::kMetadataFollows},
      {{.code = WelcomeCode::kNotServed}, golden::kMetadataNotServed},
      {{.code = WelcomeCode::kBusy}, golden::kMetadataBusy},
      {{.code = WelcomeCode::kClosing}, golden::kMetadataClosing},
  };
  for (const auto& [welcome, golden] : cases) {
    std::array<std::byte, kWelcomeBytes> bytes;
    Encode(welcome, bytes);
    EXPECT_EQ(Hex(bytes), Golden(golden));
    const auto decoded = DecodeWelcome(bytes);
    ASSERT_TRUE(decoded.ok());
    EXPECT_EQ(decoded->code, welcome.code);
    EXPECT_EQ(decoded->bytes, welcome.bytes);
  }
}

class NetHandouts : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = Reactor::Create();
    ASSERT_TRUE(made.ok());
    reactor_ = *std::move(made);
  }

  // The other end of one that is handed `bytes`.
  Fd Give(std::shared_ptr<const std::string> bytes) {
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
    EXPECT_TRUE(reactor_->Add(ends[0], &nobody_).ok());
    handouts_.Add(reactor_.get(), Fd(ends[0]), std::move(bytes));
    return Fd(ends[1]);
  }

  // What has come; closed: with the end.
  static std::string Read(const Fd& fd, bool* closed = nullptr) {
    std::string all;
    std::array<char, 65536> some;
    for (;;) {
      const ssize_t n = ::recv(fd.get(), some.data(), some.size(), MSG_DONTWAIT);
      if (n <= 0) {
        if (closed != nullptr) *closed = n == 0;
        return all;
      }
      all.append(some.data(), static_cast<size_t>(n));
    }
  }

  static std::shared_ptr<const std::string> Bytes(size_t count) {
    return std::make_shared<const std::string>(count, 'm');
  }

  class Nobody final : public Watcher {
    void OnReady(uint32_t) override {}
  };
  Nobody nobody_;
  std::unique_ptr<Reactor> reactor_;
  Handouts handouts_;
};

TEST_F(NetHandouts, AWelcomeTheBytesAndTheEnd) {
  const Fd fd = Give(Bytes(1000));
  EXPECT_TRUE(handouts_.HasWork());
  handouts_.Work();
  bool closed = false;
  const std::string got = Read(fd, &closed);
  ASSERT_EQ(got.size(), kWelcomeBytes + 1000);
  const auto welcome = DecodeWelcome(std::as_bytes(std::span(got)).first<kWelcomeBytes>());
  ASSERT_TRUE(welcome.ok());
  EXPECT_EQ(welcome->bytes, 1000u);
  EXPECT_EQ(got.substr(kWelcomeBytes), std::string(1000, 'm'));
  EXPECT_TRUE(closed);
  EXPECT_EQ(handouts_.size(), 0u);
  EXPECT_FALSE(handouts_.HasWork());
  EXPECT_FALSE(handouts_.deadline().has_value());
}

TEST_F(NetHandouts, WhoDoesNotReadHoldsUpNobodyAndKeepsNobodyAwake) {
  const auto large = Bytes(16 << 20);
  const Fd slow = Give(large);
  for (int i = 0; i < 1000 && handouts_.HasWork(); ++i) handouts_.Work();
  EXPECT_FALSE(handouts_.HasWork()) << "it spins on a socket that is full";
  const Fd quick = Give(Bytes(1000));
  handouts_.Work();
  EXPECT_EQ(Read(quick).size(), kWelcomeBytes + 1000);
  EXPECT_EQ(handouts_.size(), 1u);
  // And it is all there when it reads after all.
  size_t got = 0;
  for (int i = 0; i < 100'000 && handouts_.size() > 0; ++i) {
    got += Read(slow).size();
    reactor_->Collect();
    handouts_.Work();
  }
  got += Read(slow).size();
  EXPECT_EQ(got, kWelcomeBytes + large->size());
}

// Who reads metadata has proved nothing.
TEST_F(NetHandouts, HaveAShareOfTheDescriptors) {
  const testing::DescriptorLimit few(240);
  const auto large = Bytes(16 << 20);
  std::vector<Fd> all;
  while (handouts_.MakeSpace(Now()) && all.size() < Handouts::kMax) all.push_back(Give(large));
  EXPECT_EQ(all.size(), 60u);
  EXPECT_TRUE(handouts_.MakeSpace(Now() + Handouts::kFairTime));
  EXPECT_EQ(handouts_.size(), 59u);
}

TEST_F(NetHandouts, ATurnIsBoundedAndGoesRound) {
  const auto bytes = Bytes(160'000);  // no more than fits the socket
  std::vector<Fd> all(12);
  for (Fd& one : all) one = Give(bytes);
  std::vector<size_t> got(all.size());
  for (int turn = 1; turn < 100 && handouts_.size() > 0; ++turn) {
    size_t now = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      const size_t n = Read(all[i]).size();
      got[i] += n;
      now += n;
    }
    EXPECT_LE(now, Handouts::kTurnBytes) << turn;
    const auto [least, most] = std::minmax_element(got.begin(), got.end());
    EXPECT_LE(*most - *least, Handouts::kPieceBytes) << turn;
    reactor_->Collect();
    handouts_.Work();
  }
  EXPECT_EQ(handouts_.size(), 0u);
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(got[i] + Read(all[i]).size(), kWelcomeBytes + bytes->size()) << i;
  }
}

TEST_F(NetHandouts, OneThatHasGoneIsForgotten) {
  Fd fd = Give(Bytes(16 << 20));
  handouts_.Work();
  fd.Reset();
  for (int i = 0; i < 10 && handouts_.size() > 0; ++i) {
    reactor_->Collect();
    handouts_.Work();
  }
  EXPECT_EQ(handouts_.size(), 0u);
}

TEST_F(NetHandouts, EachHasItsTimeAndNoMore) {
  const Fd first = Give(Bytes(16 << 20));
  handouts_.Work();
  ASSERT_TRUE(handouts_.deadline().has_value());
  EXPECT_LE(*handouts_.deadline(), Now() + Handouts::kTimeout);
  handouts_.OnDeadline(*handouts_.deadline() - Duration(1));
  EXPECT_EQ(handouts_.size(), 1u);
  handouts_.OnDeadline(*handouts_.deadline());
  EXPECT_EQ(handouts_.size(), 0u);
  bool closed = false;
  (void)Read(first, &closed);
  EXPECT_TRUE(closed);
}

TEST_F(NetHandouts, TheirNumberIsBoundedAndTheSlowMakeRoom) {
  const auto bytes = Bytes(16 << 20);
  std::vector<Fd> all;
  while (handouts_.size() < Handouts::kMax) {
    ASSERT_TRUE(handouts_.MakeSpace(Now()));
    all.push_back(Give(bytes));
  }
  EXPECT_FALSE(handouts_.MakeSpace(Now()));
  EXPECT_EQ(handouts_.size(), Handouts::kMax);
  EXPECT_TRUE(handouts_.MakeSpace(Now() + Handouts::kFairTime));
  EXPECT_EQ(handouts_.size(), Handouts::kMax - 1);
  bool closed = false;
  (void)Read(all.front(), &closed);
  EXPECT_TRUE(closed) << "the oldest goes first";
}

}  // namespace
}  // namespace kvxfer::net
