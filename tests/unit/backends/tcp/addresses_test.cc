// Data streams over several addresses.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "src/backends/tcp/paths.h"
#include "tests/support/status_macros.h"
#include "tests/support/tcp_streams.h"
#include "tests/support/test_folder.h"
#include "tests/unit/backends/tcp/test_util.h"

namespace kvxfer::tcp_test {
namespace {

using kvxfer::testing::DataStreams;
using kvxfer::testing::Fails;
using kvxfer::testing::TestFolder;
using ::testing::HasSubstr;

net::SocketAddress At(const std::string& text) {
  return net::Resolve(text, 0, net::Names::kNumericOnly)->front();
}

tcp::LocalAddress From(const std::string& host, const char* subnet, uint32_t mbps = 0) {
  return {.at = At(host), .subnet = *IpSubnet::Parse(subnet), .mbps = mbps};
}

std::vector<std::string> Names(const tcp::Paths& paths) {
  std::vector<std::string> out;
  for (size_t i = 0; i < paths.rails(); ++i) {
    out.push_back(paths.Name(paths.planned(i), At("10.9.9.9:9")));
  }
  return out;
}

TEST(TcpPaths, EachAddressIsUsedThoseOfOneSubnetTogether) {
  const std::vector<tcp::LocalAddress> local = {From("10.0.1.1", "10.0.1.0/24", 100),
                                                From("10.0.2.1", "10.0.2.0/24", 200)};
  const net::PeerAddress peer{.candidates = {At("10.0.9.9:1")},
                              .data = {{At("10.0.2.2:5"), 50}, {At("10.0.1.2:6"), 400}}};
  const auto two = tcp::Paths::Plan(local, peer, 1);
  ASSERT_OK(two);
  EXPECT_EQ(Names(*two),
            (std::vector<std::string>{"10.0.1.1 → 10.0.1.2:6", "10.0.2.1 → 10.0.2.2:5"}));
  EXPECT_EQ(two->Mbps(two->planned(0)), 100u);
  EXPECT_EQ(two->Mbps(two->planned(1)), 50u);
  // More streams than pairs go round.
  const auto five = tcp::Paths::Plan(local, peer, 5);
  ASSERT_OK(five);
  EXPECT_EQ(five->rails(), 5u);
  EXPECT_EQ(five->planned(4), five->planned(0));
}

TEST(TcpPaths, OneSideMayHaveAddressesAlone) {
  const net::PeerAddress plain{.candidates = {At("10.0.9.9:1")}};
  const auto none = tcp::Paths::Plan({}, plain, 2);
  ASSERT_OK(none);
  EXPECT_FALSE(none->named());
  EXPECT_EQ(none->rails(), 2u);
  EXPECT_EQ(none->To(none->planned(0), At("10.9.9.9:9")).ToString(), "10.9.9.9:9");
  const std::vector<tcp::LocalAddress> local = {From("10.0.1.1", "10.0.1.0/24"),
                                                From("10.0.2.1", "10.0.2.0/24")};
  const auto bound = tcp::Paths::Plan(local, plain, 1);
  ASSERT_OK(bound);
  EXPECT_EQ(Names(*bound),
            (std::vector<std::string>{"10.0.1.1 → 10.9.9.9:9", "10.0.2.1 → 10.9.9.9:9"}));
  const net::PeerAddress several{.candidates = {At("10.0.9.9:1")},
                                 .data = {{At("10.0.2.2:5")}, {At("[fd00::2]:6")}}};
  const auto reached = tcp::Paths::Plan({}, several, 1);
  ASSERT_OK(reached);
  EXPECT_EQ(Names(*reached), (std::vector<std::string>{"any → 10.0.2.2:5", "any → [fd00::2]:6"}));
}

TEST(TcpPaths, FamiliesAreNotMixed) {
  const std::vector<tcp::LocalAddress> local = {From("10.0.1.1", "10.0.1.0/24"),
                                                From("fd00::1", "fd00::/64")};
  const net::PeerAddress peer{.candidates = {At("10.0.9.9:1")}, .data = {{At("[fd00::2]:6")}}};
  const auto one = tcp::Paths::Plan(local, peer, 1);
  ASSERT_OK(one);
  EXPECT_EQ(Names(*one), (std::vector<std::string>{"fd00::1 → [fd00::2]:6"}));
  EXPECT_TRUE(Fails(tcp::Paths::Plan(std::span(local).first(1), peer, 1),
                    absl::StatusCode::kUnavailable, {"10.0.1.1", "[fd00::2]:6", "family"}));
}

// Expect the one that names none to be reached by each family at an address of it.
TEST(TcpPaths, EachFamilyGoesToAnAddressOfIts) {
  const std::vector<tcp::LocalAddress> local = {From("10.0.1.1", "10.0.1.0/24"),
                                                From("fd00::1", "fd00::/64")};
  const net::PeerAddress peer{
      .candidates = {At("10.0.9.9:1"), At("[fd07::2]:1"), At("[fd00::2]:1")}};
  const net::SocketAddress control = peer.candidates[0];
  const auto both = tcp::Paths::Plan(local, peer, 1);
  ASSERT_OK(both);
  ASSERT_EQ(both->rails(), 2u);
  std::set<std::string> names;
  for (size_t i = 0; i < 2; ++i) names.insert(both->Name(both->planned(i), control));
  EXPECT_EQ(names, (std::set<std::string>{"10.0.1.1 → 10.0.9.9:1", "fd00::1 → [fd00::2]:1"}));
  const auto six = tcp::Paths::Plan(std::span(local).last(1), peer, 1);
  ASSERT_OK(six);
  EXPECT_EQ(six->Name(six->planned(0), control), "fd00::1 → [fd00::2]:1");
  // The control stream has shown which of one family answers.
  EXPECT_EQ(six->Name(six->planned(0), peer.candidates[1]), "fd00::1 → [fd07::2]:1");
  const net::PeerAddress old{.candidates = {At("10.0.9.9:1"), At("10.0.9.8:1")}};
  EXPECT_TRUE(Fails(tcp::Paths::Plan(std::span(local).last(1), old, 1),
                    absl::StatusCode::kUnavailable,
                    {"fd00::1", "10.0.9.9:1", "10.0.9.8:1", "family"}));
}

// A tree like /sys and /proc with one interface.
class TcpLocalAddresses : public ::testing::Test {
 protected:
  void SetUp() override {
    Put("sys/class/net/nic0/speed", "25000\n");
    Put("sys/class/net/dark0/speed", "-1\n");
    Put("proc/net/route",
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
        "nic0\t00010A0A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n");
    Put("proc/net/if_inet6", "fd000000000000000000000000000007 02 40 00 80 nic0\n");
  }
  void Put(const std::string& path, const std::string& text) {
    const std::filesystem::path file = std::filesystem::path(folder_.path()) / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  const TestFolder folder_;
};

TEST_F(TcpLocalAddresses, AnInterfaceTellsItsAddressSubnetAndSpeed) {
  const Sysfs sysfs(folder_.path());
  const auto one = tcp::ResolveLocal({"nic0"}, sysfs);
  ASSERT_OK(one);
  EXPECT_EQ((*one)[0].at.Host(), "fd00::7");
  EXPECT_EQ((*one)[0].subnet.prefix_bits, 64u);
  EXPECT_EQ((*one)[0].mbps, 25'000u);
  const auto both = tcp::ResolveLocal({"127.0.0.1", "[fd00::7]"}, sysfs);
  ASSERT_OK(both);
  EXPECT_TRUE((*both)[0].subnet.Contains(tcp::IpOf(At("127.0.0.99"))));
  EXPECT_FALSE((*both)[0].subnet.Contains(tcp::IpOf(At("127.0.1.1"))));
  EXPECT_EQ((*both)[0].mbps, 0u);
}

TEST_F(TcpLocalAddresses, WhatCannotBeUsedIsNamed) {
  const Sysfs sysfs(folder_.path());
  const auto refused = [&](const std::vector<std::string>& wanted, const char* part) {
    return Fails(tcp::ResolveLocal(wanted, sysfs), absl::StatusCode::kInvalidArgument,
                 {"KVXFER_TCP_ADDRESSES", part});
  };
  EXPECT_TRUE(refused({"nic7"}, "nic0"));
  EXPECT_TRUE(refused({"dark0"}, "no address"));
  EXPECT_TRUE(refused({"127.0.0.1:80"}, "port"));
  EXPECT_TRUE(refused({"0.0.0.0"}, "0.0.0.0"));
  EXPECT_TRUE(refused({"nic0", "fd00::7"}, "twice"));
  std::vector<std::string> many;
  for (int i = 1; i <= 9; ++i) many.push_back("127.0.0." + std::to_string(i));
  EXPECT_TRUE(refused(many, "127.0.0.9"));
}

TEST(TcpAddressText, DataAddressesAreToldAndDamageIsRefused) {
  const net::PeerAddress told{.incarnation = Incarnation::Random(),
                              .candidates = {At("10.0.0.1:1")},
                              .data = {{At("10.0.1.1:2"), 25'000}, {At("[fd00::1]:3"), 0}}};
  const std::string text = net::EncodeAddress(told);
  const auto heard = net::DecodeAddress(text);
  ASSERT_OK(heard);
  EXPECT_EQ(net::EncodeAddress(*heard), text);
  EXPECT_EQ(heard->data[0].mbps, 25'000u);
  std::string many = text;
  for (int i = 0; i < 7; ++i) many += ";10.0.3.1:5/1";
  for (const std::string& bad :
       {"1" + text.substr(1), text.substr(0, text.find(";data")), text + ";10.0.0.1:5",
        text + ";10.0.0.1:0/5", text + ";0.0.0.0:4/5", text + ";10.0.0.1:5/x", text + ";data", many,
        text.substr(0, text.find(";data") + 5)}) {
    EXPECT_TRUE(Fails(net::DecodeAddress(bad), absl::StatusCode::kInvalidArgument)) << bad;
  }
}

class TcpTwoAddresses : public TcpPair {
 protected:
  static AgentOptions Options() {
    AgentOptions options = Streams(2);
    options.backend["tcp"]["addresses"] = "127.0.0.1,127.0.0.2";
    return options;
  }
  bool WriteOnEach() {
    const std::vector<OpRun> runs{RunAt(0, 0, 4096)};
    std::vector<Op> ops;
    for (uint32_t rail = 0; rail < Rails(); ++rail) {
      ops.push_back({.has_immediate = true,
                     .rail = rail,
                     .immediate = rail,
                     .id = rail + 1,
                     .transfer = rail + 1,
                     .blocks = Blocks(runs)});
    }
    return PostAll(ops) &&
           Drive({a.get(), b.get()}, [&] { return b->immediates.size() == ops.size(); });
  }
};

TEST_F(TcpTwoAddresses, EachStreamGoesBetweenItsOwn) {
  Up(4096, Options());
  EXPECT_EQ(Rails(), 2u);
  EXPECT_TRUE(WriteOnEach());
  std::set<std::string> hosts;
  for (const auto& end : DataStreams()) {
    EXPECT_EQ(end.local.substr(0, 9), end.peer.substr(0, 9)) << end.local << " to " << end.peer;
    hosts.insert(end.local.substr(0, 9));
  }
  EXPECT_EQ(hosts, (std::set<std::string>{"127.0.0.1", "127.0.0.2"}));
  EXPECT_THAT(endpoint->Describe().rails[1].name, HasSubstr("127.0.0.2 → 127.0.0.2:"));
  EXPECT_THAT(endpoint->Describe().path, HasSubstr("127.0.0.1 → 127.0.0.1:"));
  // Nobody else's addresses are listened on.
  const auto peer = net::DecodeAddress(b->backend->Describe().address);
  ASSERT_OK(peer);
  ASSERT_EQ(peer->data.size(), 2u);
  net::SocketAddress beside = At("127.0.0.3");
  beside.set_port(peer->data[1].at.port());
  const auto stranger = net::StartConnect(beside);
  ASSERT_TRUE(stranger.ok());
  pollfd refused{stranger->get(), POLLOUT, 0};
  ASSERT_EQ(::poll(&refused, 1, 5000), 1);
  EXPECT_EQ(net::SocketError(stranger->get()), ECONNREFUSED);
}

// Expect the pair that cannot be connected to be left out and named, and another to be taken.
TEST_F(TcpTwoAddresses, APairThatDoesNotAnswerIsLeftOutAndAnotherTried) {
  Up(4096, Options());
  endpoint.reset();
  ASSERT_TRUE(Drive({a.get(), b.get()}, [&] { return b->down.size() == 1; }));
  auto peer = net::DecodeAddress(b->backend->Describe().address);
  ASSERT_OK(peer);
  peer->data[1].at = At("127.0.0.2:1");  // nobody listens there
  auto made = a->backend->Connect(net::EncodeAddress(*peer), ThisHost());
  ASSERT_TRUE(made.ok()) << made.status();
  endpoint = *std::move(made);
  ASSERT_TRUE(Drive({a.get(), b.get()}, [&] { return a->connected == 2; }));
  EXPECT_TRUE(endpoint->Describe().rails[0].up);
  ASSERT_TRUE(Drive({a.get(), b.get()}, [&] { return endpoint->Describe().rails[1].up; }));
  const std::string told = endpoint->Describe().path;
  EXPECT_THAT(told, HasSubstr("127.0.0.2 → 127.0.0.1:"));
  EXPECT_THAT(told, HasSubstr("127.0.0.2 → 127.0.0.2:1 does not answer"));
  b->accepted.back()->Authorize();
  key = Key(kRkey);
  b->immediates.clear();
  EXPECT_TRUE(WriteOnEach());
}

TEST_F(TcpTwoAddresses, WithoutAnotherPairTheLinkIsUpWithThoseThatAnswer) {
  Up(4096, Options());
  endpoint.reset();
  ASSERT_TRUE(Drive({a.get(), b.get()}, [&] { return b->down.size() == 1; }));
  auto peer = net::DecodeAddress(b->backend->Describe().address);
  ASSERT_OK(peer);
  peer->data = {peer->data[0], {At("127.0.0.2:1")}, {At("127.0.0.3:1")}};
  AgentOptions lone = Streams(1);
  Node c(lone);
  auto made = c.backend->Connect(net::EncodeAddress(*peer), ThisHost());
  ASSERT_TRUE(made.ok()) << made.status();
  ASSERT_TRUE(Drive({&c, b.get()}, [&] { return c.connected == 1; }));
  EXPECT_EQ((*made)->Describe().rails.size(), 3u);
  EXPECT_TRUE((*made)->Describe().rails[0].up);
  EXPECT_FALSE((*made)->Describe().rails[1].up);
  EXPECT_THAT((*made)->Describe().path, HasSubstr("any → 127.0.0.2:1 (not in use: "));
  EXPECT_THAT((*made)->Describe().path, HasSubstr("Connection refused"));
  EXPECT_TRUE(c.rails_down.empty());
}

TEST_F(TcpTwoAddresses, WithoutAnyPairTheLinkEndsAndNamesEach) {
  Node c(Streams(1));
  Node d(Options());
  auto peer = net::DecodeAddress(d.backend->Describe().address);
  ASSERT_OK(peer);
  peer->data = {{At("127.0.0.2:1")}, {At("127.0.0.3:1")}};
  auto made = c.backend->Connect(net::EncodeAddress(*peer), ThisHost());
  ASSERT_TRUE(made.ok()) << made.status();
  ASSERT_TRUE(Drive({&c, &d}, [&] { return !c.down.empty(); }));
  EXPECT_EQ(c.connected, 0);
  for (const char* part : {"127.0.0.2:1", "127.0.0.3:1", "Connection refused"}) {
    EXPECT_THAT(std::string(c.down[0].second.message()), HasSubstr(part));
  }
}

TEST_F(TcpTwoAddresses, ThePeerIsReachedThoughOnlyItsDataAddressesAreOfTheNetwork) {
  Node d(Options());
  auto own = net::DecodeAddress(d.backend->Describe().address);
  ASSERT_OK(own);
  own->data = {{At("10.9.8.7:5")}};
  const HostIdentity there{.hostname = "there", .boot_id = "boot-2"};
  const auto seen = net::DecodeReachable(net::EncodeAddress(*own), ThisHost(), there);
  ASSERT_OK(seen);
  EXPECT_EQ(seen->candidates.size(), 1u);
  EXPECT_EQ(seen->candidates[0].ToString(), "10.9.8.7:5");
}

}  // namespace
}  // namespace kvxfer::tcp_test
