// What only the ucx backend has: how it explains what UCX cannot do, and who is refused at its
// door.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/backends/ucx/frames.h"
#include "src/backends/ucx/worker.h"
#include "src/transport/sockets/socket.h"
#include "tests/support/backend_pair.h"
#include "tests/support/flavour.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

absl::Status MakeWith(const std::string& tls, const std::string& net_devices = "",
                      const std::string& listen = "") {
  AgentOptions options = OptionsFor(UcxFlavour("Ucx", tls), "alone");
  options.backend["ucx"]["net_devices"] = net_devices;
  options.backend["ucx"]["listen"] = listen;
  return MakeBackend("ucx", {.options = options, .incarnation = Incarnation::Random(), .host = {}})
      .status();
}

class UcxBackend : public ::testing::TestWithParam<Flavour> {
 protected:
  // Turns both until `done`.
  static bool Until(Party& a, Party& b, const std::function<bool()>& done) {
    return Eventually(kAmple, [&] {
      a.Turn();
      b.Turn();
      return done();
    });
  }
};

TEST(UcxSetup, WhatUcxDoesNotHaveIsExplained) {
  for (const char* tls : {"nonsense", "self", "cma,self"}) {
    EXPECT_TRUE(Fails(MakeWith(tls), absl::StatusCode::kUnavailable,
                      {"ucx", "UCX_TLS=", tls, "has here", "tcp"}))
        << tls;
  }
  EXPECT_TRUE(Fails(MakeWith("tcp,self", "nonsense0"), absl::StatusCode::kUnavailable,
                    {"UCX_NET_DEVICES=nonsense0"}));
  EXPECT_OK(MakeWith("tcp,self", "lo"));
}

TEST(UcxSetup, ALibraryThatIsTooOldIsRefused) {
  EXPECT_TRUE(Fails(ucx::CheckVersion(1, 11), absl::StatusCode::kUnavailable, {"too old", "1.12"}));
  EXPECT_TRUE(Fails(ucx::CheckVersion(0, 20), absl::StatusCode::kUnavailable, {"too old"}));
  EXPECT_OK(ucx::CheckVersion(1, 12));
  EXPECT_OK(ucx::CheckVersion(2, 0));
}

TEST(UcxSetup, WhereItCannotListenIsExplained) {
  for (const char* all : {"0.0.0.0", "[::]:0"}) {
    EXPECT_TRUE(Fails(MakeWith("tcp,self", "", all), absl::StatusCode::kInvalidArgument,
                      {"ucx.listen", "KVXFER_UCX_LISTEN", all, "one address of this host"}));
  }
  // Of documentation (RFC 5737): not of this host.
  EXPECT_TRUE(Fails(MakeWith("tcp,self", "", "192.0.2.1"), absl::StatusCode::kUnavailable,
                    {"192.0.2.1", "KVXFER_UCX_LISTEN", "rdma"}));
  EXPECT_TRUE(Fails(MakeWith("tcp,self", "", "no such host"), absl::StatusCode::kInvalidArgument,
                    {"no such host"}));
}

TEST(UcxSetup, AnAddressOfSomethingElseIsNotReachable) {
  ASSERT_OK_AND_ASSIGN(const auto alone, Party::Make(UcxFlavour("Ucx", "tcp,self"), "alone"));
  for (const char* address : {"", "127.0.0.1:1", "kvxfer-ucx-2;", "kvxfer-ucx-2;0123456789abcdefw",
                              "kvxfer-ucx-1;0123456789abcdefw..."}) {
    EXPECT_FALSE(alone->backend().Reachable(address, alone->host()).ok()) << address;
    EXPECT_FALSE(alone->backend().Connect(address, alone->host()).ok()) << address;
  }
  // Names are not looked up for a peer.
  EXPECT_FALSE(
      alone->backend().Connect("kvxfer-ucx-2;0123456789abcdefslocalhost:1", alone->host()).ok());
}

// The address of a worker that lives, with the incarnation of one that is gone.
TEST_P(UcxBackend, AnotherIncarnationIsRefusedAtOnce) {
  ASSERT_OK_AND_ASSIGN(const auto a, Party::Make(GetParam(), "a"));
  ASSERT_OK_AND_ASSIGN(const auto b, Party::Make(GetParam(), "b"));
  ASSERT_OK_AND_ASSIGN(ucx::Address address, ucx::DecodeAddress(b->backend().Describe().address));
  address.incarnation = Incarnation::Random();
  ASSERT_OK_AND_ASSIGN(auto endpoint, a->backend().Connect(Encode(address), b->host()));
  a->links.push_back(std::make_unique<TestLink>());
  TestLink& link = *a->links.back();
  link.endpoint = std::move(endpoint);
  ASSERT_TRUE(Until(*a, *b, [&] { return link.down; }));
  EXPECT_TRUE(Fails(link.why, absl::StatusCode::kUnavailable, {"another agent"}));
  EXPECT_FALSE(link.connected);
  EXPECT_TRUE(b->links.empty());
  // The same path serves one that means who is there.
  ASSERT_OK_AND_ASSIGN(TestLink * good, a->Connect(*b));
  EXPECT_TRUE(Until(*a, *b, [&] { return good->connected; }));
}

// Two links between the same two workers, one in each direction: they share UCX's endpoints and end
// alone.
TEST_P(UcxBackend, BothConnectAndEachEndsAlone) {
  ASSERT_OK_AND_ASSIGN(const auto a, Party::Make(GetParam(), "a"));
  ASSERT_OK_AND_ASSIGN(const auto b, Party::Make(GetParam(), "b"));
  ASSERT_OK_AND_ASSIGN(TestLink * to_b, a->Connect(*b));
  ASSERT_OK_AND_ASSIGN(TestLink * to_a, b->Connect(*a));
  ASSERT_TRUE(Until(*a, *b, [&] {
    return to_b->connected && to_a->connected && a->links.size() == 2 && b->links.size() == 2;
  }));
  to_b->endpoint->Shutdown(absl::CancelledError("one of two"));
  ASSERT_TRUE(Until(*a, *b, [&] { return to_b->down && b->links.back()->down; }));
  EXPECT_TRUE(Fails(b->links.back()->why, absl::StatusCode::kUnavailable, {"one of two"}));
  ASSERT_TRUE(Until(*a, *b, [&] { return to_a->Send("still here"); }));
  TestLink& accepted = *a->links.back();
  ASSERT_TRUE(Until(*a, *b, [&] { return !accepted.messages.empty(); }));
  EXPECT_EQ(accepted.messages.front(), "still here");
  // And it connects again.
  ASSERT_OK_AND_ASSIGN(TestLink * again, a->Connect(*b));
  EXPECT_TRUE(Until(*a, *b, [&] { return again->connected; }));
}

// One who gives up before the answer leaves no link behind at the other side.
TEST_P(UcxBackend, ADiallerThatGivesUpIsForgotten) {
  ASSERT_OK_AND_ASSIGN(const auto a, Party::Make(GetParam(), "a"));
  ASSERT_OK_AND_ASSIGN(const auto b, Party::Make(GetParam(), "b"));
  ASSERT_OK_AND_ASSIGN(TestLink * link, a->Connect(*b));
  link->endpoint->Shutdown(absl::DeadlineExceededError("gave up"));
  ASSERT_TRUE(Until(*a, *b, [&] { return link->down && !b->links.empty() && b->links[0]->down; }));
  EXPECT_FALSE(link->connected);
}

INSTANTIATE_TEST_SUITE_P(Over, UcxBackend,
                         ::testing::Values(UcxFlavour("UcxTcp", "tcp,self"),
                                           UcxFlavour("UcxPosix", "posix,self"),
                                           UcxSocketFlavour()),
                         FlavourName);

// Who connects and says nothing.
TEST(UcxListener, StrangersAreInNobodysWay) {
  ASSERT_OK_AND_ASSIGN(const auto a, Party::Make(UcxSocketFlavour(), "a"));
  ASSERT_OK_AND_ASSIGN(const auto b, Party::Make(UcxSocketFlavour(), "b"));
  ASSERT_OK_AND_ASSIGN(const ucx::Address address,
                       ucx::DecodeAddress(b->backend().Describe().address));
  ASSERT_OK_AND_ASSIGN(const auto at,
                       net::Resolve(address.place.substr(1), 0, net::Names::kNumericOnly));
  std::vector<net::Fd> strangers;
  for (int i = 0; i < 100; ++i) {
    ASSERT_OK_AND_ASSIGN(net::Fd stranger, net::StartConnect(at.front()));
    strangers.push_back(std::move(stranger));
    b->Turn();
  }
  ASSERT_OK_AND_ASSIGN(TestLink * link, a->Connect(*b));
  ASSERT_TRUE(Eventually(kAmple, [&] {
    a->Turn();
    b->Turn();
    return link->connected;
  }));
  EXPECT_EQ(b->links.size(), 1u);
}

}  // namespace
}  // namespace kvxfer::testing
