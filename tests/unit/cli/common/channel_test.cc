// Messages between processes, and the port that strangers reach.

#include "src/cli/common/channel.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "src/cli/common/bootstrap.h"
#include "src/cli/common/json_util.h"
#include "src/cli/common/peer_service.h"

namespace kvxfer::cli {
namespace {

constexpr Duration kLong = std::chrono::seconds(20);

std::pair<Channel, Channel> Pair() {
  int fds[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  return {Channel(UniqueFd(fds[0]), "left's peer"), Channel(UniqueFd(fds[1]), "right's peer")};
}

TEST(Channel, CarriesMessagesInOrder) {
  auto pair = Pair();
  Channel& left = pair.first;
  Channel& right = pair.second;
  // Larger than the socket's buffer, so that both sides must take turns.
  const std::string large(900'000, 'x');
  std::thread sender([&left, &large] {
    EXPECT_TRUE(left.Send({{"n", 1}, {"text", large}}).ok());
    EXPECT_TRUE(left.Send({{"n", 2}}).ok());
  });
  const auto first = right.Receive(kLong);
  const auto second = right.Receive(kLong);
  sender.join();
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(GetString(*first, "text"), large);
  EXPECT_EQ(GetUint(*second, "n").value(), 2u);
}

TEST(Channel, EndsInAnErrorNotInAWait) {
  auto [left, right] = Pair();
  EXPECT_TRUE(absl::IsDeadlineExceeded(right.Receive(std::chrono::milliseconds(5)).status()));
  EXPECT_FALSE(right.Closed());
  // Expect a message that is too large to be refused before a byte is sent.
  EXPECT_TRUE(absl::IsInvalidArgument(left.Send({{"x", std::string(kMaxChannelMessage, 'x')}})));
  EXPECT_FALSE(right.Readable());
  left = Channel();
  EXPECT_TRUE(right.Closed());
  const absl::Status closed = right.Receive(kLong).status();
  EXPECT_TRUE(absl::IsUnavailable(closed));
  EXPECT_NE(std::string(closed.message()).find("right's peer"), std::string::npos);
}

TEST(Channel, RefusesGarbage) {
  using std::string_literals::operator""s;
  const std::vector<std::string> cases = {
      "GET / HTTP/1.1\r\n\r\n",
      "\xff\xff\xff\xff",
      "\x04\0\0\0junk"s,
      "\x02\0\0\0[]"s,
      "\x00\0\0\0"s,
      "\x20\0\0\0"s + "{\"a\":" + std::string(27, '['),
  };
  for (const std::string& bytes : cases) {
    auto [left, right] = Pair();
    ASSERT_EQ(send(left.fd(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    EXPECT_TRUE(absl::IsUnavailable(right.Receive(kLong).status())) << bytes;
  }
}

TEST(Channel, CarriesErrorsAsErrors) {
  auto [left, right] = Pair();
  ASSERT_TRUE(right.Send(ErrorAnswer(absl::DataLossError("byte 7"))).ok());
  const absl::Status status = left.Call({{"type", "check"}}, kLong).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(std::string(status.message()).find("byte 7"), std::string::npos);
  // Expect a code that does not exist not to be taken for success.
  ASSERT_TRUE(right.Send({{"error", "odd"}, {"status", 0}}).ok());
  EXPECT_FALSE(left.ReceiveAnswer(kLong).ok());
}

TEST(Json, RefusesNestingThatCouldExhaustTheStack) {
  std::string deep = R"({"a":)" + std::string(100'000, '[');
  EXPECT_FALSE(ParseJsonObject(deep).ok());
  deep += std::string(100'000, ']') + "}";
  EXPECT_FALSE(ParseJsonObject(deep).ok());
  EXPECT_TRUE(ParseJsonObject(R"({"regions":[[1,2,3,4]]})").ok());
}

TEST(Json, ReadsFieldsWithoutTrust) {
  const Json json = {{"n", -1},      {"f", 1.5},      {"s", "text"},
                     {"odd", "abc"}, {"nohex", "zz"}, {"regions", {{1, 2, 3}}}};
  for (const char* field : {"n", "f", "s", "missing"}) EXPECT_FALSE(GetUint(json, field).ok());
  EXPECT_EQ(GetString(json, "n"), "");
  for (const char* field : {"odd", "nohex", "missing"}) EXPECT_FALSE(GetHex(json, field).ok());
  EXPECT_FALSE(GetRegions(json, "regions").ok());
  const std::string bytes("\0\x80\xff z", 5);
  EXPECT_EQ(GetHex({{"b", ToHex(bytes)}}, "b").value(), bytes);
  const std::vector<PagedRegion> regions = {{1, 2, 3, 4}, {UINT64_MAX, 6, 7, 8}};
  EXPECT_EQ(GetRegions({{"r", ToJson(regions)}}, "r").value(), regions);
}

TEST(SessionNote, TravelsWhole) {
  const SessionNote note{
      .session = 0x0123456789ABCDEF, .sequence = UINT64_MAX - 1, .by_message = true};
  const auto back = SessionNote::Decode(note.Encode());
  ASSERT_TRUE(back);
  EXPECT_EQ(back->session, note.session);
  EXPECT_EQ(back->sequence, note.sequence);
  EXPECT_TRUE(back->by_message);
  EXPECT_FALSE(SessionNote::Decode("short"));
  EXPECT_FALSE(SessionNote::Decode(std::string(17, 'x')));
}

// A server that answers every message with its own, on a thread of this process.
class Bootstrap : public ::testing::Test {
 protected:
  void SetUp() override {
    auto server = BootstrapServer::Listen({.host = "127.0.0.1", .port = 0});
    ASSERT_TRUE(server.ok()) << server.status();
    address_ = server->address();
    thread_ = std::thread([this, server = std::move(*server)]() mutable {
      server.Run(stop_.get(), [this](Channel& channel) {
        ++served_;
        for (;;) {
          const auto message = channel.Receive(kLong);
          if (!message.ok() || !channel.Send(*message).ok()) return;
        }
      });
    });
  }
  void TearDown() override {
    ASSERT_EQ(eventfd_write(stop_.get(), 1), 0);
    thread_.join();
  }

  UniqueFd stop_{eventfd(0, EFD_CLOEXEC)};
  HostPort address_;
  std::atomic<int> served_{0};
  std::thread thread_;
};

TEST_F(Bootstrap, ServesManyClientsAndEndsWithThemConnected) {
  std::vector<Channel> clients;
  for (int i = 0; i < 20; ++i) {
    auto client = ConnectTo(address_, kLong);
    ASSERT_TRUE(client.ok()) << client.status();
    clients.push_back(std::move(*client));
  }
  for (int i = 0; i < 20; ++i) {
    const auto echo = clients[static_cast<size_t>(i)].Call({{"i", i}}, kLong);
    ASSERT_TRUE(echo.ok()) << echo.status();
    EXPECT_EQ(GetUint(*echo, "i").value(), static_cast<uint64_t>(i));
  }
  EXPECT_EQ(served_.load(), 20);
}

TEST_F(Bootstrap, ClientsKnowTheAddressTheyComeFrom) {
  const auto client = ConnectTo(address_, kLong);
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_EQ(LocalHost(*client), "127.0.0.1");
  const auto pair = Pair();
  EXPECT_EQ(LocalHost(pair.first), "");
}

TEST_F(Bootstrap, GarbageEndsOnlyItsOwnConnection) {
  auto good = ConnectTo(address_, kLong);
  ASSERT_TRUE(good.ok()) << good.status();
  for (int i = 0; i < 50; ++i) {
    auto bad = ConnectTo(address_, kLong);
    ASSERT_TRUE(bad.ok()) << bad.status();
    const std::string garbage(static_cast<size_t>(i + 4), static_cast<char>(0xF0 + i % 16));
    ASSERT_GT(send(bad->fd(), garbage.data(), garbage.size(), MSG_NOSIGNAL), 0);
    EXPECT_FALSE(bad->Receive(kLong).ok());
  }
  EXPECT_TRUE(good->Call({{"still", "here"}}, kLong).ok());
}

TEST_F(Bootstrap, RefusesMoreClientsThanItBounds) {
  std::vector<Channel> clients;
  for (size_t i = 0; i < BootstrapServer::kMaxClients; ++i) {
    auto client = ConnectTo(address_, kLong);
    ASSERT_TRUE(client.ok()) << client.status();
    ASSERT_TRUE(client->Call({{"hello", 1}}, kLong).ok());
    clients.push_back(std::move(*client));
  }
  auto refused = ConnectTo(address_, kLong);
  ASSERT_TRUE(refused.ok()) << refused.status();
  const absl::Status why = refused->ReceiveAnswer(kLong).status();
  EXPECT_TRUE(absl::IsUnavailable(why)) << why;
  EXPECT_NE(std::string(why.message()).find("too many clients"), std::string::npos) << why;
}

TEST(ConnectTo, SaysWhoIsNotThere) {
  auto server = BootstrapServer::Listen({.host = "127.0.0.1", .port = 0});
  ASSERT_TRUE(server.ok()) << server.status();
  const HostPort address = server->address();
  // Expect a second server on the port to be refused with a fix.
  const auto second = BootstrapServer::Listen(address);
  EXPECT_TRUE(absl::IsFailedPrecondition(second.status())) << second.status();
  EXPECT_NE(std::string(second.status().message()).find("--listen"), std::string::npos);
  const auto nowhere = BootstrapServer::Listen({.host = "no-such-host.invalid", .port = 0});
  EXPECT_TRUE(absl::IsInvalidArgument(nowhere.status())) << nowhere.status();
  { const BootstrapServer gone = std::move(*server); }
  const absl::Status status = ConnectTo(address, kLong).status();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_NE(std::string(status.message()).find(address.ToString()), std::string::npos) << status;
}

}  // namespace
}  // namespace kvxfer::cli
