// Where a listener says it can be reached, and who believes it; and the codec of the streams.
#include "src/transport/sockets/address.h"

#include <gtest/gtest.h>

#include "src/backends/tcp/frames.h"
#include "tests/unit/backends/tcp/test_util.h"

namespace kvxfer::tcp_test {
namespace {

TEST(TcpAddress, TextsThatNameAnAddress) {
  const std::pair<const char*, const char*> cases[] = {{"127.0.0.1:80", "127.0.0.1:80"},
                                                       {"127.0.0.1", "127.0.0.1:7471"},
                                                       {"[::1]:80", "[::1]:80"},
                                                       {"[::1]", "[::1]:7471"},
                                                       {"::1", "[::1]:7471"},
                                                       {"0.0.0.0:0", "0.0.0.0:0"},
                                                       {"10.1.2.3:65535", "10.1.2.3:65535"}};
  for (const auto& [text, expected] : cases) {
    auto got = net::Resolve(text, kDefaultPort, net::Names::kNumericOnly);
    ASSERT_TRUE(got.ok()) << text << got.status();
    EXPECT_EQ(got->front().ToString(), expected);
  }
}

TEST(TcpAddress, TextsThatDoNot) {
  for (const char* text : {"", ":80", "1.2.3.4:", "1.2.3.4:65536", "1.2.3.4:x", "[::1", "[::1]x",
                           "1.2.3.4:-1", "1.2.3.4:80 ", "300.1.1.1:5"}) {
    auto got = net::Resolve(text, kDefaultPort, net::Names::kNumericOnly);
    EXPECT_EQ(got.status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(TcpAddress, LoopbackOfAnotherHostIsRefusedWithTheRemedy) {
  Node node;
  HostIdentity there{.hostname = "there", .boot_id = "boot-2", .net_namespace = 1};
  const absl::Status status = node.backend->Reachable(node.backend->Describe().address, there);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  for (const char* word : {"there", "here", "KVXFER_ADVERTISE", "127.0.0.1"}) {
    EXPECT_NE(status.ToString().find(word), std::string::npos) << word << status;
  }
  EXPECT_FALSE(node.backend->Connect(node.backend->Describe().address, there).ok());
  // Of this host, but of another network namespace.
  HostIdentity container = ThisHost();
  container.net_namespace = 2;
  EXPECT_FALSE(node.backend->Reachable(node.backend->Describe().address, container).ok());
  EXPECT_TRUE(node.backend->Reachable(node.backend->Describe().address, ThisHost()).ok());
}

TEST(TcpAddress, AdvertiseReplacesTheListeningAddress) {
  AgentOptions options;
  options.advertise = "10.9.8.7";
  Node node(options);
  HostIdentity there{.hostname = "there", .boot_id = "boot-2"};
  EXPECT_TRUE(node.backend->Reachable(node.backend->Describe().address, there).ok());
  EXPECT_NE(node.backend->Describe().address.find(";10.9.8.7:"), std::string::npos);
  EXPECT_EQ(node.backend->Describe().address.find("10.9.8.7:0"), std::string::npos);
  options.advertise = "10.9.8.7:1234";
  EXPECT_NE(Node(options).backend->Describe().address.find(";10.9.8.7:1234"), std::string::npos);
}

TEST(TcpAddress, AWildcardIsNotAdvertised) {
  AgentOptions options;
  options.listen = "0.0.0.0:0";
  Node node(options);
  EXPECT_EQ(node.backend->Describe().address.find(";0.0.0.0"), std::string::npos);
  EXPECT_TRUE(node.backend->Reachable(node.backend->Describe().address, ThisHost()).ok());
  options.advertise = "0.0.0.0";
  auto made = MakeTcpBackend({options, Incarnation::Random(), ThisHost()});
  EXPECT_EQ(made.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(TcpAddress, DamagedAddressesAreRefused) {
  Node node;
  const std::string good = node.backend->Describe().address;
  std::vector<std::string> bad{"",
                               "1",
                               "2" + good.substr(1),
                               good + ";",
                               good.substr(0, 20),
                               good + ";0.0.0.0:5",
                               good + ";1.2.3.4:0",
                               good + ";localhost:5",
                               std::string(4096, ';')};
  for (int i = 0; i < 10; ++i) bad.back() += ";1.2.3.4:5";
  for (const std::string& text : bad) {
    EXPECT_EQ(node.backend->Reachable(text, ThisHost()).code(), absl::StatusCode::kInvalidArgument)
        << text;
  }
  EXPECT_TRUE(net::DecodeAddress(good).ok());
}

TEST(TcpAddress, OptionsThatCannotBeUsedAreNamed) {
  AgentOptions options;
  options.backend["tcp"]["streams"] = "17";
  auto made = MakeTcpBackend({options, Incarnation::Random(), ThisHost()});
  EXPECT_NE(made.status().ToString().find("KVXFER_TCP_STREAMS"), std::string::npos);
  options.backend["tcp"]["streams"] = "1";
  options.listen = "127.0.0.1:notaport";
  made = MakeTcpBackend({options, Incarnation::Random(), ThisHost()});
  EXPECT_NE(made.status().ToString().find("KVXFER_LISTEN"), std::string::npos);
}

TEST(TcpFrames, TheImmediateIsBigEndian) {
  std::array<std::byte, tcp::kTrailerBytes> bytes;
  tcp::Encode(tcp::Trailer{.valid = true, .has_immediate = true, .immediate = 0x01020304}, bytes);
  const std::array<std::byte, 8> expected{std::byte{3}, std::byte{0}, std::byte{0}, std::byte{0},
                                          std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}};
  EXPECT_EQ(bytes, expected);
}

TEST(TcpFrames, AVoidTrailerCarriesNothing) {
  std::array<std::byte, tcp::kTrailerBytes> bytes;
  tcp::Encode(tcp::Trailer{.valid = false, .has_immediate = true, .immediate = 9}, bytes);
  auto got = tcp::DecodeTrailer(bytes);
  ASSERT_TRUE(got.ok());
  EXPECT_FALSE(got->valid);
  EXPECT_FALSE(got->has_immediate);
}

TEST(TcpFrames, HeadsBeyondTheBoundsAreRefused) {
  std::array<std::byte, tcp::kFrameHeadBytes> bytes;
  const auto refused = [&](tcp::FrameHead head) {
    tcp::Encode(head, bytes);
    return !tcp::DecodeFrameHead(bytes).ok();
  };
  EXPECT_FALSE(refused({.runs = 1024, .bytes = 1 << 20, .transfer = 1}));
  EXPECT_TRUE(refused({.runs = 1025}));
  EXPECT_TRUE(refused({.bytes = (1 << 20) + 1}));
  EXPECT_TRUE(refused({.kind = tcp::FrameKind::kFence, .bytes = 1}));
  EXPECT_TRUE(refused({.kind = tcp::FrameKind::kReadResponse, .runs = 1}));
  EXPECT_TRUE(refused({.kind = static_cast<tcp::FrameKind>(5)}));
}

TEST(TcpFrames, ALostRailIsToldWithItsLifeAndWhy) {
  const std::string text =
      tcp::Encode(tcp::StreamLost{.rail = 3, .life = 0x01020304, .why = "gone"});
  const std::span<const std::byte> bytes = std::as_bytes(std::span(text));
  const auto got = tcp::DecodeStreamLost(bytes);
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->rail, 3);
  EXPECT_EQ(got->life, 0x01020304u);
  EXPECT_EQ(got->why, "gone");
  EXPECT_FALSE(tcp::DecodeStreamLost(bytes.first(7)).ok());
  const std::string longest = tcp::Encode(tcp::StreamLost{.why = std::string(5000, 'x')});
  EXPECT_TRUE(tcp::DecodeStreamLost(std::as_bytes(std::span(longest))).ok());
  const std::string longer = longest + "x";
  EXPECT_FALSE(tcp::DecodeStreamLost(std::as_bytes(std::span(longer))).ok());
}

TEST(TcpFrames, OnlyADataStreamHasALife) {
  std::array<std::byte, tcp::kPreambleBytes> bytes;
  tcp::Encode(
      tcp::Preamble{.role = tcp::Role::kData, .rail = 1, .rails = 2, .target = {}, .life = 77},
      bytes);
  EXPECT_EQ(tcp::DecodePreamble(bytes)->life, 77u);
  tcp::Encode(tcp::Preamble{.rails = 2, .target = {}, .life = 77}, bytes);
  EXPECT_EQ(tcp::DecodePreamble(bytes)->life, 0u);
}

}  // namespace
}  // namespace kvxfer::tcp_test
