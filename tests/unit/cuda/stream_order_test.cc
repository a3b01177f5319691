// What transfers wait for in streams, and what streams wait for: by itself, over the stand-in
// driver.
#include "src/cuda/stream_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "src/cuda/event_pool.h"
#include "src/cuda/stream_word.h"
#include "tests/support/cuda_driver/hooks.h"
#include "tests/support/gpu_stream.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"
#include "tests/unit/cuda/test_util.h"

namespace kvxfer::testing {
namespace {

using cuda::ContextScope;
using cuda::PointPoll;
using cuda::StreamPoint;
using cuda::StreamWord;
using cuda::WaitInStream;
using cuda_driver::FindHooks;
using namespace cuda::api;  // NOLINT(google-build-using-namespace): the driver's own names

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
using Point = std::shared_ptr<StreamPoint>;

class CudaStreamOrder : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!UsesGpu()) GTEST_SKIP() << "needs the stand-in CUDA driver";
    hooks_ = FindHooks();
    default_uses_ = hooks_->kvxfer_standin_default_stream_uses();
  }
  void TearDown() override {
    if (hooks_ == nullptr) return;
    hooks_->kvxfer_standin_fail_none();
    SetStreamValues(true);
    EXPECT_EQ(hooks_->kvxfer_standin_default_stream_uses(), default_uses_);
  }

  const cuda::Driver& driver() const { return **cuda::Driver::Get(); }
  void SetStreamValues(bool can) {
    constexpr int kAttribute = CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS;
    ASSERT_EQ(hooks_->kvxfer_standin_set_attribute(0, kAttribute, can ? 1 : 0), CUDA_SUCCESS);
  }
  uint64_t LiveEvents() const {
    cuda_driver::LiveObjects live;
    hooks_->kvxfer_standin_live(&live);
    return live.events;
  }
  uint64_t Calls(const char* name) const { return hooks_->kvxfer_standin_calls(name); }

  // As an engine does, in a round of its own.
  static absl::StatusOr<bool> Ask(StreamPoint& point) {
    PointPoll poll;
    poll.BeginRound(Now() + std::chrono::hours(1));
    return poll.Passed(point);
  }
  static bool IsPassed(StreamPoint& point) { return Ask(point).value_or(false); }

  const cuda_driver::Hooks* hooks_ = nullptr;
  uint64_t default_uses_ = 0;
};

TEST_F(CudaStreamOrder, NothingToWaitForIsNoPoint) {
  ASSERT_OK_AND_ASSIGN(const Point point, StreamPoint::Take(std::nullopt, 0));
  EXPECT_EQ(point, nullptr);
}

TEST_F(CudaStreamOrder, APointIsPassedWhenWhatWasBeforeItIsOver) {
  GpuStream stream;
  const uint64_t events = LiveEvents();
  stream.Hold();
  ASSERT_OK_AND_ASSIGN(const Point point, StreamPoint::Take(stream, 0));
  EXPECT_LE(LiveEvents(), events + 1);
  EXPECT_FALSE(IsPassed(*point));
  stream.LetGo();
  // What comes after it is not waited for.
  stream.Hold();
  EXPECT_TRUE(Eventually(kAmple, [&] { return IsPassed(*point); }));
  EXPECT_FALSE(stream.Idle());
  EXPECT_TRUE(point->passed());
}

// Its event serves the next point, although what was recorded in it is still ahead.
TEST_F(CudaStreamOrder, APointThatIsGivenUpLeavesItsEventToTheNext) {
  GpuStream held;
  GpuStream stream;
  held.Hold();
  { ASSERT_OK_AND_ASSIGN(const Point point, StreamPoint::Take(held, 0)); }
  const uint64_t events = LiveEvents();
  for (int i = 0; i < 100; ++i) {
    ASSERT_OK_AND_ASSIGN(const Point point, StreamPoint::Take(i % 2 == 0 ? held : stream, 0));
    if (i % 2 == 0) continue;
    EXPECT_TRUE(Eventually(kAmple, [&] { return IsPassed(*point); }));
  }
  EXPECT_EQ(LiveEvents(), events);
}

TEST_F(CudaStreamOrder, EventsBeyondWhatIsKeptAreDestroyed) {
  constexpr uint64_t kMost = cuda::EventPool::kMostKept;
  GpuStream stream;
  const uint64_t events = LiveEvents();
  std::vector<Point> points;
  for (uint64_t i = 0; i < kMost + 100; ++i) {
    ASSERT_OK_AND_ASSIGN(points.emplace_back(), StreamPoint::Take(stream, 0));
  }
  hooks_->kvxfer_standin_fail("cuEventCreate", 1, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_TRUE(
      Fails(StreamPoint::Take(stream, 0), absl::StatusCode::kResourceExhausted, {"cuEventCreate"}));
  hooks_->kvxfer_standin_fail_none();
  points.clear();
  EXPECT_LE(LiveEvents(), events + kMost);
  // Those of a device that the application has reset exist no more: none of them is kept.
  hooks_->kvxfer_standin_fail("cuEventRecord", 1, CUDA_ERROR_INVALID_HANDLE);
  EXPECT_TRUE(Fails(StreamPoint::Take(stream, 0), kInvalid, {"cuEventRecord"}));
  EXPECT_LE(LiveEvents(), events);
  EXPECT_OK(StreamPoint::Take(stream, 0));
}

// Each call of the real driver takes some 0.1 to 2 us, and these are what a transfer that waits for
// a CUDA stream, or that a CUDA stream waits for, costs more than another.
TEST_F(CudaStreamOrder, CostsFewCallsOfTheDriver) {
  GpuStream stream;
  const auto calls = [&](const auto& what) {
    const uint64_t before = hooks_->kvxfer_standin_calls(nullptr);
    what();
    return hooks_->kvxfer_standin_calls(nullptr) - before;
  };
  Point point;
  const auto take = [&] { point = StreamPoint::Take(stream, 0).value(); };
  const auto ask = [&] { EXPECT_TRUE(IsPassed(*point)); };
  std::optional<StreamWord> word = StreamWord::Take().value();
  const StreamWord::Name set = word->name();
  word.reset();
  const auto wait = [&] { EXPECT_OK(WaitInStream(stream, set)); };
  take();  // what is made once
  wait();
  for (const bool current : {false, true}) {
    SCOPED_TRACE(current);
    cuda::LeaveContexts();
    if (current) driver().calls().cuCtxPushCurrent_v2(driver().Context(0).value());
    point = nullptr;
    EXPECT_LE(calls(take), current ? 4u : 6u);
    ASSERT_TRUE(stream.Finish());
    EXPECT_LE(calls(ask), current ? 4u : 6u);
    EXPECT_LE(calls(wait), current ? 4u : 6u);
  }
  cuda::LeaveContexts();
}

TEST_F(CudaStreamOrder, AnEventOfTheApplicationIsWaitedForAndLeftAlone) {
  GpuStream stream;
  GpuEvent event;
  stream.Hold();
  event.Record(stream);
  const uint64_t events = LiveEvents();
  ASSERT_OK_AND_ASSIGN(const Point point, StreamPoint::Take(std::nullopt, event.handle()));
  EXPECT_FALSE(IsPassed(*point));
  stream.LetGo();
  EXPECT_TRUE(Eventually(kAmple, [&] { return IsPassed(*point); }));
  EXPECT_EQ(LiveEvents(), events);
  ASSERT_OK_AND_ASSIGN(const Point over, StreamPoint::Take(std::nullopt, event.handle()));
  EXPECT_TRUE(over->passed());
}

TEST_F(CudaStreamOrder, BothAreWaitedFor) {
  GpuStream first;
  GpuStream second;
  GpuEvent event;
  first.Hold();
  second.Hold();
  event.Record(second);
  ASSERT_OK_AND_ASSIGN(const Point point, StreamPoint::Take(first, event.handle()));
  first.LetGo();
  ASSERT_TRUE(first.Finish());
  EXPECT_FALSE(IsPassed(*point));
  second.LetGo();
  EXPECT_TRUE(Eventually(kAmple, [&] { return IsPassed(*point); }));
}

TEST_F(CudaStreamOrder, ADefaultStreamIsTheApplicationsChoice) {
  const CudaStream legacy{.handle = 1, .device = 0};
  ASSERT_OK_AND_ASSIGN(const Point point, StreamPoint::Take(legacy, 0));
  EXPECT_TRUE(Eventually(kAmple, [&] { return IsPassed(*point); }));
  EXPECT_GT(hooks_->kvxfer_standin_default_stream_uses(), default_uses_);
  default_uses_ = hooks_->kvxfer_standin_default_stream_uses();
  // That of the thread, in the context that is current: the application said no device.
  const ContextScope current(driver(), 1);
  ASSERT_OK_AND_ASSIGN(const Point own, StreamPoint::Take(CudaStream{.handle = 2}, 0));
  EXPECT_TRUE(Eventually(kAmple, [&] { return IsPassed(*own); }));
}

TEST_F(CudaStreamOrder, TheDeviceIsThatOfTheStream) {
  GpuStream stream(1);
  stream.Hold();
  CudaStream any = stream;
  any.device = -1;
  ASSERT_OK_AND_ASSIGN(const Point point, StreamPoint::Take(any, 0));
  EXPECT_FALSE(IsPassed(*point));
  stream.LetGo();
  EXPECT_TRUE(Eventually(kAmple, [&] { return IsPassed(*point); }));
}

TEST_F(CudaStreamOrder, WhatIsNoStreamIsRefused) {
  cuda::LeaveContexts();
  GpuStream stream(1);
  CudaStream wrong = stream;
  wrong.device = 0;
  EXPECT_TRUE(Fails(StreamPoint::Take(wrong, 0), kInvalid, {"of GPU 1", "of GPU 0", "-1"}));
  EXPECT_TRUE(Fails(StreamPoint::Take(CudaStream{.handle = 0xdead00c0}, 0), kInvalid,
                    {"CUDA stream 0xdead00c0", "no stream of this process"}));
  EXPECT_TRUE(Fails(StreamPoint::Take(CudaStream{.handle = 1, .device = 99}, 0), kInvalid,
                    {"no CUDA device 99"}));
  EXPECT_TRUE(Fails(StreamPoint::Take(CudaStream{.handle = 2}, 0), kInvalid,
                    {"default stream", "CudaStream::device"}));
  CudaStream gone;
  {
    GpuStream other;
    gone = other;
  }
  EXPECT_TRUE(Fails(StreamPoint::Take(gone, 0), kInvalid, {"was destroyed"}));
  ASSERT_OK_AND_ASSIGN(const StreamWord word, StreamWord::Take());
  EXPECT_TRUE(Fails(WaitInStream(gone, word.name()), kInvalid, {"was destroyed"}));
}

TEST_F(CudaStreamOrder, WhatIsNoEventIsRefused) {
  GpuEvent event;
  const uint64_t handle = event.handle();
  event.Destroy();
  EXPECT_TRUE(Fails(StreamPoint::Take(std::nullopt, handle), kInvalid,
                    {"CUDA event 0x", "cannot be waited for"}));
}

// A graph that the application captures, whatever kvxfer asks meanwhile, is not spoilt, and no
// transfer becomes a part of it.
TEST_F(CudaStreamOrder, ACaptureIsLeftAlone) {
  GpuStream captured;
  GpuStream other;
  other.Hold();
  ASSERT_OK_AND_ASSIGN(const Point before, StreamPoint::Take(other, 0));
  ASSERT_EQ(hooks_->kvxfer_standin_capture(captured.handle(), 1), CUDA_SUCCESS);
  EXPECT_FALSE(IsPassed(*before));
  ASSERT_OK_AND_ASSIGN(const Point during, StreamPoint::Take(other, 0));
  ASSERT_OK_AND_ASSIGN(std::optional<StreamWord> word, StreamWord::Take());
  EXPECT_OK(WaitInStream(other, word->name()));
  EXPECT_TRUE(Fails(StreamPoint::Take(captured, 0), kInvalid, {"captured into a CUDA graph"}));
  EXPECT_TRUE(
      Fails(WaitInStream(captured, word->name()), kInvalid, {"captured into a CUDA graph"}));
  EXPECT_FALSE(IsPassed(*during));
  EXPECT_EQ(hooks_->kvxfer_standin_capture(captured.handle(), 0), CUDA_SUCCESS);
  word.reset();
  // What the driver says of the legacy default stream while another stream is being captured.
  hooks_->kvxfer_standin_fail("cuStreamIsCapturing", 1, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_TRUE(Fails(StreamPoint::Take(other, 0), kInvalid,
                    {"captured into a CUDA graph", "post it, and wait for it, outside"}));
}

TEST_F(CudaStreamOrder, TheCallersContextAndCaptureModeAreLeftAlone) {
  // As the application makes one current: not by a scope, within which others change nothing.
  ASSERT_OK_AND_ASSIGN(CUcontext before, driver().Context(1));
  ASSERT_EQ(driver().calls().cuCtxPushCurrent_v2(before), CUDA_SUCCESS);
  GpuStream stream;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
  driver().calls().cuThreadExchangeStreamCaptureMode(&mode);
  ASSERT_OK_AND_ASSIGN(const Point point, StreamPoint::Take(stream, 0));
  EXPECT_TRUE(Eventually(kAmple, [&] { return IsPassed(*point); }));
  driver().calls().cuThreadExchangeStreamCaptureMode(&mode);
  EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  CUcontext after = nullptr;
  driver().calls().cuCtxPopCurrent_v2(&after);
  EXPECT_EQ(after, before);
}

// Of those in one stream the first is asked for, of others each; and none again at once.
TEST_F(CudaStreamOrder, ThePollAsksSeldom) {
  GpuStream stream;
  GpuStream other;
  stream.Hold();
  other.Hold();
  std::vector<Point> points;
  for (int i = 0; i < 8; ++i) {
    ASSERT_OK_AND_ASSIGN(points.emplace_back(), StreamPoint::Take(stream, 0));
  }
  ASSERT_OK_AND_ASSIGN(points.emplace_back(), StreamPoint::Take(other, 0));
  PointPoll poll;
  const Time begun = Now();
  const auto round = [&](Time now) {
    const uint64_t before = Calls("cuEventQuery");
    poll.BeginRound(now);
    for (int turn = 0; turn < 3; ++turn) {
      for (const Point& point : points) EXPECT_FALSE(*poll.Passed(*point));
    }
    return Calls("cuEventQuery") - before;
  };
  EXPECT_EQ(poll.next(), Time::max());
  EXPECT_EQ(round(begun), 2u);
  // How long they have waited by now, and so how soon it is, is the machine's affair.
  EXPECT_LE(poll.next() - begun, PointPoll::kSeldom);
  EXPECT_GT(poll.next(), begun);
  EXPECT_EQ(round(begun + Duration(1)), 0u);
  EXPECT_EQ(round(begun + PointPoll::kSeldom), 2u);
  // What takes long is asked for less often.
  const Time late = begun + std::chrono::seconds(1);
  EXPECT_EQ(round(late), 2u);
  EXPECT_EQ(poll.next(), late + PointPoll::kSeldom);
  stream.LetGo();
  other.LetGo();
  ASSERT_TRUE(stream.Finish() && other.Finish());
  poll.BeginRound(Now() + std::chrono::hours(1));
  for (const Point& point : points) EXPECT_TRUE(*poll.Passed(*point));
  EXPECT_EQ(poll.next(), Time::max());
}

// Asked for in whatever order, a point behind another one is known in time.
TEST_F(CudaStreamOrder, ThePollMindsTheOrderInTheStream) {
  GpuStream stream;
  ASSERT_OK_AND_ASSIGN(const Point first, StreamPoint::Take(stream, 0));
  ASSERT_TRUE(stream.Finish());
  stream.Hold();
  ASSERT_OK_AND_ASSIGN(const Point second, StreamPoint::Take(stream, 0));
  PointPoll poll;
  poll.BeginRound(Now());
  EXPECT_FALSE(*poll.Passed(*second));
  EXPECT_TRUE(*poll.Passed(*first));
}

// The default streams of two GPUs have one handle and are two streams.
TEST_F(CudaStreamOrder, DefaultStreamsOfTwoGpusDoNotWaitForEachOther) {
  std::atomic<bool> go{false};
  const auto legacy = [](int device) { return CudaStream{.handle = 1, .device = device}; };
  {
    const ContextScope scope(driver(), 0);
    const CUhostFn wait = [](void* flag) { static_cast<std::atomic<bool>*>(flag)->wait(false); };
    ASSERT_EQ(driver().calls().cuLaunchHostFunc(reinterpret_cast<CUstream>(1), wait, &go),
              CUDA_SUCCESS);
  }
  ASSERT_OK_AND_ASSIGN(const Point held, StreamPoint::Take(legacy(0), 0));
  ASSERT_OK_AND_ASSIGN(const Point other, StreamPoint::Take(legacy(1), 0));
  PointPoll poll;
  EXPECT_TRUE(Eventually(kAmple, [&] {
    poll.BeginRound(Now() + std::chrono::hours(1));
    return !poll.Passed(*held).value_or(true) && poll.Passed(*other).value_or(false);
  }));
  go = true;
  go.notify_all();
  EXPECT_TRUE(Eventually(kAmple, [&] { return IsPassed(*held); }));
  default_uses_ = hooks_->kvxfer_standin_default_stream_uses();
}

TEST_F(CudaStreamOrder, AnErrorIsToldWithItsCause) {
  GpuStream stream;
  stream.Hold();
  ASSERT_OK_AND_ASSIGN(const Point point, StreamPoint::Take(stream, 0));
  hooks_->kvxfer_standin_fail("cuEventQuery", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_TRUE(Fails(Ask(*point), absl::StatusCode::kInternal,
                    {"CUDA event that it waits for", "CUDA_ERROR_UNKNOWN"}));
}

TEST_F(CudaStreamOrder, EachCallThatFailsIsAnErrorThatLeavesNothing) {
  GpuStream stream;
  const auto all = [&]() -> absl::Status {
    const auto point = StreamPoint::Take(stream, 0);
    if (!point.ok()) return point.status();
    if (auto asked = Ask(**point); !asked.ok()) return asked.status();
    const auto word = StreamWord::Take();
    if (!word.ok()) return word.status();
    return WaitInStream(stream, word->name());
  };
  for (const char* const call : cuda_driver::kCalls) {
    const uint64_t before = Calls(call);
    ASSERT_OK(all());
    if (Calls(call) == before) continue;
    const uint64_t events = LiveEvents();
    hooks_->kvxfer_standin_fail(call, 1, CUDA_ERROR_OUT_OF_MEMORY);
    const absl::Status status = all();
    EXPECT_TRUE(status.ok() || absl::StrContains(status.message(), "OUT_OF_MEMORY"))
        << call << ": " << status;
    // What restores the thread, or lets go of something, may fail without harm.
    const bool harmless = std::string_view(call).starts_with("cuGetError") ||
                          std::string_view(call) == "cuCtxGetCurrent" ||  // it is pushed then
                          std::string_view(call) == "cuCtxPopCurrent_v2" ||
                          std::string_view(call) == "cuEventDestroy_v2" ||
                          std::string_view(call) == "cuThreadExchangeStreamCaptureMode";
    EXPECT_EQ(status.ok(), harmless) << call;
    if (std::string_view(call) == "cuCtxPopCurrent_v2") {
      CUcontext left = nullptr;
      driver().calls().cuCtxPopCurrent_v2(&left);
    }
    if (std::string_view(call) != "cuEventDestroy_v2") {
      EXPECT_LE(LiveEvents(), events) << call;
    }
    hooks_->kvxfer_standin_fail_none();
    ASSERT_OK(all()) << call;
  }
}

class CudaStreamWord : public CudaStreamOrder, public ::testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    CudaStreamOrder::SetUp();
    if (hooks_ != nullptr) SetStreamValues(GetParam());
  }
  const char* TheCall() const { return GetParam() ? "cuStreamWaitValue32_v2" : "cuLaunchHostFunc"; }
};

INSTANTIATE_TEST_SUITE_P(, CudaStreamWord, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "ByGpu" : "ByThread"; });

TEST_P(CudaStreamWord, AStreamWaitsUntilItIsSet) {
  GpuStream first;
  GpuStream second(1);
  GpuStream free;
  ASSERT_OK_AND_ASSIGN(std::optional<StreamWord> word, StreamWord::Take());
  const uint64_t before = Calls(TheCall());
  ASSERT_OK(WaitInStream(first, word->name()));
  EXPECT_EQ(Calls(TheCall()), before + 1);
  ASSERT_OK(WaitInStream(second, word->name()));
  for (GpuStream* stream : {&first, &second, &free}) stream->PutCount();
  ASSERT_TRUE(free.Finish());
  EXPECT_EQ(free.ran(), 1);
  EXPECT_EQ(first.ran() + second.ran(), 0);
  word.reset();
  ASSERT_TRUE(first.Finish() && second.Finish());
  EXPECT_EQ(first.ran() + second.ran(), 2);
}

TEST_P(CudaStreamWord, OneThatIsSetIsNotWaitedFor) {
  GpuStream stream;
  StreamWord::Name name;
  {
    ASSERT_OK_AND_ASSIGN(const StreamWord word, StreamWord::Take());
    name = word.name();
  }
  ASSERT_OK(WaitInStream(stream, name));
  stream.PutCount();
  ASSERT_TRUE(stream.Finish());
}

// More of them than there are words, one after the other, while a stream has still to come to the
// first: it passes.
TEST_P(CudaStreamWord, IsUsedAgainBehindAStreamThatIsLate) {
  GpuStream stream;
  stream.Hold();
  std::optional<StreamWord::Name> first;
  constexpr int kUses = 3 * static_cast<int>(StreamWord::kMost);
  int again = 0;
  for (int i = 0; i < kUses; ++i) {
    ASSERT_OK_AND_ASSIGN(const StreamWord word, StreamWord::Take());
    if (!first.has_value()) {
      first = word.name();
      ASSERT_OK(WaitInStream(stream, word.name()));
    } else if (word.name().index == first->index) {
      ++again;
      EXPECT_NE(word.name().value, first->value);
    }
  }
  EXPECT_GT(again, 0);
  // In use by somebody else at the time when the stream looks.
  std::vector<StreamWord> words;
  while (words.empty() || words.back().name().index != first->index) {
    auto word = StreamWord::Take();
    ASSERT_OK(word);
    words.push_back(*std::move(word));
  }
  stream.LetGo();
  EXPECT_TRUE(stream.Finish());
}

TEST_P(CudaStreamWord, ThereIsABound) {
  std::vector<StreamWord> words;
  absl::Status status;
  while (status.ok() && words.size() <= StreamWord::kMost) {
    auto word = StreamWord::Take();
    status = word.status();
    if (word.ok()) words.push_back(*std::move(word));
  }
  EXPECT_TRUE(Fails(status, absl::StatusCode::kResourceExhausted, {"16384", "wait for some"}));
  words.pop_back();
  EXPECT_OK(StreamWord::Take());
}

// A child that lets go of what it has inherited does not set the parent's words.
TEST_P(CudaStreamWord, AForkedChildLeavesThemAlone) {
  GpuStream stream;
  GpuStream held;
  held.Hold();
  ASSERT_OK_AND_ASSIGN(Point point, StreamPoint::Take(held, 0));
  ASSERT_OK_AND_ASSIGN(std::optional<StreamWord> word, StreamWord::Take());
  ASSERT_OK(WaitInStream(stream, word->name()));
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    word.reset();
    point.reset();
    _exit(absl::IsFailedPrecondition(StreamWord::Take().status()) ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(stream.Idle());
  EXPECT_FALSE(IsPassed(*point));
  word.reset();
  EXPECT_TRUE(stream.Finish());
}

}  // namespace
}  // namespace kvxfer::testing
