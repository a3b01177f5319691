// Ops that go through staging buffers: what is asked of the target, when the child begins, what an
// op that ends early leaves behind. The test plays the owner of the transfers and the target.
#include "src/agent/staging/stager.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/core/protocol/stage_lender.h"
#include "tests/support/pattern.h"
#include "tests/unit/agent/session/fake_peer.h"
#include "tests/unit/backends/cuda_ipc/util.h"

namespace kvxfer::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class StagerTest : public ::testing::Test, public FakePeer, private StagerUser {
 protected:
  static constexpr auto kBroken = absl::StatusCode::kInvalidArgument;
  static constexpr uint64_t kLentBase = uint64_t{1} << 32;  // the peer's staging memory

  explicit StagerTest(Arrival arrival = Arrival::kImmediate) {
    Both("tcp").capabilities_now().arrival = arrival;
    MakeRegions();
    metadata_.regions.push_back({.region = {.id = RegionId{9},
                                            .base = kLentBase,
                                            .bytes = Staging::kMinBytes,
                                            .access = Access::kReadWrite},
                                 .staging = true});
    regions_.Learn(metadata_);
  }

  // A transfer whose ops go to the stager. The remote region is GPU memory that no backend reaches.
  Outbound& Begin(TransferKind kind, uint64_t id = 1) {
    auto record = std::make_shared<internal::TransferRecord>();
    Plan(*record, MemoryKind::kHost);
    record->kind = kind;
    record->id = id;
    Outbound& outbound = outbounds_.Add();
    outbound.record = std::move(record);
    outbound.link = link_.link.get();
    return outbound;
  }
  // Posts one op of it. 0: the stager did not accept it.
  uint64_t Post(Outbound& outbound) {
    const uint64_t op = runtime_.ops.Acquire(&outbound);
    if (stager_.Post(outbound, op, {.view = &view_, .bytes = kBytes, .pieces = 1})) return op;
    runtime_.ops.Release(op);
    return 0;
  }
  // The same once the target has lent a buffer.
  void PostLent(Outbound& outbound) {
    if (Post(outbound) == 0) {
      Lend({0});
      EXPECT_NE(Post(outbound), 0u);
    }
    Frames();
  }
  absl::Status TryLend(std::vector<uint32_t> buffers) {
    return stager_.OnLend({.buffers = std::move(buffers)});
  }
  void Lend(std::vector<uint32_t> buffers) { ASSERT_OK(TryLend(std::move(buffers))); }
  // Begins what is due; the child that began last.
  uint64_t BeginChild() {
    EXPECT_TRUE(stager_.Begin());
    return children_.empty() ? 0 : children_.back()->id;
  }
  void EndChild(uint64_t child, TransferState state = TransferState::kDone,
                bool quarantined = false, bool lent_in_use = false) {
    stager_.OnChildEnd(
        child,
        {.state = state,
         .status = state == TransferState::kDone ? absl::OkStatus()
                                                 : absl::AbortedError("the child failed"),
         .quarantined = quarantined},
        lent_in_use);
  }
  absl::Status Answer(uint64_t child, bool good = true) {
    return stager_.OnStaged({.transfer = child, .good = good, .why = good ? "" : "no P2P"});
  }
  // What the user was told, op by op.
  std::vector<absl::StatusCode> Ends() {
    stager_.TellEnds();
    return std::exchange(ends_, {});
  }
  // The types of frames to the target.
  std::vector<FrameType> Frames() {
    std::vector<FrameType> types;
    while (const std::string* message = channel_.NextToSend()) {
      const auto envelope = DecodeEnvelope(std::as_bytes(std::span(*message)));
      types.push_back(envelope->type);
      if (envelope->type == FrameType::kStage) stage_ = *Decode<StageFrame>(envelope->body);
      if (envelope->type == FrameType::kStageBack) {
        back_ = Decode<StageBackFrame>(envelope->body)->buffers;
      }
      channel_.MessageSent();
    }
    return types;
  }

  StagedMemory local_{kHostRegion, {.data = memory_[0].data(), .bytes = kBytes}};
  StagedKey remote_{77, false};
  Block block_{.local = reinterpret_cast<uint64_t>(memory_[0].data()),
               .remote = 0x20000,
               .bytes = kBytes,
               .local_region = 0,
               .remote_region = 0};
  std::array<const Registration*, 1> registrations_{&local_};
  std::array<const RemoteKey*, 1> keys_{&remote_};
  const BlockView view_{
      .descriptors = {&block_, 1}, .registrations = registrations_, .keys = keys_};

  FakeLink link_;
  OutboundList outbounds_;
  ReliableChannel channel_;
  absl::Status begins_{};  // what BeginChild returns
  std::vector<TransferPtr> children_;
  std::vector<uint64_t> ended_children_;
  std::vector<TransferPtr> settled_;
  StageFrame stage_{};
  std::vector<uint32_t> back_;
  Stager stager_{this, &runtime_, &channel_, &regions_};

 private:
  absl::Status BeginChild(const TransferPtr& child, Link* link) override {
    EXPECT_EQ(link, link_.link.get());
    if (begins_.ok()) children_.push_back(child);
    return begins_;
  }
  void EndChild(uint64_t child, const absl::Status& /*why*/, Time /*give_up*/) override {
    ended_children_.push_back(child);
  }
  void OnMoved() override { ++moved_; }
  void OnStaged(uint64_t op, const absl::Status& status) override {
    runtime_.ops.Release(op);
    ends_.push_back(status.code());
  }
  void OnSettled(const TransferPtr& whole) override { settled_.push_back(whole); }

  std::vector<absl::StatusCode> ends_;

 protected:
  int moved_ = 0;  // times that it was told so
};

class CopiedStagerTest : public StagerTest {
 protected:
  CopiedStagerTest() : StagerTest(Arrival::kCopied) {}
};

constexpr auto kOpDone = absl::StatusCode::kOk;

TEST_F(StagerTest, AWriteWaitsForALentBufferAndTheTargetsCopy) {
  Outbound& write = Begin(TransferKind::kWrite);
  EXPECT_EQ(Post(write), 0u);
  EXPECT_EQ(Post(write), 0u);
  EXPECT_THAT(Frames(), ElementsAre(FrameType::kStageAsk)) << "asked once";
  Lend({1});
  EXPECT_NE(Post(write), 0u);
  const uint64_t child = BeginChild();
  ASSERT_NE(child, 0u);
  // Expect the child in the lent buffer, and the target to know beforehand what to copy where.
  EXPECT_TRUE(children_[0]->child);
  EXPECT_EQ(children_[0]->blocks.total_bytes(), kBytes);
  EXPECT_THAT(Frames(), ElementsAre(FrameType::kStage));
  EXPECT_EQ(stage_.when, StageWhen::kScatterLater);
  EXPECT_EQ(stage_.buffer, 1u);
  EXPECT_EQ(stage_.runs.at(0), (StageRun{.address = 0x20000, .bytes = kBytes, .rkey = 77}));
  EndChild(child);
  EXPECT_THAT(Ends(), IsEmpty()) << "the target has not copied";
  ASSERT_OK(Answer(child));
  EXPECT_THAT(Ends(), ElementsAre(kOpDone));
  EXPECT_NE(Post(write), 0u) << "the lent buffer is free";
}

// The target sees no arrival of the child there, so it is told after the child.
TEST_F(CopiedStagerTest, WhereTheInitiatorCopiesTheTargetIsAskedAfterwards) {
  PostLent(Begin(TransferKind::kWrite));
  const uint64_t child = BeginChild();
  EXPECT_THAT(Frames(), IsEmpty());
  EndChild(child);
  EXPECT_THAT(Frames(), ElementsAre(FrameType::kStage));
  EXPECT_EQ(stage_.when, StageWhen::kScatter);
  ASSERT_OK(Answer(child));
  EXPECT_THAT(Ends(), ElementsAre(kOpDone));
}

TEST_F(StagerTest, TheAnswerMayOvertakeTheEndOfTheChild) {
  PostLent(Begin(TransferKind::kWrite));
  const uint64_t child = BeginChild();
  ASSERT_OK(Answer(child));
  EXPECT_THAT(Ends(), IsEmpty()) << "the child's ops are in flight";
  EndChild(child);
  EXPECT_THAT(Ends(), ElementsAre(kOpDone));
}

TEST_F(StagerTest, OfAReadTheTargetCopiesFirst) {
  Outbound& read = Begin(TransferKind::kRead);
  EXPECT_EQ(Post(read), 0u);
  Lend({0});
  EXPECT_NE(Post(read), 0u);
  Frames();
  EXPECT_EQ(stage_.when, StageWhen::kGather);
  EXPECT_EQ(BeginChild(), 0u);
  ASSERT_OK(Answer(stage_.transfer));
  EXPECT_EQ(BeginChild(), stage_.transfer);
  EXPECT_TRUE(children_.back()->from_lent);
  EndChild(stage_.transfer);
  EXPECT_THAT(Ends(), ElementsAre(kOpDone));
}

// Out of the buffer of a read that was stopped the target may still send. Expect nothing to use it
// meanwhile; the application's memory is quiet.
TEST_F(StagerTest, ALentBufferIsUsedAgainOnceTheTargetSendsNothingOutOfIt) {
  Outbound& read = Begin(TransferKind::kRead);
  PostLent(read);
  ASSERT_OK(Answer(stage_.transfer));
  const uint64_t child = BeginChild();
  EndChild(child, TransferState::kCancelled, false, true);
  EXPECT_THAT(Ends(), ElementsAre(absl::StatusCode::kAborted));
  EXPECT_FALSE(stager_.Outstanding(read.record));
  EXPECT_EQ(Post(read), 0u);
  stager_.OnChildQuiet(child, false);
  EXPECT_THAT(settled_, IsEmpty()) << "it was settled all the time";
  EXPECT_NE(Post(read), 0u);
}

TEST_F(StagerTest, WhatTheTargetCannotCopyFailsTheOp) {
  for (const TransferKind kind : {TransferKind::kWrite, TransferKind::kRead}) {
    Outbound& outbound = Begin(kind);
    PostLent(outbound);
    if (kind == TransferKind::kWrite) EndChild(BeginChild());
    Frames();
    ASSERT_OK(Answer(stage_.transfer, false));
    EXPECT_THAT(Ends(), ElementsAre(absl::StatusCode::kFailedPrecondition));
    EXPECT_FALSE(stager_.begins());
  }
}

TEST_F(StagerTest, ATargetThatSpeaksOutOfTurnIsRefused) {
  EXPECT_TRUE(Fails(TryLend({0}), kBroken, {"nobody asked"}));
  Outbound& write = Begin(TransferKind::kWrite);
  const auto lends_wrongly = [&](std::vector<uint32_t> buffers) {
    EXPECT_EQ(Post(write), 0u);
    return Fails(TryLend(std::move(buffers)), kBroken, {"lends staging buffer"});
  };
  EXPECT_TRUE(lends_wrongly({4})) << "it has four";
  EXPECT_TRUE(lends_wrongly({3, 3}));
  EXPECT_NE(Post(write), 0u);
  const uint64_t child = BeginChild();
  ASSERT_OK(Answer(child));
  EXPECT_TRUE(Fails(Answer(child), kBroken, {"twice"}));
  EXPECT_OK(Answer(12345)) << "an op that is over";
}

TEST_F(StagerTest, BuffersThatOthersWaitForGoBack) {
  Outbound& write = Begin(TransferKind::kWrite);
  EXPECT_EQ(Post(write), 0u);
  Lend({0, 1, 2});
  EXPECT_NE(Post(write), 0u);
  Frames();
  stager_.OnRecall();
  EXPECT_THAT(Frames(), IsEmpty()) << "what waits is offered first";
  stager_.GiveBackRecalled();
  EXPECT_THAT(Frames(), ElementsAre(FrameType::kStageBack));
  EXPECT_THAT(back_, ElementsAre(0, 1));
  const uint64_t child = BeginChild();
  Frames();
  EndChild(child);
  ASSERT_OK(Answer(child));
  EXPECT_THAT(Frames(), ElementsAre(FrameType::kStageBack)) << "as soon as it is free";
  EXPECT_THAT(back_, ElementsAre(2));
  EXPECT_EQ(Post(write), 0u);
  EXPECT_THAT(Frames(), ElementsAre(FrameType::kStageAsk));
}

TEST_F(StagerTest, AChildWaitsForWordOfTheRegion) {
  PostLent(Begin(TransferKind::kWrite));
  begins_ = absl::UnavailableError("not known yet");
  EXPECT_FALSE(stager_.Begin());
  EXPECT_THAT(Ends(), IsEmpty());
  begins_ = absl::FailedPreconditionError("deregistered");
  EXPECT_TRUE(stager_.Begin());
  EXPECT_THAT(Ends(), ElementsAre(absl::StatusCode::kFailedPrecondition));
}

TEST_F(StagerTest, WithoutAConnectionNoChildBegins) {
  Outbound& write = Begin(TransferKind::kWrite);
  PostLent(write);
  write.link = nullptr;
  EXPECT_TRUE(stager_.Begin());
  EXPECT_THAT(Ends(), ElementsAre(absl::StatusCode::kAborted));
}

TEST_F(StagerTest, CancelEndsAnOpAsSoonAsItCan) {
  const absl::Status why = absl::CancelledError("no more");
  Outbound& due = Begin(TransferKind::kWrite);
  PostLent(due);
  stager_.Cancel(due, why, now_);
  EXPECT_THAT(Ends(), ElementsAre(absl::StatusCode::kCancelled));
  EXPECT_FALSE(stager_.begins());

  Outbound& begun = Begin(TransferKind::kWrite, 2);
  PostLent(begun);
  const uint64_t child = BeginChild();
  stager_.Cancel(begun, why, now_);
  EXPECT_THAT(ended_children_, ElementsAre(child));
  EXPECT_THAT(Ends(), IsEmpty()) << "the child has not ended";
  EndChild(child, TransferState::kCancelled);
  EXPECT_THAT(Ends(), ElementsAre(absl::StatusCode::kCancelled));
}

// Expect a transfer whose time is up to be told at once, and settled when its child is over.
TEST_F(StagerTest, AnAbandonedOpSettlesLater) {
  Outbound& write = Begin(TransferKind::kWrite);
  const TransferPtr whole = write.record;
  PostLent(write);
  const uint64_t child = BeginChild();
  EXPECT_EQ(stager_.Abandon(write), 1u);
  EXPECT_TRUE(stager_.Outstanding(whole));
  EndChild(child, TransferState::kCancelled);
  EXPECT_THAT(settled_, ElementsAre(whole));
  EXPECT_FALSE(stager_.unsettled());
  EXPECT_THAT(Ends(), IsEmpty());
}

TEST_F(StagerTest, AbandoningCountsEndsThatWereNotTold) {
  Outbound& write = Begin(TransferKind::kWrite);
  PostLent(write);
  stager_.Cancel(write, absl::CancelledError("no more"), now_);
  ASSERT_TRUE(stager_.has_ends());
  EXPECT_EQ(stager_.Abandon(write), 1u);
  EXPECT_THAT(Ends(), IsEmpty());
  EXPECT_FALSE(stager_.unsettled());
}

// Expect nobody to get a buffer into which bytes may still come.
TEST_F(StagerTest, AQuarantinedChildKeepsItsLentBuffer) {
  Outbound& write = Begin(TransferKind::kWrite);
  PostLent(write);
  const uint64_t child = BeginChild();
  EndChild(child, TransferState::kFailed, true);
  EXPECT_THAT(Ends(), ElementsAre(absl::StatusCode::kAborted));
  EXPECT_TRUE(stager_.Outstanding(write.record));
  EXPECT_EQ(Post(write), 0u);
  stager_.OnChildQuiet(child, false);
  EXPECT_THAT(settled_, ElementsAre(write.record));
  EXPECT_NE(Post(write), 0u);
}

// All bytes are at the target, which was told to copy them: until it has, they may still move.
TEST_F(StagerTest, AndWaitsForTheTargetsCopyOfWhatArrived) {
  Outbound& write = Begin(TransferKind::kWrite);
  PostLent(write);
  const uint64_t child = BeginChild();
  EndChild(child, TransferState::kFailed, true);
  stager_.OnChildQuiet(child, true);
  EXPECT_THAT(settled_, IsEmpty());
  ASSERT_OK(Answer(child));
  EXPECT_THAT(settled_, ElementsAre(write.record));
}

TEST_F(StagerTest, ALostSessionAnswersNothingMore) {
  Outbound& write = Begin(TransferKind::kWrite);
  PostLent(write);
  EndChild(BeginChild());
  Outbound& read = Begin(TransferKind::kRead, 2);
  EXPECT_EQ(Post(read), 0u);
  Lend({2});
  EXPECT_NE(Post(read), 0u);
  stager_.OnSessionEnd();
  EXPECT_THAT(Ends(), ElementsAre(absl::StatusCode::kUnavailable, absl::StatusCode::kUnavailable));
  // Of the write the target may still be copying; of the read nothing can move here.
  EXPECT_TRUE(stager_.Outstanding(write.record));
  EXPECT_FALSE(stager_.Outstanding(read.record));
  Frames();
  EXPECT_EQ(Post(write), 0u) << "what was lent is void";
  EXPECT_THAT(Frames(), ElementsAre(FrameType::kStageAsk));
  stager_.OnQuiet();
  EXPECT_THAT(settled_, ElementsAre(write.record));
}

// Over the stand-in driver: this side's memory is a GPU's, and the backend reaches the other side.
class CudaStager : public StagerTest {
 public:
  ~CudaStager() override { runtime_.staging.Close(); }

 protected:
  CudaStager() {
    EXPECT_OK(runtime_.staging.Open(0));
    auto span = cuda::Examine(gpu_.span());
    EXPECT_OK(span);
    runtime_.staging.AddRegion(kCudaRegion, *std::move(span));
    // The children's own side: staging memory is a region like others.
    auto added = runtime_.memory.Add(
        runtime_.memory.Make(runtime_.staging.span(), Access::kReadWrite, runtime_.backends),
        runtime_.backends, {.is_staging = true});
    EXPECT_OK(added);
    runtime_.memory.Publish({&*added, 1});
    registrations_[0] = &on_gpu_;
    keys_[0] = &reached_;
    block_.local = gpu_.at();
    block_.remote = 0x10000;
  }
  bool Moved() {
    return Eventually(kAmple, [&] {
      runtime_.staging.Poll();
      return !stager_.moving();
    });
  }
  static std::byte* OwnOf(const TransferPtr& child) {
    return reinterpret_cast<std::byte*>(child->blocks.View({}, {}).descriptors[0].local);
  }

  GpuMemory gpu_ = GpuMemory::Plain(kBytes);
  StagedMemory on_gpu_{kCudaRegion, gpu_.span()};
  StagedKey reached_{78, true};
};

TEST_F(CudaStager, AWriteGathersFirst) {
  Pattern(1).Fill(gpu_.bytes());
  Outbound& write = Begin(TransferKind::kWrite);
  EXPECT_NE(Post(write), 0u);
  EXPECT_TRUE(stager_.moving());
  EXPECT_EQ(BeginChild(), 0u) << "nothing leaves before the copy is over";
  ASSERT_TRUE(Moved());
  EXPECT_EQ(moved_, 1);
  const uint64_t child = BeginChild();
  ASSERT_NE(child, 0u);
  EXPECT_EQ(Pattern(1).Mismatch({OwnOf(children_[0]), kBytes}), kNoMismatch);
  EXPECT_THAT(Frames(), IsEmpty()) << "the target has nothing to copy";
  EndChild(child);
  EXPECT_THAT(Ends(), ElementsAre(kOpDone));
}

TEST_F(CudaStager, AReadScattersLast) {
  Outbound& read = Begin(TransferKind::kRead);
  EXPECT_NE(Post(read), 0u);
  const uint64_t child = BeginChild();
  Pattern(2).Fill({OwnOf(children_[0]), kBytes});
  EndChild(child);
  EXPECT_THAT(Ends(), IsEmpty());
  ASSERT_TRUE(Moved());
  EXPECT_THAT(Ends(), ElementsAre(kOpDone));
  EXPECT_EQ(Pattern(2).Mismatch(gpu_.bytes()), kNoMismatch);
}

// Expect a peer that makes no progress not to keep the buffers of the others.
TEST_F(CudaStager, AQuarterOfTheOwnBuffersForOnePeer) {
  Outbound& write = Begin(TransferKind::kWrite);
  size_t ops = 0;
  while (Post(write) != 0) ++ops;
  EXPECT_EQ(ops, std::max(1u, runtime_.staging.lent_buffers() / 4));
  EXPECT_TRUE(runtime_.own_buffer_wanted);
  ASSERT_TRUE(Moved());
  EXPECT_FALSE(runtime_.own_buffer_freed);
  EndChild(BeginChild());
  EXPECT_TRUE(runtime_.own_buffer_freed);
  EXPECT_NE(Post(write), 0u);
  ASSERT_TRUE(Moved());
}

TEST_F(CudaStager, ACancelledOpEndsAfterItsCopy) {
  Outbound& write = Begin(TransferKind::kWrite);
  EXPECT_NE(Post(write), 0u);
  stager_.Cancel(write, absl::CancelledError("no more"), now_);
  EXPECT_THAT(Ends(), IsEmpty()) << "a GPU copies into its buffer";
  ASSERT_TRUE(Moved());
  EXPECT_THAT(Ends(), ElementsAre(absl::StatusCode::kCancelled));
}

// The peer's staging memory is mapped here, and what it answers is gathered and scattered there.
class DirectStager : public CudaStager {
 protected:
  DirectStager() {
    endpoint().imports_as = absl::OkStatus();
    endpoint().mapped = {.data = peers_.data(), .mapping = std::make_shared<int>()};
    endpoint().hold = std::make_shared<CopyHold>();
    keys_[0] = &beyond_;
  }
  FakeEndpoint& endpoint() { return static_cast<FakeEndpoint&>(*link_.link->endpoint); }
  // The first op, for which nothing is lent yet, has the peer's buffers pinned.
  void Open(Outbound& outbound) {
    EXPECT_EQ(Post(outbound), 0u);
    ASSERT_NE(link_.link->stage, nullptr);
    ASSERT_TRUE(Eventually(kAmple, [&] { return link_.link->stage->open(); }));
    Lend({1, 2});
    Frames();
  }
  std::span<std::byte> Lent(uint32_t buffer) {
    return {peers_.data() + buffer * Staging::kBufferBytes, kBytes};
  }
  bool held() { return endpoint().hold.use_count() > 1; }

  HostBuffer peers_ = *HostBuffer::Allocate(Staging::kMinBytes);
  StagedKey beyond_{79, false};
};

TEST_F(DirectStager, AWriteGoesStraightIntoTheLentBuffer) {
  Outbound& write = Begin(TransferKind::kWrite);
  Open(write);
  Pattern(1).Fill(gpu_.bytes());
  EXPECT_NE(Post(write), 0u);
  EXPECT_TRUE(stager_.moving());
  EXPECT_TRUE(held());
  EXPECT_THAT(Frames(), IsEmpty()) << "the bytes are not there";
  ASSERT_TRUE(Moved());
  EXPECT_FALSE(held());
  EXPECT_THAT(Frames(), ElementsAre(FrameType::kStage));
  EXPECT_EQ(stage_.when, StageWhen::kScatter);
  EXPECT_EQ(Pattern(1).Mismatch(Lent(stage_.buffer)), kNoMismatch);
  EXPECT_EQ(BeginChild(), 0u);
  EXPECT_THAT(Ends(), IsEmpty());
  ASSERT_OK(Answer(stage_.transfer));
  EXPECT_THAT(Ends(), ElementsAre(kOpDone));
}

TEST_F(DirectStager, AReadComesStraightOutOfTheLentBuffer) {
  Open(Begin(TransferKind::kWrite));
  Outbound& read = Begin(TransferKind::kRead, 2);
  EXPECT_NE(Post(read), 0u);
  EXPECT_THAT(Frames(), ElementsAre(FrameType::kStage));
  EXPECT_EQ(stage_.when, StageWhen::kGather);
  EXPECT_FALSE(held()) << "a peer that does not answer must be able to go";
  Pattern(2).Fill(Lent(stage_.buffer));
  ASSERT_OK(Answer(stage_.transfer));
  EXPECT_TRUE(stager_.moving());
  EXPECT_TRUE(held());
  ASSERT_TRUE(Moved());
  EXPECT_EQ(BeginChild(), 0u);
  EXPECT_THAT(Ends(), ElementsAre(kOpDone));
  EXPECT_EQ(Pattern(2).Mismatch(gpu_.bytes()), kNoMismatch);
}

TEST_F(DirectStager, UntilThePeersBuffersArePinnedTheWireIsTaken) {
  StandInHooks().kvxfer_standin_fail("cuMemHostRegister_v2", 1,
                                     cuda::api::CUDA_ERROR_OUT_OF_MEMORY);
  Outbound& write = Begin(TransferKind::kWrite);
  EXPECT_EQ(Post(write), 0u);
  Lend({1});
  const uint64_t asked = StandInHooks().kvxfer_standin_calls("cuMemHostRegister_v2");
  EXPECT_TRUE(Eventually(kAmple, [&] {
    return StandInHooks().kvxfer_standin_calls("cuMemHostRegister_v2") >= asked;
  }));
  EXPECT_NE(Post(write), 0u);
  EXPECT_FALSE(held());
  ASSERT_TRUE(Moved());
  EXPECT_NE(BeginChild(), 0u);
  StandInHooks().kvxfer_standin_fail_none();
}

// It needs none of this agent's own, of which one peer gets few.
TEST_F(DirectStager, ADirectOpHasNoOwnBuffer) {
  Outbound& write = Begin(TransferKind::kWrite);
  Open(write);
  EXPECT_NE(Post(write), 0u);
  EXPECT_NE(Post(write), 0u);
  EXPECT_FALSE(runtime_.own_buffer_wanted);
  EXPECT_EQ(Post(write), 0u) << "two were lent";
  ASSERT_TRUE(Moved());
}

TEST_F(DirectStager, OverAConnectionThatClosesNoneBegins) {
  Outbound& write = Begin(TransferKind::kWrite);
  Open(write);
  Outbound& read = Begin(TransferKind::kRead, 2);
  EXPECT_NE(Post(read), 0u);
  Frames();
  endpoint().hold = nullptr;
  ASSERT_OK(Answer(stage_.transfer));
  EXPECT_THAT(Ends(), ElementsAre(absl::StatusCode::kAborted));
  EXPECT_NE(Post(write), 0u);
  ASSERT_TRUE(Moved());
  EXPECT_NE(BeginChild(), 0u) << "over the wire";
}

TEST_F(DirectStager, TheSessionEndsWhileTheGpuCopies) {
  Outbound& write = Begin(TransferKind::kWrite);
  Open(write);
  StandInHooks().kvxfer_standin_pause(1);
  EXPECT_NE(Post(write), 0u);
  stager_.OnSessionEnd();
  EXPECT_THAT(Ends(), IsEmpty());
  EXPECT_TRUE(held()) << "the target must not use its buffer meanwhile";
  StandInHooks().kvxfer_standin_pause(0);
  ASSERT_TRUE(Moved());
  EXPECT_FALSE(held());
  EXPECT_THAT(Ends(), ElementsAre(absl::StatusCode::kUnavailable));
  EXPECT_THAT(Frames(), IsEmpty());
}

TEST_F(DirectStager, ACancelledWriteIsNotTold) {
  Outbound& write = Begin(TransferKind::kWrite);
  Open(write);
  StandInHooks().kvxfer_standin_pause(1);
  EXPECT_NE(Post(write), 0u);
  stager_.Cancel(write, absl::CancelledError("no more"), now_);
  EXPECT_THAT(Ends(), IsEmpty());
  StandInHooks().kvxfer_standin_pause(0);
  ASSERT_TRUE(Moved());
  EXPECT_THAT(Ends(), ElementsAre(absl::StatusCode::kCancelled));
  EXPECT_THAT(Frames(), IsEmpty());
  EXPECT_NE(Post(write), 0u);
  EXPECT_NE(Post(write), 0u) << "both buffers are free";
  ASSERT_TRUE(Moved());
}

// The GPU's context broke, and what it had begun may still write.
TEST_F(DirectStager, ABufferInDoubtIsNotUsedAgain) {
  Outbound& write = Begin(TransferKind::kWrite);
  Open(write);
  StandInHooks().kvxfer_standin_pause(1);
  EXPECT_NE(Post(write), 0u);
  endpoint().hold->doubt = true;
  stager_.Cancel(write, absl::CancelledError("no more"), now_);
  StandInHooks().kvxfer_standin_pause(0);
  ASSERT_TRUE(Moved());
  EXPECT_THAT(Ends(), ElementsAre(absl::StatusCode::kCancelled));
  EXPECT_NE(Post(write), 0u);
  EXPECT_EQ(Post(write), 0u) << "one of two is left";
  ASSERT_TRUE(Moved());
  EXPECT_THAT(back_, IsEmpty());
}

}  // namespace
}  // namespace kvxfer::testing
