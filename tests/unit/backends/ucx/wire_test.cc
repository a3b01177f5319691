// Frames of the ucx backend: what is read back is what was written, nothing else is taken, and
// frames that overtook each other come out in order, once.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "src/backends/ucx/frames.h"
#include "src/backends/ucx/outgoing.h"
#include "src/backends/ucx/print.h"
#include "src/backends/ucx/resequencer.h"
#include "tests/support/status_macros.h"

namespace kvxfer::ucx {
namespace {

std::span<const std::byte> BytesOf(std::string_view text) { return std::as_bytes(std::span(text)); }

// A frame of `body` zeros behind `head`.
std::vector<std::byte> FrameOf(FrameHead head, size_t body) {
  head.bytes = static_cast<uint32_t>(body);
  std::vector<std::byte> frame(kFrameHeadBytes + body);
  Encode(head, std::span(frame).first<kFrameHeadBytes>());
  return frame;
}

Hello SomeHello() {
  Hello hello{.reports_failure = false, .cookie = 11, .path = 12, .target = Incarnation::Random()};
  hello.dialler = Incarnation::Random();
  hello.host.boot_id = "0d6a0d9e-8a0b-4d0e-9a0e-000000000001";
  hello.host.pid_namespace = 4026531836;
  hello.host.pid = 4711;
  hello.host.start_time = 99;
  hello.worker = std::string("worker\0address", 14);
  return hello;
}

TEST(UcxWire, AHeadSurvivesTheTrip) {
  const FrameHead head{.kind = FrameKind::kWrite,
                       .flags = kLast | kImmediate,
                       .cookie = UINT64_MAX - 1,
                       .order = 1ull << 40,
                       .transfer = 77,
                       .number = 0xfffffffe,
                       .immediate = 0x01020304};
  const std::vector<std::byte> frame = FrameOf(head, 100);
  ASSERT_OK_AND_ASSIGN(const FrameHead back, DecodeFrameHead(frame));
  EXPECT_EQ(back.kind, head.kind);
  EXPECT_EQ(back.flags, head.flags);
  EXPECT_EQ(back.bytes, 100u);
  EXPECT_EQ(back.cookie, head.cookie);
  EXPECT_EQ(back.order, head.order);
  EXPECT_EQ(back.transfer, head.transfer);
  EXPECT_EQ(back.number, head.number);
  EXPECT_EQ(back.immediate, head.immediate);
  // Big-endian, as immediates are.
  EXPECT_EQ(frame[36], std::byte{1});
}

TEST(UcxWire, DamagedHeadsAreRefused) {
  const std::vector<std::byte> good = FrameOf({.kind = FrameKind::kMessage}, 8);
  EXPECT_OK(DecodeFrameHead(good));
  // Cut short at each byte, or longer than it says.
  for (size_t bytes = 0; bytes < good.size(); ++bytes) {
    EXPECT_FALSE(DecodeFrameHead(std::span(good).first(bytes)).ok()) << bytes;
  }
  std::vector<std::byte> bad = good;
  bad.push_back({});
  EXPECT_FALSE(DecodeFrameHead(bad).ok());
  for (const auto& [at, value] : {std::pair{0, 0}, {1, 0}, {1, 11}, {1, 255}}) {
    bad = good;
    bad[static_cast<size_t>(at)] = static_cast<std::byte>(value);
    EXPECT_FALSE(DecodeFrameHead(bad).ok()) << at << " " << value;
  }
  EXPECT_OK(DecodeFrameHead(FrameOf({}, kMaxBodyBytes)));
  EXPECT_FALSE(DecodeFrameHead(FrameOf({}, kMaxBodyBytes + 1)).ok());
}

TEST(UcxWire, HelloAddressWelcomeAndPieceSurviveTheTrip) {
  const Hello hello = SomeHello();
  const std::string text = Encode(hello);
  ASSERT_OK_AND_ASSIGN(const Hello back, DecodeHello(BytesOf(text)));
  EXPECT_FALSE(back.reports_failure);
  EXPECT_EQ(back.cookie, hello.cookie);
  EXPECT_EQ(back.path, hello.path);
  EXPECT_EQ(back.target, hello.target);
  EXPECT_EQ(back.dialler, hello.dialler);
  EXPECT_EQ(back.host.boot_id, hello.host.boot_id);
  EXPECT_EQ(back.host.pid_namespace, hello.host.pid_namespace);
  EXPECT_EQ(back.host.pid, hello.host.pid);
  EXPECT_EQ(back.host.start_time, hello.host.start_time);
  EXPECT_EQ(back.worker, hello.worker);

  const Address address{.incarnation = Incarnation::Random(), .place = kByWorker + hello.worker};
  ASSERT_OK_AND_ASSIGN(const Address address_back, DecodeAddress(Encode(address)));
  EXPECT_EQ(address_back.incarnation, address.incarnation);
  EXPECT_EQ(address_back.place, address.place);

  ASSERT_OK_AND_ASSIGN(const Welcome welcome,
                       DecodeWelcome(BytesOf(Encode(Welcome{.cookie = 123456789, .path = 7}))));
  EXPECT_EQ(welcome.path, 7u);
  EXPECT_EQ(welcome.cookie, 123456789u);
  EXPECT_FALSE(DecodeWelcome(BytesOf(Encode(Welcome{.cookie = 0, .path = 7}))).ok());
  EXPECT_FALSE(DecodeWelcome(BytesOf(Encode(Welcome{.cookie = 7, .path = 0}))).ok());
  EXPECT_FALSE(DecodeWelcome(BytesOf("short")).ok());

  std::array<std::byte, kWireRunBytes> piece{};
  Encode(WireRun{.address = UINT64_MAX, .bytes = 5, .rkey = 6}, piece);
  EXPECT_EQ(DecodeWireRun(piece).address, UINT64_MAX);
  EXPECT_EQ(DecodeWireRun(piece).bytes, 5u);
  EXPECT_EQ(DecodeWireRun(piece).rkey, 6u);
}

TEST(UcxWire, DamagedHellosAndAddressesAreRefused) {
  const std::string good = Encode(SomeHello());
  for (size_t bytes = 0; bytes < good.size(); ++bytes) {
    EXPECT_FALSE(DecodeHello(BytesOf(std::string_view(good).substr(0, bytes))).ok()) << bytes;
  }
  EXPECT_FALSE(DecodeHello(BytesOf(good + "x")).ok());
  // Another version says so and no more.
  std::string other = good.substr(0, 2);
  other[0] = 9;
  ASSERT_OK_AND_ASSIGN(const Hello newer, DecodeHello(BytesOf(other)));
  EXPECT_NE(newer.version, kWireVersion);
  // Expect that random damage never crashes.
  std::mt19937 random(3);
  for (int i = 0; i < 20'000; ++i) {
    std::string bad = good;
    for (int hits = 0; hits < 3; ++hits) bad[random() % bad.size()] = static_cast<char>(random());
    const auto back = DecodeHello(BytesOf(bad));
    if (back.ok() && back->version == kWireVersion) {
      EXPECT_FALSE(back->worker.empty());
    }
  }
  const std::string address = Encode(Address{.incarnation = {}, .place = "s127.0.0.1:1"});
  EXPECT_TRUE(DecodeAddress(address).ok());
  for (size_t bytes = 0; bytes <= address.size() - 12; ++bytes) {
    EXPECT_FALSE(DecodeAddress(std::string_view(address).substr(0, bytes)).ok()) << bytes;
  }
  EXPECT_FALSE(DecodeAddress(Encode(Address{.incarnation = {}, .place = "x127.0.0.1:1"})).ok());
  EXPECT_FALSE(DecodeAddress("127.0.0.1:7471").ok());
  EXPECT_FALSE(DecodeAddress(address + std::string(kMaxFrameBytes, 'x')).ok());
}

std::string Text(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// A frame with two pieces of 5 and 0 bytes.
Outgoing SomeWrite() {
  Outgoing frame;
  frame.Begin();
  frame.Append(WireRun{.address = 1, .bytes = 5, .rkey = 2});
  frame.Lend("bytes", 5);
  frame.Append(WireRun{.address = 3, .bytes = 0, .rkey = 2});
  frame.SetHead({.kind = FrameKind::kWrite, .number = 2});
  return frame;
}

std::vector<std::byte> Packed(Outgoing& frame) {
  std::vector<std::byte> out(frame.bytes());
  EXPECT_EQ(frame.Pack(0, out), out.size());
  return out;
}

TEST(UcxWire, AWriteIsItsPiecesAndThenTheirBytes) {
  Outgoing frame = SomeWrite();
  const std::vector<std::byte> bytes = Packed(frame);
  ASSERT_OK_AND_ASSIGN(const FrameHead head, DecodeFrameHead(bytes));
  const auto body = std::span(bytes).subspan(kFrameHeadBytes);
  ASSERT_OK_AND_ASSIGN(const WriteBody write, DecodeWrite(head.number, body));
  EXPECT_EQ(write.pieces.size(), 2 * kWireRunBytes);
  EXPECT_EQ(Text({write.bytes.begin(), write.bytes.end()}), "bytes");
  EXPECT_EQ(DecodeWireRun(write.pieces.last<kWireRunBytes>()).address, 3u);
  EXPECT_OK(DecodeWrite(0, {}));  // an immediate alone
}

TEST(UcxWire, DamagedWritesAreRefused) {
  Outgoing frame = SomeWrite();
  const std::vector<std::byte> bytes = Packed(frame);
  const auto body = std::span(bytes).subspan(kFrameHeadBytes);
  for (size_t cut = 0; cut < body.size(); ++cut) {
    EXPECT_FALSE(DecodeWrite(2, body.first(cut)).ok()) << cut;
  }
  for (const uint32_t number : {0u, 1u, 3u, 1u << 28, UINT32_MAX}) {
    EXPECT_FALSE(DecodeWrite(number, body).ok()) << number;
  }
  std::vector<std::byte> bad(body.begin(), body.end());
  for (const int claimed : {0, 4, 6, 255}) {
    bad[8] = static_cast<std::byte>(claimed);
    EXPECT_FALSE(DecodeWrite(2, bad).ok()) << claimed;
  }
}

// Of whatever sizes UCX takes it, also where what was lent is made its own in between.
TEST(UcxOutgoing, PacksTheSameBytesInAnyPieces) {
  std::mt19937 random(5);
  for (int round = 0; round < 500; ++round) {
    std::vector<std::vector<std::byte>> memory(random() % 6);
    Outgoing frame;
    frame.Begin();
    std::string expected(kFrameHeadBytes, '\0');
    for (int i = static_cast<int>(random() % 3); i > 0; --i) {
      frame.Append(BytesOf("own"));
      expected += "own";
    }
    for (std::vector<std::byte>& part : memory) {
      part.resize(random() % 300);
      for (std::byte& byte : part) byte = static_cast<std::byte>(random());
      frame.Lend(part.data(), part.size());
      expected += Text(part);
    }
    ASSERT_EQ(frame.bytes(), expected.size());
    EXPECT_EQ(frame.body_bytes(), expected.size() - kFrameHeadBytes);
    std::vector<std::byte> out(expected.size());
    const size_t own_at = random() % (2 * expected.size());
    for (size_t at = 0; at < out.size();) {
      if (at >= own_at) {
        frame.Own();
        memory.clear();
      }
      const size_t space = std::min<size_t>(1 + random() % 200, out.size() - at);
      ASSERT_EQ(frame.Pack(at, std::span(out).subspan(at, space)), space);
      at += space;
    }
    EXPECT_EQ(Text(out).substr(kFrameHeadBytes), expected.substr(kFrameHeadBytes));
    EXPECT_EQ(frame.Pack(out.size(), out), 0u);
  }
}

TEST(UcxResequencer, PutsEveryOrderInOrderOnce) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<uint64_t> sent(1 + random() % Resequencer::kWide.frames);
    std::iota(sent.begin(), sent.end(), 1);
    std::ranges::shuffle(sent, random);
    Resequencer in(Resequencer::kWide);
    uint64_t due = 1;
    for (const uint64_t order : sent) {
      const std::string body = std::to_string(order);
      const FrameHead head{.order = order, .transfer = 2 * order};
      const Resequencer::Place place = in.Put(head, BytesOf(body));
      ASSERT_EQ(place, order == due ? Resequencer::Place::kNext : Resequencer::Place::kKept);
      if (place == Resequencer::Place::kNext) ++due;
      for (auto early = in.Take(); early.has_value(); early = in.Take()) {
        ASSERT_EQ(early->head.order, due);
        ASSERT_EQ(early->head.transfer, 2 * due);
        ASSERT_EQ(early->body, std::to_string(due));
        ++due;
      }
    }
    EXPECT_EQ(due, sent.size() + 1);
    EXPECT_EQ(in.early(), 0u);
  }
}

TEST(UcxResequencer, RefusesWhatCameBeforeAndTooMuchThatIsEarly) {
  Resequencer in(Resequencer::kWide);
  EXPECT_EQ(in.Put({.order = 0}, {}), Resequencer::Place::kRefused);
  EXPECT_EQ(in.Put({.order = 1}, {}), Resequencer::Place::kNext);
  EXPECT_EQ(in.Put({.order = 1}, {}), Resequencer::Place::kRefused);
  for (uint64_t i = 0; i < Resequencer::kWide.frames; ++i) {
    ASSERT_EQ(in.Put({.order = 3 + i}, {}), Resequencer::Place::kKept) << i;
    ASSERT_EQ(in.early(), i + 1);
  }
  EXPECT_EQ(in.Put({.order = UINT64_MAX}, {}), Resequencer::Place::kRefused);
  EXPECT_EQ(in.Put({.order = 3}, {}), Resequencer::Place::kRefused);
  EXPECT_FALSE(in.Take().has_value());
  EXPECT_EQ(in.Put({.order = 2}, {}), Resequencer::Place::kNext);
  EXPECT_TRUE(in.Take().has_value());
}

TEST(UcxResequencer, KeepsAsManyBytesAsMayBeEarlyAndNoMore) {
  const std::vector<std::byte> body(kMaxBodyBytes);
  const uint64_t fit = Resequencer::kWide.bytes / body.size();
  Resequencer in(Resequencer::kWide);
  for (int round = 0; round < 2; ++round) {
    const uint64_t first = 1 + static_cast<uint64_t>(round) * (fit + 1);
    for (uint64_t i = 1; i <= fit; ++i) {
      ASSERT_EQ(in.Put({.order = first + i}, body), Resequencer::Place::kKept) << i;
    }
    EXPECT_EQ(in.Put({.order = first + fit + 1}, body), Resequencer::Place::kRefused);
    // What was taken out makes room.
    ASSERT_EQ(in.Put({.order = first}, body), Resequencer::Place::kNext);
    for (uint64_t i = 1; i <= fit; ++i) ASSERT_TRUE(in.Take().has_value());
  }
}

TEST(UcxResequencer, KeepsLittleUntilItIsWidened) {
  Resequencer frames(Resequencer::kNarrow);
  for (uint64_t i = 0; i < Resequencer::kNarrow.frames; ++i) {
    ASSERT_EQ(frames.Put({.order = 2 + i}, {}), Resequencer::Place::kKept) << i;
  }
  EXPECT_EQ(frames.Put({.order = 100}, {}), Resequencer::Place::kRefused);
  frames.Widen();
  EXPECT_EQ(frames.Put({.order = 100}, {}), Resequencer::Place::kKept);

  const std::vector<std::byte> body(kMaxFirstMessageBytes);
  Resequencer bytes(Resequencer::kNarrow);
  EXPECT_EQ(bytes.Put({.order = 2}, body), Resequencer::Place::kKept);
  EXPECT_EQ(bytes.Put({.order = 3}, std::span(body).first(1)), Resequencer::Place::kRefused);
  bytes.Widen();
  EXPECT_EQ(bytes.Put({.order = 3}, body), Resequencer::Place::kKept);
}

TEST(UcxPrint, FindsTransportsAndValues) {
  EXPECT_EQ(Transports("#   resource 1  :  md 1  dev 1  flags -- tcp/lo\n"
                       "#   resource 3  :  md 2  dev 3  flags -- posix/memory\n"),
            (std::set<std::string>{"posix", "tcp"}));
  EXPECT_EQ(Transports("lane[0]:  0:rc_mlx5/mlx5_0:1.0 md[0] -> md[0]/posix/sysdev[255] am\n"),
            std::set<std::string>{"rc_mlx5"});
  EXPECT_TRUE(Transports("").empty());
  EXPECT_TRUE(Transports("/ //").empty());
  const std::string_view text = "UCX_NET_DEVICES=all\nUCX_TLS=cma,self\nUCX_TLS_X=1";
  EXPECT_EQ(ValueOf(text, "UCX_TLS"), "cma,self");
  EXPECT_EQ(ValueOf(text, "UCX_TLS_X"), "1");
  EXPECT_EQ(ValueOf(text, "TLS"), "");
  EXPECT_EQ(Printed([](FILE* out) { std::fputs("said", out); }), "said");
}

}  // namespace
}  // namespace kvxfer::ucx
