// Metadata and options that nobody can work with are refused by name, and change nothing.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "src/core/base/strings.h"
#include "src/core/protocol/metadata.h"
#include "tests/support/agents.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

using absl::StatusCode;
using std::chrono::milliseconds;
constexpr uint64_t kSetupBytes = 64 * 1024;

class BadMetadata : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(pair_, Pair::Create(TcpFlavour(), kSetupBytes));
    ASSERT_OK_AND_ASSIGN(metadata_, pair_.b.agent->Metadata());
    ASSERT_OK_AND_ASSIGN(Node fresh,
                         Node::Create(OptionsFor(TcpFlavour(), "c"), TcpFlavour().memory, 4096));
    fresh_ = std::move(fresh);
  }
  // Refused, and the peer is as unknown as before.
  void ExpectRefused(const std::string& metadata, StatusCode code,
                     std::initializer_list<const char*> words = {}) {
    EXPECT_TRUE(Fails(fresh_.agent->AddPeer(metadata), code, words));
    EXPECT_TRUE(Fails(fresh_.agent->Explain("b"), StatusCode::kNotFound));
  }

  Pair pair_;
  Node fresh_;
  std::string metadata_;
};

TEST_F(BadMetadata, TruncatedAnywhere) {
  for (size_t bytes = 0; bytes < metadata_.size(); ++bytes) {
    EXPECT_TRUE(
        Fails(fresh_.agent->AddPeer(metadata_.substr(0, bytes)), StatusCode::kInvalidArgument))
        << bytes;
  }
  ExpectRefused(metadata_ + "x", StatusCode::kInvalidArgument);
}

TEST_F(BadMetadata, AnyBitFlipped) {
  for (size_t bit = 0; bit < metadata_.size() * 8; ++bit) {
    std::string damaged = metadata_;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_FALSE(fresh_.agent->AddPeer(damaged).ok()) << "bit " << bit;
  }
  EXPECT_TRUE(Fails(fresh_.agent->Explain("b"), StatusCode::kNotFound));
  EXPECT_OK(fresh_.agent->AddPeer(metadata_));
}

TEST_F(BadMetadata, OfOneself) {
  EXPECT_TRUE(Fails(Introduce(*fresh_.agent, *fresh_.agent), StatusCode::kInvalidArgument, {"c"}));
}

TEST_F(BadMetadata, WithoutACommonVersion) {
  ASSERT_OK_AND_ASSIGN(AgentMetadata other, DecodeMetadata(metadata_));
  other.min_version = 98;
  other.max_version = 99;
  ExpectRefused(EncodeMetadata(other), StatusCode::kFailedPrecondition, {"98", "99"});
}

TEST_F(BadMetadata, LoopbackOfAnotherHost) {
  ASSERT_OK_AND_ASSIGN(AgentMetadata other, DecodeMetadata(metadata_));
  other.host.boot_id = "00000000-0000-0000-0000-000000000000";
  other.host.hostname = "elsewhere";
  ExpectRefused(EncodeMetadata(other), StatusCode::kInvalidArgument, {"loopback"});
}

TEST_F(BadMetadata, RequiredBackendDoesNotReach) {
  AgentOptions options = OptionsFor(TcpFlavour(), "d");
  options.backends = {"shm", "tcp"};
  options.require_backends = {"shm"};
  ASSERT_OK_AND_ASSIGN(Node d, Node::Create(options, MemoryType::kMapped, 4096));
  // b speaks tcp alone.
  EXPECT_TRUE(Fails(d.agent->AddPeer(metadata_), StatusCode::kFailedPrecondition, {"b", "shm"}));
  EXPECT_TRUE(Fails(d.agent->Explain("b"), StatusCode::kNotFound));
}

TEST(BadOptions, Create) {
  AgentOptions options = OptionsFor(TcpFlavour(), "");
  EXPECT_TRUE(Fails(Agent::Create(options), StatusCode::kInvalidArgument, {"name"}));
  options.name = std::string(256, 'x');
  EXPECT_TRUE(Fails(Agent::Create(options), StatusCode::kInvalidArgument, {"name"}));
  options = OptionsFor(TcpFlavour(), "a");
  options.backends = {"warp"};
  EXPECT_TRUE(Fails(Agent::Create(options), StatusCode::kNotFound, {"warp", "tcp"}));
  options.backends = {"faulty:warp"};
  EXPECT_TRUE(Fails(Agent::Create(options), StatusCode::kNotFound, {"warp", "tcp"}));
  options.backends = {"tcp", "loopback", "tcp"};
  EXPECT_TRUE(Fails(Agent::Create(options), StatusCode::kInvalidArgument, {"tcp", "twice"}));
  options.backends = {"tcp"};
  for (const char* listen : {"nonsense", "127.0.0.1:99999", "127.0.0.1:-1", "[::1", ":", ""}) {
    options.listen = listen;
    const absl::Status status = Agent::Create(options).status();
    EXPECT_FALSE(status.ok()) << listen;
    EXPECT_FALSE(status.message().empty());
  }
  options = OptionsFor(TcpFlavour(), "a");
  for (const char* streams : {"0", "17", "-1", "two", "2.5"}) {
    options.backend["tcp"]["streams"] = streams;
    EXPECT_TRUE(Fails(Agent::Create(options), StatusCode::kInvalidArgument,
                      {"streams", "tcp", "KVXFER_TCP_STREAMS", streams, "1 to 16"}));
  }
  options = OptionsFor(TcpFlavour(), "a");
  options.backend["tcp"]["steams"] = "2";
  EXPECT_TRUE(Fails(Agent::Create(options), StatusCode::kInvalidArgument,
                    {"tcp", "steams", "did you mean `streams`"}));
  options = OptionsFor(TcpFlavour(), "a");
  options.backend["verb"]["devices"] = "mlx5_0";
  EXPECT_TRUE(Fails(Agent::Create(options), StatusCode::kInvalidArgument, {"verb", "verbs"}));
  // Also where the host has no such device.
  options = {.name = "a"};
  options.backend["verbs"]["queue_depth"] = "1";
  EXPECT_TRUE(Fails(Agent::Create(options), StatusCode::kInvalidArgument,
                    {"KVXFER_VERBS_QUEUE_DEPTH", "16 to 32768"}));
  options = {.name = "a", .backends = {"shm"}};
  options.backend["shm"]["copy_threads"] = "9";
  EXPECT_TRUE(Fails(Agent::Create(options), StatusCode::kInvalidArgument, {"copy_threads"}));
  options = OptionsFor(TcpFlavour(), "a");
  options.serve_metadata = true;
  options.backends = {"loopback", "shm"};
  EXPECT_TRUE(Fails(Agent::Create(options), StatusCode::kInvalidArgument,
                    {"serve_metadata", "no backend tcp", "KVXFER_BACKENDS"}));
}

// Expect that no duration is so long that the moment it ends at cannot be told.
TEST(BadOptions, Durations) {
  const AgentOptions good = OptionsFor(TcpFlavour(), "a");
  constexpr Duration kNegative = -milliseconds(1);
  struct Case {
    Duration AgentOptions::*option;
    std::vector<Duration> bad;
  };
  const std::vector<Case> cases = {
      {&AgentOptions::heartbeat, {Duration(0), kNegative, Duration::max()}},
      {&AgentOptions::suspect_after, {good.heartbeat, Duration::max()}},
      {&AgentOptions::connect_timeout, {Duration(0), kNegative, Duration::max()}},
      {&AgentOptions::cancel_grace, {kNegative, Duration::max()}},
      {&AgentOptions::spin, {Duration::max()}},
  };
  for (const Case& one : cases) {
    for (const Duration bad : one.bad) {
      AgentOptions options = good;
      options.*one.option = bad;
      EXPECT_TRUE(Fails(Agent::Create(options), StatusCode::kInvalidArgument));
    }
  }
  AgentOptions options = good;
  options.backends = {"faulty:tcp"};
  for (const char* key : {"max_delay_us", "slow_rail_delay_us", "rail_down_for_us"}) {
    options.backend["faulty"] = {{key, std::to_string(INT64_MAX)}};
    EXPECT_TRUE(Fails(Agent::Create(options), StatusCode::kInvalidArgument, {key}));
  }
  options = good;
  options.heartbeat = options.connect_timeout = options.cancel_grace = std::chrono::hours(24);
  options.suspect_after = std::chrono::hours(24 * 365);
  EXPECT_OK(Agent::Create(options));
}

TEST(BadOptions, AddressInUse) {
  ASSERT_OK_AND_ASSIGN(Node first,
                       Node::Create(OptionsFor(TcpFlavour(), "a"), TcpFlavour().memory, 4096));
  AgentOptions options = OptionsFor(TcpFlavour(), "b");
  options.listen = first.agent->listen_address();
  ASSERT_FALSE(options.listen.empty());
  const absl::Status status = Agent::Create(options).status();
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find(ToAbsl(options.listen)), absl::string_view::npos) << status;
  EXPECT_NE(status.message().find("in use"), absl::string_view::npos) << status;
}

}  // namespace
}  // namespace kvxfer::testing
