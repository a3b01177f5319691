// GPU memory between agents while calls of the driver fail, each in turn; and while it has none.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "src/agent/engine/agent_factory.h"
#include "src/agent/staging/staging.h"
#include "src/cuda/driver.h"
#include "tests/support/agents.h"
#include "tests/support/blocks.h"
#include "tests/support/child_process.h"
#include "tests/support/cuda_driver/hooks.h"
#include "tests/support/needs_stand_in.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"
#include "tests/support/test_backends.h"
#include "tests/support/test_peer.h"

namespace kvxfer::testing {
namespace {

using cuda_driver::FindHooks;
using cuda_driver::Hooks;

constexpr Shape kShape{.block_bytes = 3000, .ids = 50, .gap = 72};

// By themselves and by way of host memory.
std::vector<Flavour> GpuFlavours() {
  std::vector<Flavour> all = StagedFlavours();
  for (const Flavour& flavour : PlainFlavours()) {
    if (flavour.memory == MemoryType::kCuda) all.push_back(flavour);
  }
  return all;
}

class AgentCudaFailing : public ::testing::TestWithParam<Flavour> {
 protected:
  void SetUp() override {
    KVXFER_NEEDS_STAND_IN();
    ASSERT_OK_AND_ASSIGN(a_, TestMemory::Allocate(MemoryType::kCuda, kShape.memory_bytes()));
    ASSERT_OK_AND_ASSIGN(b_, TestMemory::Allocate(MemoryType::kCuda, kShape.memory_bytes()));
    hooks_ = FindHooks();
    ASSERT_NE(hooks_, nullptr);
  }
  void TearDown() override {
    if (hooks_ != nullptr) hooks_->kvxfer_standin_fail_none();
    agents_.clear();
  }

  absl::Status MakeAgent(const char* name, const TestMemory& memory) {
    AgentOptions options = OptionsFor(GetParam(), name);
    options.staging_bytes = Staging::kMinBytes;
    auto agent = internal::AgentFactory::Create(options, MakeTestBackend);
    if (!agent.ok()) return agent.status();
    agents_.push_back(*std::move(agent));
    return agents_.back()->RegisterMemory(memory.span(), Access::kReadWrite).status();
  }

  // Two agents, a write and a read: the first failure. What did not fail is right.
  absl::Status Attempt() {
    a_.Clear();
    b_.Clear();
    if (auto made = MakeAgent("a", a_); !made.ok()) return made;
    if (auto made = MakeAgent("b", b_); !made.ok()) return made;
    Agent& a = *agents_[0];
    Agent& b = *agents_[1];
    if (auto known = Introduce(a, b); !known.ok()) return known.status();
    const BlockSet blocks(kShape, a_.address(), b_.address());
    for (const bool read : {false, true}) {
      Pattern(1).Fill((read ? b_ : a_).bytes());
      (read ? a_ : b_).Clear();
      const auto transfer =
          read ? blocks.Read(a, "b", Telling("here")) : blocks.Write(a, "b", Telling("here"));
      if (!transfer.ok()) return transfer.status();
      absl::Status end = transfer->Wait(kAmple);
      EXPECT_NE(transfer->Poll(), TransferState::kActive) << "it never ended";
      const auto told = b.WaitNotification(end.ok() ? kAmple : Duration());
      EXPECT_EQ(told.ok(), transfer->delivery() == Delivery::kDelivered) << end;
      if (told.ok() && !read) {
        EXPECT_TRUE(AllArrived(kShape, Side::kRemote, 1, b_.bytes()));
      }
      if (!end.ok()) return end;
      EXPECT_TRUE(
          AllArrived(kShape, read ? Side::kLocal : Side::kRemote, 1, (read ? a_ : b_).bytes()));
    }
    EXPECT_TRUE(a_.GuardsIntact());
    EXPECT_TRUE(b_.GuardsIntact());
    return absl::OkStatus();
  }

  // With the driver as it should be: what it does not take back, as memory that it pinned, is in
  // the way of whatever is mapped at its place next.
  absl::Status AttemptWell() {
    hooks_->kvxfer_standin_fail_none();
    agents_.clear();
    PushWrites();
    absl::Status status = Attempt();
    agents_.clear();
    return status;
  }

  // Where a flush failed, the next one would bring what a NIC wrote then, over what this attempt
  // has written since.
  void PushWrites() {
    for (const TestMemory* memory : {&a_, &b_}) {
      std::byte byte{};
      hooks_->kvxfer_standin_nic_read(memory->address(), &byte, 1);  // if NICs may have it
    }
  }

  // How often each call is made by an attempt that succeeds.
  std::vector<uint64_t> Counts() {
    EXPECT_OK(AttemptWell());
    std::vector<uint64_t> counts;
    for (const char* call : cuda_driver::kCalls) {
      counts.push_back(hooks_->kvxfer_standin_calls(call));
    }
    EXPECT_OK(AttemptWell());
    for (size_t i = 0; i < counts.size(); ++i) {
      counts[i] = hooks_->kvxfer_standin_calls(cuda_driver::kCalls[i]) - counts[i];
    }
    return counts;
  }

  TestMemory a_;
  TestMemory b_;
  std::vector<std::unique_ptr<Agent>> agents_;
  const Hooks* hooks_ = nullptr;
};

INSTANTIATE_TEST_SUITE_P(All, AgentCudaFailing, ::testing::ValuesIn(GpuFlavours()), FlavourName);

// Expect an attempt to succeed another way or to name what the driver said, nobody to be told of
// what is not there, and the next attempt to succeed.
TEST_P(AgentCudaFailing, EachCallInTurn) {
  const std::vector<uint64_t> counts = Counts();
  int failed = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == 0) continue;
    std::vector<int> nths = {0, 1};  // 0: every one
    if (!kSlow && counts[i] > 1) {
      nths.push_back(2);
      nths.push_back(static_cast<int>(counts[i]));
    }
    for (const int nth : nths) {
      SCOPED_TRACE(std::string(cuda_driver::kCalls[i]) + ", " + std::to_string(nth));
      hooks_->kvxfer_standin_fail(cuda_driver::kCalls[i], nth, cuda::api::CUDA_ERROR_OUT_OF_MEMORY);
      const absl::Status status = Attempt();
      if (!status.ok()) {
        ++failed;
        EXPECT_TRUE(absl::StrContains(status.message(), "CUDA_ERROR_OUT_OF_MEMORY")) << status;
      }
      ASSERT_OK(AttemptWell());
    }
  }
  EXPECT_GT(failed, 0);
}

// --- what a backend has a key for and cannot open --------------------------------------------

// An agent that reaches GPU memory of other processes, and by way of host memory.
AgentOptions IpcAndTcp(std::string name) {
  AgentOptions options;
  options.name = std::move(name);
  options.backends = {"cuda_ipc", "tcp"};
  return options;
}

class AgentCudaBeyondReach : public ::testing::Test {
 protected:
  void SetUp() override {
    KVXFER_NEEDS_STAND_IN();
    ASSERT_OK_AND_ASSIGN(peer_, TestPeer::Start(Where::kProcess));
    ASSERT_OK(peer_->Create(IpcAndTcp("b"), MemoryType::kCuda, kShape.memory_bytes()));
    ASSERT_OK_AND_ASSIGN(node_,
                         Node::Create(IpcAndTcp("a"), MemoryType::kCuda, kShape.memory_bytes()));
    ASSERT_OK(Introduce(*node_.agent, *peer_));
    ASSERT_OK_AND_ASSIGN(there_, peer_->MemoryAddress());
    hooks_ = FindHooks();
    ASSERT_NE(hooks_, nullptr);
    hooks_->kvxfer_standin_fail("cuIpcOpenMemHandle_v2", 0,
                                cuda::api::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
  }
  void TearDown() override {
    if (hooks_ != nullptr) hooks_->kvxfer_standin_fail_none();
  }

  absl::StatusOr<Transfer> Write(const TransferOptions& options) {
    return BlockSet(kShape, node_.memory.address(), there_).Write(*node_.agent, "b", options);
  }

  std::unique_ptr<TestPeer> peer_;
  Node node_;
  uint64_t there_ = 0;
  const Hooks* hooks_ = nullptr;
};

TEST_F(AgentCudaBeyondReach, ItIsStagedAndSaid) {
  Pattern(3).Fill(node_.memory.bytes());
  for (int i = 0; i < 2; ++i) {
    ASSERT_OK(peer_->Clear());
    ASSERT_OK_AND_ASSIGN(const Transfer transfer, Write(Unhurried()));
    ASSERT_OK(transfer.Wait(kAmple));
    EXPECT_EQ(transfer.stats().path, "tcp staged");
    EXPECT_OK(peer_->CheckArrived(kShape, Side::kRemote, 3));
  }
  // Asked once: it is known from then on.
  EXPECT_EQ(hooks_->kvxfer_standin_calls("cuIpcOpenMemHandle_v2"), 1u);
  ASSERT_OK_AND_ASSIGN(const Explanation explained, node_.agent->Explain("b"));
  bool seen = false;
  for (const MemoryExplanation& one : explained.memory) {
    if (one.local != MemoryKind::kCuda || one.remote != MemoryKind::kCuda) continue;
    seen = true;
    EXPECT_TRUE(one.staged);
    EXPECT_TRUE(absl::StrContains(one.why, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED")) << one.why;
  }
  EXPECT_TRUE(seen);

  // Newer metadata are looked at anew.
  hooks_->kvxfer_standin_fail_none();
  ASSERT_OK_AND_ASSIGN(const std::string metadata, peer_->Metadata());
  ASSERT_OK(node_.agent->AddPeer(metadata));
  ASSERT_OK_AND_ASSIGN(const Transfer native, Write(Unhurried()));
  ASSERT_OK(native.Wait(kAmple));
  EXPECT_EQ(native.stats().path, "cuda_ipc");
}

TEST_F(AgentCudaBeyondReach, WhoAsksForThatBackendIsToldWhy) {
  TransferOptions options = Unhurried();
  options.backend = "cuda_ipc";
  ASSERT_OK_AND_ASSIGN(const Transfer transfer, Write(options));
  EXPECT_TRUE(Fails(transfer.Wait(kAmple), absl::StatusCode::kFailedPrecondition,
                    {"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "takes no host memory"}));
}

// --- no driver -------------------------------------------------------------------------------

// Every backend that there is moves host memory, and GPU memory is refused with what to do.
KVXFER_CHILD(WithoutADriver) {
  CHILD_EXPECT(absl::IsUnimplemented(cuda::Driver::Get().status()));
  AgentOptions options;
  options.name = "a";
  auto a = Node::Create(options, MemoryType::kMapped, kShape.memory_bytes());
  options.name = "b";
  auto b = Node::Create(options, MemoryType::kAttached, kShape.memory_bytes());
  CHILD_EXPECT(a.ok() && b.ok());
  CHILD_EXPECT(Introduce(*a->agent, *b->agent).ok());
  MemorySpan gpu = a->memory.span();
  gpu.kind = MemoryKind::kCuda;
  const auto refused = a->agent->RegisterMemory(gpu, Access::kReadWrite);
  CHILD_EXPECT(absl::IsUnimplemented(refused.status()));
  CHILD_EXPECT(absl::StrContains(refused.status().message(), "no CUDA driver here"));
  CHILD_EXPECT(absl::StrContains(refused.status().message(), "--gpus all"));
  Pattern(1).Fill(a->memory.bytes());
  const BlockSet blocks(kShape, a->memory.address(), b->memory.address());
  const auto transfer = blocks.Write(*a->agent, "b", Telling("here"));
  CHILD_EXPECT(transfer.ok() && transfer->Wait(kAmple).ok());
  CHILD_EXPECT(b->agent->WaitNotification(kAmple).ok());
  CHILD_EXPECT(AllArrived(kShape, Side::kRemote, 1, b->memory.bytes()));
  return 0;
}

TEST(AgentCudaAbsent, HostMemoryIsMovedAndGpuMemoryRefused) {
  // A real one is found without the variable.
  KVXFER_NEEDS_STAND_IN();
  const char* const path = std::getenv("LD_LIBRARY_PATH");
  const std::string before = path == nullptr ? "" : path;
  ::unsetenv("LD_LIBRARY_PATH");
  const int status = RunChild("WithoutADriver", {}, kAmple);
  if (path != nullptr) ::setenv("LD_LIBRARY_PATH", before.c_str(), 1);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace kvxfer::testing
