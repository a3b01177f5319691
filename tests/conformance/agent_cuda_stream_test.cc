// Stream order: a transfer begins when what was in a CUDA stream is over, and a stream goes on when
// a transfer has ended, however it ends. Over the stand-in driver, for host and GPU memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <csignal>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/agents.h"
#include "tests/support/blocks.h"
#include "tests/support/cuda_driver/hooks.h"
#include "tests/support/gpu_stream.h"
#include "tests/support/kv_nodes.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"
#include "tests/support/test_peer.h"

namespace kvxfer::testing {
namespace {

using cuda_driver::FindHooks;
using namespace cuda::api;  // NOLINT(google-build-using-namespace): the driver's own names
using std::chrono::milliseconds;

const Shape kStreamShape{.block_bytes = 4096, .ids = 64};

// `a` has content that `b` has not.
class StreamTest : public ::testing::Test {
 protected:
  virtual Flavour flavour() const { return TcpFlavour(); }
  void SetUp() override {
    if (!UsesGpu()) GTEST_SKIP() << "needs the stand-in CUDA driver";
    default_uses_ = FindHooks()->kvxfer_standin_default_stream_uses();
    ASSERT_OK_AND_ASSIGN(pair_, Pair::Create(flavour(), 2 * kMiB));
    Pattern(1).Fill(pair_.a.memory.bytes());
  }
  void TearDown() override {
    if (!UsesGpu()) return;
    FindHooks()->kvxfer_standin_fail_none();
    EXPECT_EQ(FindHooks()->kvxfer_standin_default_stream_uses(), default_uses_);
  }

  absl::StatusOr<Transfer> Write(const TransferOptions& options) {
    return BlockSet(kStreamShape, pair_.a.memory.address(), pair_.b.memory.address())
        .Write(*pair_.a.agent, "b", options);
  }
  absl::StatusOr<Transfer> ReadBack(const TransferOptions& options) {
    return BlockSet(kStreamShape, pair_.b.memory.address(), pair_.a.memory.address())
        .Read(*pair_.b.agent, "a", options);
  }
  bool Arrived(Side side) {
    return kvxfer::testing::AllArrived(kStreamShape, side, 1, pair_.b.memory.bytes());
  }
  // What is posted now begins, and is done: whatever was posted before could have begun too.
  absl::Status PassBy(Agent& agent, std::string_view peer) {
    for (int i = 0; i < 3; ++i) {
      auto other = agent.Notify(peer, "by", Unhurried(NotifyOrder::kAnyOrder));
      if (!other.ok()) return other.status();
      if (auto status = other->Wait(kAmple); !status.ok()) return status;
    }
    return absl::OkStatus();
  }
  static TransferOptions After(const GpuStream& stream) {
    TransferOptions options = Unhurried();
    options.after = stream;
    return options;
  }

  uint64_t default_uses_ = 0;  // of the legacy default stream, which kvxfer is not to use
  Pair pair_;
};

class AgentCudaStream : public StreamTest, public ::testing::WithParamInterface<Flavour> {
 protected:
  Flavour flavour() const override { return GetParam(); }
};

std::vector<Flavour> Flavours() {
  std::vector<Flavour> all = PlainFlavours();
  std::ranges::move(StagedFlavours(), std::back_inserter(all));
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, AgentCudaStream, ::testing::ValuesIn(Flavours()), FlavourName);

TEST_P(AgentCudaStream, AWriteWaitsForWhatIsInTheStream) {
  GpuStream stream;
  stream.Hold();
  // The source is there only then.
  pair_.a.memory.Clear();
  stream.Put([this] { Pattern(1).Fill(pair_.a.memory.bytes()); });
  ASSERT_OK_AND_ASSIGN(const Transfer transfer, Write(After(stream)));
  ASSERT_OK(PassBy(*pair_.a.agent, "b"));
  EXPECT_EQ(transfer.Poll(), TransferState::kActive);
  EXPECT_EQ(FirstNonZero(pair_.b.memory.bytes()), kNoMismatch);
  stream.LetGo();
  // What comes after it is not waited for.
  stream.Hold();
  ASSERT_OK(transfer.Wait(kAmple));
  EXPECT_TRUE(Arrived(Side::kRemote));
}

TEST_P(AgentCudaStream, AReadWaitsForWhatIsInTheStream) {
  GpuStream stream;
  stream.Hold();
  // What reads the old content still runs.
  size_t old = 0;
  stream.Put([&] { old = FirstNonZero(pair_.b.memory.bytes()); });
  ASSERT_OK_AND_ASSIGN(const Transfer transfer, ReadBack(After(stream)));
  ASSERT_OK(PassBy(*pair_.b.agent, "a"));
  EXPECT_EQ(transfer.Poll(), TransferState::kActive);
  stream.LetGo();
  ASSERT_OK(transfer.Wait(kAmple));
  EXPECT_EQ(old, kNoMismatch);
  EXPECT_TRUE(Arrived(Side::kLocal));
}

// No host waits between: each transfer for the stream, the stream for each transfer.
TEST_P(AgentCudaStream, TransfersAndWorkTakeTurns) {
  GpuStream stream;
  stream.Hold();
  std::vector<Transfer> transfers;
  std::vector<int> order;
  constexpr int kTurns = 10;
  for (int i = 0; i < kTurns; ++i) {
    stream.Put([&, i] { order.push_back(i); });
    ASSERT_OK_AND_ASSIGN(transfers.emplace_back(),
                         i % 2 == 0 ? Write(After(stream)) : ReadBack(After(stream)));
    ASSERT_OK(transfers.back().StreamWait(stream));
    stream.Put([&, i] {
      if (transfers[static_cast<size_t>(i)].Poll() == TransferState::kDone)
        order.push_back(100 + i);
    });
  }
  stream.LetGo();
  ASSERT_TRUE(stream.Finish());
  for (const Transfer& transfer : transfers) EXPECT_OK(transfer.status());
  ASSERT_EQ(order.size(), 2u * kTurns);
  for (int i = 0; i < kTurns; ++i) {
    EXPECT_EQ(order[static_cast<size_t>(2 * i)], i);
    EXPECT_EQ(order[static_cast<size_t>(2 * i) + 1], 100 + i);
  }
}

std::vector<Flavour> GpuMemoryFlavours() {
  std::vector<Flavour> all = Flavours();
  std::erase_if(all, [](const Flavour& one) { return one.memory != MemoryType::kCuda; });
  return all;
}

class AgentCudaStreamMemory : public AgentCudaStream {};
INSTANTIATE_TEST_SUITE_P(All, AgentCudaStreamMemory, ::testing::ValuesIn(GpuMemoryFlavours()),
                         FlavourName);

// What a kernel of decode would: it runs right behind the wait, and finds the bytes.
TEST_P(AgentCudaStreamMemory, WhatFollowsInTheStreamSeesTheBytes) {
  GpuStream stream;
  ASSERT_OK_AND_ASSIGN(TestMemory seen, TestMemory::Allocate(MemoryType::kCuda, 2 * kMiB));
  ASSERT_OK_AND_ASSIGN(const Transfer transfer, ReadBack(Unhurried()));
  ASSERT_OK(transfer.StreamWait(stream));
  stream.PutCopy(seen.address(), pair_.b.memory.address(), seen.size());
  ASSERT_TRUE(stream.Finish());
  ASSERT_OK(transfer.status());
  EXPECT_TRUE(kvxfer::testing::AllArrived(kStreamShape, Side::kLocal, 1, seen.bytes()));
}

using AgentCudaStreamHost = StreamTest;

TEST_F(AgentCudaStreamHost, AnEventOfTheApplicationIsWaitedFor) {
  GpuStream stream;
  GpuEvent event;
  stream.Hold();
  event.Record(stream);
  TransferOptions options = Unhurried();
  options.after_event = event.handle();
  ASSERT_OK_AND_ASSIGN(const Transfer transfer, Write(options));
  ASSERT_OK(PassBy(*pair_.a.agent, "b"));
  EXPECT_EQ(transfer.Poll(), TransferState::kActive);
  stream.LetGo();
  ASSERT_OK(transfer.Wait(kAmple));
  EXPECT_TRUE(Arrived(Side::kRemote));
}

TEST_F(AgentCudaStreamHost, ANotificationWaitsToo) {
  GpuStream stream;
  stream.Hold();
  TransferOptions options = After(stream);
  options.order = NotifyOrder::kAnyOrder;
  ASSERT_OK_AND_ASSIGN(const Transfer transfer, pair_.a.agent->Notify("b", "late", options));
  ASSERT_OK(PassBy(*pair_.a.agent, "b"));
  EXPECT_EQ(transfer.Poll(), TransferState::kActive);
  stream.LetGo();
  ASSERT_OK(transfer.Wait(kAmple));
  std::string last;
  while (auto told = pair_.b.agent->PollNotification()) last = told->payload;
  EXPECT_EQ(last, "late");
}

// Those behind it in the stream wait, others do not; and the driver is not asked for each.
TEST_F(AgentCudaStreamHost, ManyWaitInOneStream) {
  GpuStream stream;
  stream.Hold();
  std::vector<Transfer> waiting;
  for (int i = 0; i < 100; ++i) {
    TransferOptions options = After(stream);
    options.priority = i % 3;
    ASSERT_OK_AND_ASSIGN(waiting.emplace_back(), Write(options));
  }
  ASSERT_OK(PassBy(*pair_.a.agent, "b"));
  const uint64_t before = FindHooks()->kvxfer_standin_calls("cuEventQuery");
  const Time begun = Now();
  std::this_thread::sleep_for(milliseconds(50));
  // Asked for at most every 20 us, one of each priority.
  const auto most = static_cast<uint64_t>((Now() - begun) / std::chrono::microseconds(20) * 3 + 10);
  EXPECT_LE(FindHooks()->kvxfer_standin_calls("cuEventQuery") - before, most);
  for (const Transfer& transfer : waiting) EXPECT_EQ(transfer.Poll(), TransferState::kActive);
  stream.LetGo();
  for (const Transfer& transfer : waiting) EXPECT_OK(transfer.Wait(kAmple));
}

TEST_F(AgentCudaStreamHost, WaitingForAStreamCostsLittle) {
  if (kSlow) GTEST_SKIP() << "measures processor time";
  GpuStream stream;
  stream.Hold();
  ASSERT_OK_AND_ASSIGN(const Transfer transfer, Write(After(stream)));
  const auto used = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const auto of = [](const timeval& t) {
      return std::chrono::seconds(t.tv_sec) + std::chrono::microseconds(t.tv_usec);
    };
    return Milliseconds(of(usage.ru_utime) + of(usage.ru_stime));
  };
  const double before = used();
  const Time begun = Now();
  std::this_thread::sleep_for(milliseconds(300));
  EXPECT_LT(used() - before, 0.5 * Milliseconds(Now() - begun));
  EXPECT_EQ(transfer.Poll(), TransferState::kActive);
}

TEST_F(AgentCudaStreamHost, AGroupWaitsForOneStream) {
  const KvModel model{.layers = 4, .heads = 4, .k_size = 16, .v_size = 16};
  const KvPlace from{.ids = {5, 0, 3}, .tokens = 48};
  const KvPlace to{.ids = {1, 4, 6}, .tokens = 48};
  ASSERT_OK_AND_ASSIGN(KvNodes a, KvNodes::Create(flavour(), "p", model, {.tp = 1}));
  ASSERT_OK_AND_ASSIGN(KvNodes b, KvNodes::Create(flavour(), "d", model, {.tp = 4}));
  ASSERT_OK(Introduce(a, b));
  GpuStream stream;
  stream.Hold();
  stream.Put([&] { a.ranks[0]->Fill(from, 1); });
  cuda_driver::LiveObjects before;
  FindHooks()->kvxfer_standin_live(&before);
  const KvBlocks blocks{
      .cache = CacheName("kv"), .local_ids = from.ids, .remote_ids = to.ids, .tokens = 48};
  ASSERT_OK_AND_ASSIGN(
      const Transfer transfer,
      a.ranks[0]->agent().WriteBlocks(
          b.names, blocks,
          {.request = RequestName("r"), .transfer = {.deadline = kAmple, .after = stream}}));
  cuda_driver::LiveObjects during;
  FindHooks()->kvxfer_standin_live(&during);
  EXPECT_LE(during.events, before.events + 1)
      << "one for all ranks, which may be one that was kept";
  ASSERT_OK(transfer.StreamWait(stream));
  stream.PutCount();
  for (const std::string& rank : b.names) ASSERT_OK(PassBy(a.ranks[0]->agent(), rank));
  EXPECT_EQ(transfer.Poll(), TransferState::kActive);
  EXPECT_EQ(stream.ran(), 0);
  stream.LetGo();
  ASSERT_TRUE(stream.Finish());
  ASSERT_OK(transfer.status());
  for (const auto& rank : b.ranks) EXPECT_TRUE(rank->Holds(to, 1));
  FindHooks()->kvxfer_standin_live(&during);
  EXPECT_LE(during.events, before.events + 1);
}

TEST_F(AgentCudaStreamHost, WhatCannotBeWaitedForIsRefusedAtOnce) {
  TransferOptions options = Unhurried();
  options.after = CudaStream{.handle = 0xdead00c0};
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_TRUE(Fails(Write(options), kInvalid, {"CUDA stream 0xdead00c0"}));
  options.after.reset();
  options.after_event = 0xdead00c0;
  EXPECT_TRUE(Fails(Write(options), kInvalid, {"CUDA event 0xdead00c0"}));
  ASSERT_OK_AND_ASSIGN(const Transfer done, Write(Unhurried()));
  ASSERT_OK(done.Wait(kAmple));
  std::atomic<uint32_t> ready{0};
  options = Unhurried();
  options.ready = &ready;
  ASSERT_OK_AND_ASSIGN(const Transfer held, Write(options));
  EXPECT_TRUE(Fails(held.StreamWait(CudaStream{.handle = 0xdead00c0}), kInvalid, {"0xdead00c0"}));
  EXPECT_TRUE(Fails(Transfer().StreamWait({}), absl::StatusCode::kFailedPrecondition));
  ready = 1;
  EXPECT_OK(held.Wait(kAmple));
}

// Each way in which a transfer ends while it waits for a stream.
TEST_F(AgentCudaStreamHost, EndsWhileItWaits) {
  GpuStream stream;
  stream.Hold();
  TransferOptions options = After(stream);
  options.deadline = Bound(milliseconds(50));
  ASSERT_OK_AND_ASSIGN(const Transfer late, Write(options));
  EXPECT_TRUE(
      Fails(late.Wait(kAmple), absl::StatusCode::kDeadlineExceeded, {"CUDA stream", "after"}));
  ASSERT_OK_AND_ASSIGN(const Transfer unwanted, Write(After(stream)));
  unwanted.Cancel();
  EXPECT_TRUE(Fails(unwanted.Wait(kAmple), absl::StatusCode::kCancelled));
  FindHooks()->kvxfer_standin_fail("cuEventQuery", 1, CUDA_ERROR_UNKNOWN);
  ASSERT_OK_AND_ASSIGN(const Transfer broken, Write(After(stream)));
  ASSERT_OK_AND_ASSIGN(const Transfer behind, Write(After(stream)));
  EXPECT_TRUE(Fails(broken.Wait(kAmple), absl::StatusCode::kInternal,
                    {"to peer b", "CUDA event", "CUDA_ERROR_UNKNOWN"}));
  EXPECT_EQ(broken.Poll(), TransferState::kFailed);
  EXPECT_EQ(behind.Poll(), TransferState::kActive);
  EXPECT_EQ(FirstNonZero(pair_.b.memory.bytes()), kNoMismatch);
  stream.LetGo();
  EXPECT_OK(behind.Wait(kAmple));
}

// Streams that wait for a transfer which ends in some way: by themselves, or by a thread.
class AgentCudaStreamEnd : public StreamTest, public ::testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    StreamTest::SetUp();
    if (!UsesGpu()) return;
    SetStreamValues(GetParam());
    for (int i = 0; i < 3; ++i) streams_.push_back(std::make_unique<GpuStream>(i % 2));
  }
  void TearDown() override {
    if (UsesGpu()) SetStreamValues(true);
    StreamTest::TearDown();
  }
  static void SetStreamValues(bool can) {
    constexpr int kAttribute = CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS;
    for (int device = 0; device < 2; ++device) {
      FindHooks()->kvxfer_standin_set_attribute(device, kAttribute, can ? 1 : 0);
    }
  }

  TransferOptions Held(Duration deadline = kAmple) {
    TransferOptions options = Unhurried();
    options.ready = &ready_;
    options.deadline = deadline;
    return options;
  }
  // All streams wait for it, and none comes further.
  void MakeWait(const Transfer& transfer) {
    GpuStream free;
    for (const auto& stream : streams_) {
      ASSERT_OK(transfer.StreamWait(*stream));
      stream->PutCount();
    }
    free.PutCount();
    ASSERT_TRUE(free.Finish());
    for (const auto& stream : streams_) EXPECT_EQ(stream->ran(), 0);
  }
  void ExpectThrough(const Transfer& transfer, TransferState state) {
    for (const auto& stream : streams_) {
      EXPECT_TRUE(stream->Finish());
      EXPECT_EQ(stream->ran(), 1);
    }
    EXPECT_EQ(transfer.Poll(), state);
    // Nothing is put into a stream for one that has ended.
    const uint64_t calls = FindHooks()->kvxfer_standin_calls(nullptr);
    EXPECT_OK(transfer.StreamWait(*streams_[0]));
    EXPECT_EQ(FindHooks()->kvxfer_standin_calls(nullptr), calls);
  }

  std::atomic<uint32_t> ready_{0};
  std::vector<std::unique_ptr<GpuStream>> streams_;
};

INSTANTIATE_TEST_SUITE_P(, AgentCudaStreamEnd, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "ByGpu" : "ByThread"; });

TEST_P(AgentCudaStreamEnd, Done) {
  ASSERT_OK_AND_ASSIGN(const Transfer transfer, Write(Held()));
  MakeWait(transfer);
  ready_ = 1;
  ExpectThrough(transfer, TransferState::kDone);
  EXPECT_TRUE(Arrived(Side::kRemote));
}

TEST_P(AgentCudaStreamEnd, Failed) {
  GpuStream before;
  before.Hold();
  ASSERT_OK_AND_ASSIGN(const Transfer transfer, Write(After(before)));
  MakeWait(transfer);
  FindHooks()->kvxfer_standin_fail("cuEventQuery", 1, CUDA_ERROR_UNKNOWN);
  ExpectThrough(transfer, TransferState::kFailed);
}

TEST_P(AgentCudaStreamEnd, Cancelled) {
  ASSERT_OK_AND_ASSIGN(const Transfer transfer, Write(Held()));
  MakeWait(transfer);
  transfer.Cancel();
  ExpectThrough(transfer, TransferState::kCancelled);
}

TEST_P(AgentCudaStreamEnd, ByDeadline) {
  ASSERT_OK_AND_ASSIGN(const Transfer transfer, Write(Held(Bound(milliseconds(300)))));
  MakeWait(transfer);
  ExpectThrough(transfer, TransferState::kDeadlineExceeded);
}

TEST_P(AgentCudaStreamEnd, PeerRemoved) {
  ASSERT_OK_AND_ASSIGN(const Transfer transfer, Write(Held()));
  MakeWait(transfer);
  ASSERT_OK(pair_.a.agent->RemovePeer("b"));
  ExpectThrough(transfer, TransferState::kCancelled);
}

TEST_P(AgentCudaStreamEnd, AgentDestroyed) {
  ASSERT_OK_AND_ASSIGN(const Transfer transfer, Write(Held()));
  MakeWait(transfer);
  pair_.a.agent.reset();
  ExpectThrough(transfer, TransferState::kCancelled);
}

// Nobody holds the transfer, and nobody drives.
TEST_P(AgentCudaStreamEnd, HandleLetGo) {
  {
    ASSERT_OK_AND_ASSIGN(const Transfer transfer, Write(Held()));
    MakeWait(transfer);
  }
  ready_ = 1;
  for (const auto& stream : streams_) EXPECT_TRUE(stream->Finish());
}

TEST_P(AgentCudaStreamEnd, PeerKilled) {
  ASSERT_OK_AND_ASSIGN(const auto peer, TestPeer::Start(Where::kProcess));
  ASSERT_OK(peer->Create(OptionsFor(flavour(), "c"), flavour().memory, 2 * kMiB));
  ASSERT_OK(Introduce(*pair_.a.agent, *peer));
  ASSERT_OK_AND_ASSIGN(const uint64_t remote, peer->MemoryAddress());
  const BlockSet blocks(kStreamShape, pair_.a.memory.address(), remote);
  // So that there is a connection to lose.
  ASSERT_OK_AND_ASSIGN(const Transfer first, blocks.Write(*pair_.a.agent, "c", Unhurried()));
  ASSERT_OK(first.Wait(kAmple));
  ASSERT_OK_AND_ASSIGN(const Transfer transfer, blocks.Write(*pair_.a.agent, "c", Held()));
  MakeWait(transfer);
  peer->process().Signal(SIGKILL);
  ExpectThrough(transfer, TransferState::kFailed);
}

// Memory of a peer that has died is closed, for which the driver may wait for every stream, while a
// stream waits for what the agent does afterwards.
class AgentCudaStreamIpc : public AgentCudaStreamEnd {
 protected:
  Flavour flavour() const override { return CudaIpcFlavour(); }
  // To a peer whose memory is open here.
  void SetUp() override {
    AgentCudaStreamEnd::SetUp();
    if (!UsesGpu()) return;
    ASSERT_OK_AND_ASSIGN(peer_, TestPeer::Start(Where::kProcess));
    ASSERT_OK(peer_->Create(OptionsFor(flavour(), "c"), MemoryType::kCuda, 2 * kMiB));
    ASSERT_OK(Introduce(*pair_.a.agent, *peer_));
    ASSERT_OK_AND_ASSIGN(remote_, peer_->MemoryAddress());
    ASSERT_OK_AND_ASSIGN(const Transfer first, WriteTo(Unhurried()));
    ASSERT_OK(first.Wait(kAmple));
    EXPECT_EQ(first.stats().path, "cuda_ipc");
  }
  absl::StatusOr<Transfer> WriteTo(const TransferOptions& options) {
    return BlockSet(kStreamShape, pair_.a.memory.address(), remote_)
        .Write(*pair_.a.agent, "c", options);
  }
  static uint64_t Mappings() {
    cuda_driver::LiveObjects live;
    FindHooks()->kvxfer_standin_live(&live);
    return live.ipc_mappings;
  }

  std::unique_ptr<TestPeer> peer_;
  uint64_t remote_ = 0;
};

INSTANTIATE_TEST_SUITE_P(, AgentCudaStreamIpc, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "ByGpu" : "ByThread"; });

TEST_P(AgentCudaStreamIpc, PeerKilled) {
  EXPECT_EQ(Mappings(), 1u);
  ASSERT_OK_AND_ASSIGN(const Transfer transfer, WriteTo(Held()));
  MakeWait(transfer);
  peer_->process().Signal(SIGKILL);
  ExpectThrough(transfer, TransferState::kFailed);
  EXPECT_TRUE(Eventually(kAmple, [&] { return Mappings() == 0; }));
}

// Each with a word of its own, used again and again; in several streams at the same time.
TEST_P(AgentCudaStreamEnd, Many) {
  constexpr int kRounds = 20;
  for (int round = 0; round < Scaled(kRounds); ++round) {
    std::vector<Transfer> transfers;
    ready_ = 0;
    for (int i = 0; i < 20; ++i) {
      ASSERT_OK_AND_ASSIGN(transfers.emplace_back(), Write(i % 2 == 0 ? Held() : Unhurried()));
      for (const auto& stream : streams_) {
        ASSERT_OK(transfers.back().StreamWait(*stream));
        stream->Put(
            [transfer = transfers.back()] { EXPECT_NE(transfer.Poll(), TransferState::kActive); });
      }
    }
    if (round % 2 == 0) transfers[0].Cancel();
    ready_ = 1;
    for (const auto& stream : streams_) ASSERT_TRUE(stream->Finish());
  }
}

}  // namespace
}  // namespace kvxfer::testing
