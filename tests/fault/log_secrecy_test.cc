// No rkey, no address of memory and no hash of blocks gets into a log, whatever is refused and
// however much is logged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "kvxfer/log.h"
#include "src/core/base/log_limits.h"
#include "src/core/protocol/metadata.h"
#include "tests/support/agents.h"
#include "tests/support/scale.h"
#include "tests/support/scripted_peer.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

constexpr uint64_t kHash = 0x5ec2'e7b1'0c4d'a9f3;
constexpr uint32_t kRkey = 0xbadc'0de5;
constexpr uint64_t kAddress = 0x7e57'adde'5500;

bool WaitLost(Agent& agent) {
  return Eventually(kAmple, [&] {
    const auto event = agent.PollPeerEvent();
    return event.has_value() && event->kind == PeerEventKind::kLost;
  });
}

class LogSecrecy : public ::testing::Test {
 protected:
  void SetUp() override {
    SetLogLevel(LogLevel::kDebug);
    SetLogSink([this](LogLevel, std::string_view line) {
      const std::lock_guard lock(mu_);
      absl::StrAppend(&log_, std::string(line), "\n");
    });
  }
  void TearDown() override {
    SetLogSink({});
    SetLogLevel(LogLevel::kWarning);
  }

  // What was logged so far; it holds none of the secrets as a number.
  std::string Logged() {
    EXPECT_TRUE(FlushLog(kAmple));
    const std::lock_guard lock(mu_);
    const std::string lower = absl::AsciiStrToLower(log_);
    for (const uint64_t secret : secrets_) {
      EXPECT_EQ(lower.find(absl::StrCat(absl::Hex(secret))), std::string::npos) << log_;
      EXPECT_EQ(lower.find(absl::StrCat(secret)), std::string::npos) << log_;
    }
    return log_;
  }

  std::vector<uint64_t> secrets_{kHash, kRkey, kAddress};

 private:
  std::mutex mu_;
  std::string log_;
};

TEST_F(LogSecrecy, RefusalsOfPeersThatLie) {
  const AgentOptions options{.name = "victim", .backends = {"loopback"}};
  ASSERT_OK_AND_ASSIGN(const auto victim, Agent::Create(options));
  const auto refused = [&](FrameType type, const std::string& body, FrameType answer) {
    ASSERT_OK_AND_ASSIGN(const auto peer, ScriptedPeer::Initiator(*victim, "liar"));
    ASSERT_TRUE(peer->Say(type, body));
    EXPECT_TRUE(peer->Until([&] { return peer->down() || !peer->Heard(answer).empty(); }));
  };
  const StageRun run{.address = kAddress, .bytes = 4096, .rkey = kRkey};
  refused(FrameType::kStage, Encode(StageFrame{.transfer = 1, .buffer = 3, .runs = {run}}),
          FrameType::kStaged);
  refused(FrameType::kLeaseRead,
          Encode(LeaseReadFrame{.transfer = 1,
                                .lease = "none",
                                .contents = absl::StrCat(absl::Hex(kHash)),
                                .blocks_hash = kHash,
                                .within_nanos = 1'000'000'000}),
          FrameType::kLeaseAnswer);
  const KvPartFrame part{.cache = "none", .cache_id = kHash, .request = "r", .blocks_hash = kHash};
  refused(FrameType::kOpen,
          Encode(OpenFrame{
              .transfer = 1, .order = 1, .notice = Notice::kKvPart, .notification = Encode(part)}),
          FrameType::kKvAnswer);
  EXPECT_THAT(Logged(), ::testing::HasSubstr("liar"));
}

// The target refuses a write by a key that it did not give, and one to where nothing is registered.
// Both sides log why the connection ends.
TEST_F(LogSecrecy, WritesThatTheTargetRefuses) {
  constexpr size_t kBytes = 4096;
  // Tests before this one may have logged all losses that may be logged at once.
  std::this_thread::sleep_for(2 * LogLimits::kEvery + std::chrono::milliseconds(100));
  for (const bool bad_key : {true, false}) {
    const AgentOptions a_options{.name = "a", .backends = {"tcp"}};
    const AgentOptions b_options{.name = "b", .backends = {"tcp"}};
    ASSERT_OK_AND_ASSIGN(const Node a, Node::Create(a_options, MemoryType::kAttached, kBytes));
    ASSERT_OK_AND_ASSIGN(const Node b, Node::Create(b_options, MemoryType::kAttached, kBytes));
    ASSERT_OK_AND_ASSIGN(AgentMetadata lies, DecodeMetadata(*b.agent->Metadata()));
    RemoteRegion& region = lies.regions.at(0).region;
    secrets_.insert(secrets_.end(), {region.base, region.rkey, a.memory.address()});
    if (bad_key) region.rkey = kRkey;
    if (!bad_key) region.base = kAddress;
    ASSERT_OK(a.agent->AddPeer(EncodeMetadata(lies)));
    const std::vector<Descriptor> from{{.address = a.memory.address(), .bytes = kBytes}};
    const std::vector<Descriptor> to{{.address = region.base, .bytes = kBytes}};
    ASSERT_OK_AND_ASSIGN(const Transfer lost, a.agent->Write("b", DescriptorBlocks{from, to}));
    EXPECT_FALSE(lost.Wait(kAmple).ok());
    EXPECT_TRUE(WaitLost(*a.agent) && WaitLost(*b.agent));
  }
  EXPECT_THAT(Logged(), ::testing::HasSubstr("region"));
}

// The error of the application that owns the memory says where; the log does not.
TEST_F(LogSecrecy, MemoryThatIsGone) {
  const AgentOptions a_options{.name = "a", .backends = {"shm"}};
  const AgentOptions b_options{.name = "b", .backends = {"shm"}};
  constexpr size_t kBytes = 64 * 1024;
  ASSERT_OK_AND_ASSIGN(const Node a, Node::Create(a_options, MemoryType::kAttached, kBytes));
  ASSERT_OK_AND_ASSIGN(const auto b, Agent::Create(b_options));
  void* gone = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(gone, MAP_FAILED);
  ASSERT_OK(b->RegisterMemory({.data = gone, .bytes = kBytes}, Access::kReadWrite));
  ASSERT_OK(Introduce(*a.agent, *b));
  ASSERT_OK_AND_ASSIGN(const AgentMetadata known, DecodeMetadata(*b->Metadata()));
  secrets_.push_back(reinterpret_cast<uintptr_t>(gone));
  secrets_.push_back(a.memory.address());
  secrets_.push_back(known.regions.at(0).region.rkey);
  ASSERT_EQ(mprotect(gone, kBytes, PROT_NONE), 0);
  const std::vector<Descriptor> from{{.address = a.memory.address(), .bytes = kBytes}};
  const std::vector<Descriptor> to{{.address = reinterpret_cast<uintptr_t>(gone), .bytes = kBytes}};
  ASSERT_OK_AND_ASSIGN(const Transfer lost, a.agent->Write("b", DescriptorBlocks{from, to}));
  const absl::Status why = lost.Wait(kAmple);
  EXPECT_TRUE(Fails(why, absl::StatusCode::kFailedPrecondition, {"0x", "unmapped"}));
  EXPECT_FALSE(Logged().empty());
  munmap(gone, kBytes);
}

}  // namespace
}  // namespace kvxfer::testing
