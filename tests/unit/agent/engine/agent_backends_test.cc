// Which backends an agent gets, and when it gets none.
#include "src/agent/engine/agent_backends.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/unit/agent/session/fake_peer.h"

namespace kvxfer::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ListeningBackend : public FakeBackend {
 public:
  ListeningBackend(std::string_view name, const std::string& address, bool serves)
      : FakeBackend(name, kHostOnly), info_(FakeBackend::Describe()) {
    info_.listen_address = address;
    info_.capabilities.serves_metadata = serves;
  }
  const BackendInfo& Describe() const override { return info_; }
  BackendInfo& info() { return info_; }

 private:
  BackendInfo info_;
};

using Made = absl::StatusOr<std::unique_ptr<Backend>>;

// This host has tcp and shm. Of cuda_ipc there is no hardware, and verbs is set up wrong.
Made OnThisHost(std::string_view name, const BackendContext& /*context*/) {
  if (name == "tcp") {
    auto tcp = std::make_unique<ListeningBackend>("tcp", "10.0.0.1:7000", true);
    tcp->info().capabilities.carrier = ControlCarrier::kTcp;
    return tcp;
  }
  if (name == "shm") return std::make_unique<ListeningBackend>("shm", "10.0.0.1:1", false);
  if (name == "verbs") return absl::InvalidArgumentError("no such device mlx7_0");
  return absl::UnimplementedError("no hardware");
}
Made NothingHere(std::string_view /*name*/, const BackendContext& /*context*/) {
  return absl::UnavailableError("the driver is too old");
}
Made WithoutVerbs(std::string_view name, const BackendContext& context) {
  return name == "verbs" ? NothingHere(name, context) : OnThisHost(name, context);
}

absl::StatusOr<AgentBackends> Make(const AgentOptions& options, internal::BackendMaker make) {
  return MakeAgentBackends(BackendContext{options, {}, {}}, make);
}
std::vector<std::string> UsableOf(const AgentBackends& backends) {
  std::vector<std::string> names;
  for (const auto& backend : backends.usable) names.emplace_back(backend->name());
  return names;
}

TEST(AgentBackends, NamedOnesInTheirOrder) {
  ASSERT_OK_AND_ASSIGN(const auto made, Make({.backends = {"tcp", "shm"}}, OnThisHost));
  EXPECT_THAT(UsableOf(made), ElementsAre("tcp", "shm"));
  EXPECT_THAT(made.unusable, IsEmpty());
}

TEST(AgentBackends, ANamedOneMustWork) {
  EXPECT_TRUE(Fails(Make({.backends = {"tcp", "cuda_ipc"}}, OnThisHost),
                    absl::StatusCode::kUnimplemented, {"backend", "cuda_ipc", "no hardware"}));
}

TEST(AgentBackends, OfTheDefaultListThoseThatWorkHere) {
  ASSERT_OK_AND_ASSIGN(const auto made, Make({}, WithoutVerbs));
  ASSERT_EQ(made.usable.size() + made.unusable.size(), DefaultBackends().size());
  const auto verbs = std::ranges::find(made.unusable, "verbs", &PathExplanation::backend);
  ASSERT_NE(verbs, made.unusable.end());
  EXPECT_THAT(verbs->why, HasSubstr("too old"));
  EXPECT_THAT(UsableOf(made), ::testing::Contains("tcp"));
}

// A mistake of the user is not a property of the host.
TEST(AgentBackends, WhatIsSetUpWrongIsNotLeftOut) {
  const auto wrong = [](std::string_view, const BackendContext&) -> Made {
    return absl::InvalidArgumentError("no such device mlx7_0");
  };
  EXPECT_TRUE(Fails(Make({}, wrong), absl::StatusCode::kInvalidArgument, {"mlx7_0"}));
}

TEST(AgentBackends, SomeMustBeLeft) {
  EXPECT_TRUE(
      Fails(Make({}, NothingHere), absl::StatusCode::kUnavailable, {"no backend", "too old"}));
  const AgentOptions options{.require_backends = {DefaultBackends().front()}};
  EXPECT_TRUE(
      Fails(Make(options, NothingHere), absl::StatusCode::kUnavailable, {"no required backend"}));
}

TEST(AgentBackends, MetadataNeedsOneThatServesIt) {
  EXPECT_TRUE(Fails(Make({.backends = {"shm"}, .serve_metadata = true}, OnThisHost),
                    absl::StatusCode::kInvalidArgument, {"serve_metadata", "tcp"}));
  EXPECT_OK(Make({.backends = {"shm", "tcp"}, .serve_metadata = true}, OnThisHost));
}

TEST(AgentBackends, TheAddressOfTheOneThatServesMetadata) {
  ASSERT_OK_AND_ASSIGN(const auto both, Make({.backends = {"shm", "tcp"}}, OnThisHost));
  EXPECT_EQ(both.listen_address(), "10.0.0.1:7000");
  ASSERT_OK_AND_ASSIGN(const auto one, Make({.backends = {"shm"}}, OnThisHost));
  EXPECT_EQ(one.listen_address(), "10.0.0.1:1");
}

TEST(AgentBackends, ControlFramesNeedOneThatCarriesThem) {
  EXPECT_TRUE(Fails(Make({.backends = {"shm"}, .control = ControlCarrier::kTcp}, OnThisHost),
                    absl::StatusCode::kInvalidArgument,
                    {"control", "KVXFER_CONTROL", "tcp", "(shm)"}));
  EXPECT_TRUE(
      Fails(Make({.backends = {"shm", "tcp"}, .control = ControlCarrier::kRdma}, OnThisHost),
            absl::StatusCode::kInvalidArgument, {"rdma", "(shm, tcp)"}));
  EXPECT_OK(Make({.backends = {"shm", "tcp"}, .control = ControlCarrier::kTcp}, OnThisHost));
}

}  // namespace
}  // namespace kvxfer::testing
