// cuda_ipc within one process: what it takes, how it copies, stops and ends.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "src/backends/cuda_ipc/copy_queue.h"
#include "tests/support/pattern.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"
#include "tests/unit/backends/cuda_ipc/util.h"

namespace kvxfer::testing {
namespace {

using namespace cuda::api;  // NOLINT(google-build-using-namespace): the driver's own names
using std::chrono::milliseconds;

// A pair, with memory at both sides.
struct Joined {
  GpuMemory from;
  GpuMemory to;
  std::unique_ptr<BackendPair> pair = BackendPair::Make(CudaIpcFlavour());
  GpuRegion local;
  GpuRegion remote;
  std::unique_ptr<RemoteKey> key;

  Joined(GpuMemory source, GpuMemory target) : from(std::move(source)), to(std::move(target)) {}
  explicit Joined(size_t bytes) : Joined(GpuMemory::Plain(bytes), GpuMemory::Plain(bytes)) {}
  ~Joined() { key.reset(); }

  absl::Status Open() {
    auto here = RegisterGpu(pair->initiator().backend(), from.span(), 1);
    if (!here.ok()) return here.status();
    local = *std::move(here);
    auto there = RegisterGpu(pair->target().backend(), to.span(), 1);
    if (!there.ok()) return there.status();
    remote = *std::move(there);
    auto imported = pair->TryImport(remote.remote(), remote.key());
    if (!imported.ok()) return imported.status();
    key = *std::move(imported);
    return absl::OkStatus();
  }
  TestLink& out() { return pair->out(); }
  Op Make(OpKind kind, uint64_t transfer, uint64_t offset, uint64_t bytes) {
    return out().Make(kind, transfer, {RunOf(local, remote.remote(), key.get(), offset, bytes)});
  }
  // One op of all, and how it ended.
  absl::Status Move(OpKind kind) { return Do(Make(kind, 1, 0, from.size())); }
  absl::Status Do(const Op& op) {
    if (!pair->PostAll({&op, 1})) return absl::DeadlineExceededError("not taken");
    if (!pair->Until([&] { return out().ended.contains(op.id); })) {
      return absl::DeadlineExceededError("not ended");
    }
    return out().ended[op.id];
  }
};

// Streams begin nothing while this is there.
struct Paused {
  Paused() { StandInHooks().kvxfer_standin_pause(1); }
  ~Paused() { Go(); }
  void Go() { StandInHooks().kvxfer_standin_pause(0); }
};

TEST(CudaIpcBackend, RefusesWhatNoOtherProcessCanBeGiven) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Party> party, Party::Make(CudaIpcFlavour(), "a"));
  Backend& backend = party->backend();
  const auto refused = [&](const GpuMemory& memory, const char* kind, const char* remedy) {
    return Fails(RegisterGpu(backend, memory.span(), 1), absl::StatusCode::kFailedPrecondition,
                 {kind, remedy});
  };
  EXPECT_TRUE(refused(GpuMemory::Pool(kKiB), "pool", "cudaMalloc"));
  EXPECT_TRUE(refused(GpuMemory::Managed(kKiB), "managed", "cudaMalloc"));
  EXPECT_TRUE(refused(GpuMemory::Virtual(1, CU_MEM_HANDLE_TYPE_NONE), "cuMemCreate",
                      "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR"));
  std::byte host[64];
  EXPECT_TRUE(Fails(RegisterGpu(backend, {.data = host, .bytes = sizeof(host)}, 1),
                    absl::StatusCode::kInvalidArgument, {"GPU memory"}));
  EXPECT_TRUE(Fails(
      RegisterGpu(backend, {.data = host, .bytes = sizeof(host), .kind = MemoryKind::kCuda}, 1),
      absl::StatusCode::kInvalidArgument, {"host memory"}));
}

TEST(CudaIpcBackend, EveryKindOfMemoryOnEveryGpu) {
  constexpr auto kFile = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  constexpr size_t kBytes = size_t{6} << 20;
  const auto make = [&](int kind) {
    if (kind < 2) return GpuMemory::Plain(kBytes, kind);
    return GpuMemory::Virtual(3, kFile, kind - 2);
  };
  const cuda_driver::LiveObjects before = LiveNow();
  for (int from = 0; from < 4; ++from) {
    for (int to = 0; to < 4; ++to) {
      Joined joined(make(from), make(to));
      ASSERT_OK(joined.Open()) << from << " to " << to;
      Pattern(1).Fill(joined.from.bytes());
      ASSERT_OK(joined.Move(OpKind::kWrite));
      EXPECT_EQ(Pattern(1).Mismatch(joined.to.bytes()), kNoMismatch) << from << " to " << to;
      Pattern(2).Fill(joined.to.bytes());
      ASSERT_OK(joined.Move(OpKind::kRead));
      EXPECT_EQ(Pattern(2).Mismatch(joined.from.bytes()), kNoMismatch) << from << " to " << to;
      const std::string path = joined.out().path();
      EXPECT_NE(path.find("GPU " + std::to_string(from % 2) + " -> GPU " + std::to_string(to % 2)),
                std::string::npos)
          << path;
    }
  }
  EXPECT_EQ(LiveNow().mappings, before.mappings);
  EXPECT_EQ(LiveNow().handles, before.handles);
  EXPECT_EQ(LiveNow().reservations, before.reservations);
}

// An op whose local memory is on both GPUs.
TEST(CudaIpcBackend, OneOpOfTwoGpus) {
  Joined joined(256 * kKiB);
  ASSERT_OK(joined.Open());
  const GpuMemory second = GpuMemory::Plain(64 * kKiB, 1);
  ASSERT_OK_AND_ASSIGN(const GpuRegion other,
                       RegisterGpu(joined.pair->initiator().backend(), second.span(), 2));
  Pattern(1).Fill(joined.from.bytes());
  Pattern(2).Fill(second.bytes());
  std::vector<Piece> runs;
  for (uint64_t i = 0; i < 8; ++i) {
    const GpuRegion& local = i % 2 == 0 ? joined.local : other;
    runs.push_back({.local = local.remote().base + i * 4 * kKiB,
                    .remote = joined.to.at() + i * 4 * kKiB,
                    .bytes = 4 * kKiB,
                    .registration = local.registration.get(),
                    .key = joined.key.get()});
  }
  ASSERT_OK(joined.Do(joined.out().Make(OpKind::kWrite, 1, runs)));
  for (uint64_t i = 0; i < 8; ++i) {
    const uint64_t at = i * 4 * kKiB;
    EXPECT_EQ(Pattern(1 + i % 2).Mismatch(joined.to.bytes().subspan(at, 4 * kKiB), at),
              kNoMismatch);
  }
}

// The first of them go at once, each by itself; what comes while the GPU is busy goes together.
TEST(CudaIpcBackend, ManySmallOpsAreFewLaunches) {
  constexpr uint64_t kOps = 200;
  Joined joined(kOps * 4 * kKiB);
  ASSERT_OK(joined.Open());
  Pattern(1).Fill(joined.from.bytes());
  const uint64_t before = StandInHooks().kvxfer_standin_calls("cuLaunchKernel");
  Paused paused;
  for (uint64_t i = 0; i < kOps; ++i) {
    const Op op = joined.Make(OpKind::kWrite, 1, i * 4 * kKiB, 4 * kKiB);
    ASSERT_EQ(joined.out().Post({&op, 1}), 1u) << i;
  }
  EXPECT_EQ(StandInHooks().kvxfer_standin_calls("cuLaunchKernel") - before,
            cuda_ipc::CopyQueue::kMaxRunning);
  paused.Go();
  ASSERT_TRUE(joined.pair->Until([&] { return joined.pair->AllEnded(); }));
  EXPECT_EQ(joined.out().failed(), 0u);
  EXPECT_EQ(Pattern(1).Mismatch(joined.to.bytes()), kNoMismatch);
  EXPECT_LE(StandInHooks().kvxfer_standin_calls("cuLaunchKernel") - before,
            cuda_ipc::CopyQueue::kMaxRunning + 2);
}

// What is freed under a registration fails the ops that name it, and nothing else: no kernel
// touches it.
TEST(CudaIpcBackend, FreedMemoryFailsItsOpsAlone) {
  Joined joined(64 * kKiB);
  ASSERT_OK(joined.Open());
  Pattern(1).Fill(joined.from.bytes());
  GpuMemory freed = GpuMemory::Plain(64 * kKiB);
  ASSERT_OK_AND_ASSIGN(const GpuRegion gone,
                       RegisterGpu(joined.pair->initiator().backend(), freed.span(), 2));
  GpuMemory freed_there = GpuMemory::Plain(64 * kKiB);
  ASSERT_OK_AND_ASSIGN(const GpuRegion gone_there,
                       RegisterGpu(joined.pair->target().backend(), freed_there.span(), 2));
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<RemoteKey> key,
                       joined.pair->TryImport(gone_there.remote(), gone_there.key()));
  std::vector<uint64_t> good;
  std::vector<uint64_t> bad;
  Paused paused;
  freed.Free();
  freed_there.Free();
  for (uint64_t i = 0; i < 12; ++i) {
    const uint64_t at = i * 4 * kKiB;
    std::vector<Piece> runs = {
        RunOf(joined.local, joined.remote.remote(), joined.key.get(), at, 4 * kKiB)};
    if (i % 4 == 3) {
      runs.push_back(RunOf(gone, joined.remote.remote(), joined.key.get(), at, 4 * kKiB));
      if (i == 7) runs.back() = RunOf(joined.local, gone_there.remote(), key.get(), 0, 4 * kKiB);
    }
    const Op op = joined.out().Make(OpKind::kWrite, 1, runs);
    (i % 4 == 3 ? bad : good).push_back(op.id);
    ASSERT_EQ(joined.out().Post({&op, 1}), 1u);
  }
  paused.Go();
  ASSERT_TRUE(joined.pair->Until([&] { return joined.pair->AllEnded(); }));
  for (const uint64_t op : good) EXPECT_OK(joined.out().ended[op]) << op;
  for (const uint64_t op : bad) {
    EXPECT_TRUE(Fails(joined.out().ended[op], absl::StatusCode::kFailedPrecondition, {"freed"}))
        << op;
  }
  EXPECT_OK(joined.Move(OpKind::kWrite));
  EXPECT_EQ(Pattern(1).Mismatch(joined.to.bytes()), kNoMismatch);
}

// What has begun is waited for, what has not is cancelled.
TEST(CudaIpcBackend, AFenceWaitsForWhatHasBegun) {
  Joined joined(64 * kKiB);
  ASSERT_OK(joined.Open());
  Paused paused;
  std::vector<uint64_t> ids;
  for (uint64_t i = 0; i < 12; ++i) {
    const Op op = joined.Make(OpKind::kWrite, 1 + i % 2, i * 4 * kKiB, 4 * kKiB);
    ids.push_back(op.id);
    ASSERT_EQ(joined.out().Post({&op, 1}), 1u);
  }
  TestLink& out = joined.out();
  out.Fence(1);
  joined.pair->Idle(milliseconds(20));
  EXPECT_FALSE(out.fenced.contains(1));
  for (size_t i = 0; i < ids.size(); ++i) {
    const bool began = i < cuda_ipc::CopyQueue::kMaxRunning;
    EXPECT_EQ(out.ended.contains(ids[i]), i % 2 == 0 && !began) << i;
    if (!out.ended.contains(ids[i])) continue;
    EXPECT_TRUE(absl::IsCancelled(out.ended[ids[i]]));
  }
  paused.Go();
  ASSERT_TRUE(joined.pair->Until([&] { return out.fenced.contains(1) && out.open.empty(); }));
  for (size_t i = 1; i < ids.size(); i += 2) EXPECT_OK(out.ended[ids[i]]);
}

// Neither side's kDown comes before the last copy is over, whoever closes.
TEST(CudaIpcBackend, TheEndWaitsForTheLastCopy) {
  for (const bool initiator_closes : {true, false}) {
    Joined joined(64 * kKiB);
    ASSERT_OK(joined.Open());
    TestLink& out = joined.out();
    TestLink& in = joined.pair->in();
    Paused paused;
    const Op op = joined.Make(OpKind::kWrite, 1, 0, 64 * kKiB);
    ASSERT_EQ(out.Post({&op, 1}), 1u);
    (initiator_closes ? out : in).endpoint->Shutdown(absl::CancelledError("by the test"));
    joined.pair->Idle(milliseconds(150));
    EXPECT_FALSE(out.down || in.down);
    EXPECT_FALSE(out.ended.contains(op.id));
    paused.Go();
    ASSERT_TRUE(joined.pair->Until([&] { return out.down && in.down; }));
    EXPECT_TRUE(out.ended.contains(op.id));
  }
}

// The initiator's backend goes without a word, in the midst: it waits, and then nothing lands.
TEST(CudaIpcBackend, ABackendThatGoesWaitsForItsCopies) {
  Joined joined(64 * kKiB);
  ASSERT_OK(joined.Open());
  StandInHooks().kvxfer_standin_set_delay(5000);
  const Op op = joined.Make(OpKind::kWrite, 1, 0, 64 * kKiB);
  Pattern(1).Fill(joined.from.bytes());
  ASSERT_EQ(joined.out().Post({&op, 1}), 1u);
  std::unique_ptr<Endpoint> endpoint = std::move(joined.out().endpoint);
  endpoint.reset();
  StandInHooks().kvxfer_standin_set_delay(0);
  EXPECT_EQ(Pattern(1).Mismatch(joined.to.bytes()), kNoMismatch);
  TestLink& in = joined.pair->in();
  EXPECT_TRUE(joined.pair->Until([&] { return in.down; }));
  joined.out().down = true;
}

TEST(CudaIpcBackend, ADeregisteredRegionIsForgotten) {
  Joined joined(64 * kKiB);
  ASSERT_OK(joined.Open());
  ASSERT_OK(joined.Move(OpKind::kWrite));
  const RemoteRegion region = joined.remote.remote();
  const std::string key = joined.remote.key();
  joined.remote.registration.reset();
  absl::Status last;
  EXPECT_TRUE(joined.pair->Until([&] {
    last = joined.Do(joined.out().Make(OpKind::kWrite, 1,
                                       {RunOf(joined.local, region, joined.key.get(), 0, 4096)}));
    return !last.ok();
  }));
  EXPECT_TRUE(Fails(last, absl::StatusCode::kFailedPrecondition, {"deregistered"}));
  EXPECT_TRUE(Fails(joined.pair->TryImport(region, key), absl::StatusCode::kFailedPrecondition,
                    {"deregistered"}));
}

// Expect that regions are registered, asked for and closed beside each other, and that the devices
// are told once there is GPU memory.
TEST(CudaIpcBackend, RegionsOfManyThreadsBesideTheDriver) {
  Joined joined(64 * kKiB);
  ASSERT_OK(joined.Open());
  Backend& target = joined.pair->target().backend();
  constexpr uint32_t kThreads = 4;
  constexpr uint32_t kEach = 16;
  std::vector<GpuMemory> memory;
  for (uint32_t i = 0; i < kThreads * kEach; ++i) {
    memory.push_back(GpuMemory::Plain(4 * kKiB, static_cast<int>(i % 2)));
  }
  std::vector<absl::StatusOr<GpuRegion>> regions(kThreads * kEach);
  std::atomic<uint32_t> done = 0;
  {
    std::vector<std::jthread> threads;
    for (uint32_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (uint32_t i = t * kEach; i < (t + 1) * kEach; ++i) {
          regions[i] = RegisterGpu(target, memory[i].span(), 2 + i);
        }
        ++done;
      });
    }
    EXPECT_TRUE(joined.pair->Until([&] {
      EXPECT_OK(joined.Move(OpKind::kWrite));
      return done == kThreads;
    }));
  }
  for (absl::StatusOr<GpuRegion>& region : regions) {
    ASSERT_OK(region);
    EXPECT_OK(joined.pair->TryImport(region->remote(), region->key()));
    region->registration.reset();
  }
  EXPECT_FALSE(target.Describe().devices.empty());
}

// What lies there by now may be anybody's.
TEST(CudaIpcBackend, MemoryThatWasFreedIsNotTold) {
  Joined joined(64 * kKiB);
  ASSERT_OK(joined.Open());
  GpuMemory memory = GpuMemory::Plain(64 * kKiB);
  ASSERT_OK_AND_ASSIGN(const GpuRegion region,
                       RegisterGpu(joined.pair->target().backend(), memory.span(), 2));
  memory.Free();
  EXPECT_TRUE(Fails(joined.pair->TryImport(region.remote(), region.key()),
                    absl::StatusCode::kFailedPrecondition,
                    {"freed while they were registered", "deregister memory before"}));
}

TEST(CudaIpcBackend, OpsThatBreakTheRulesMoveNothing) {
  Joined joined(64 * kKiB);
  ASSERT_OK(joined.Open());
  Pattern(1).Fill(joined.from.bytes());
  const auto ends = [&](std::vector<Piece> more) {
    std::vector<Piece> runs = {RunOf(joined.local, joined.remote.remote(), joined.key.get(), 0, 1)};
    runs.insert(runs.end(), more.begin(), more.end());
    return joined.Do(joined.out().Make(OpKind::kWrite, 1, runs));
  };
  Piece outside =
      RunOf(joined.local, joined.remote.remote(), joined.key.get(), 60 * kKiB, 8 * kKiB);
  EXPECT_TRUE(Fails(ends({outside}), absl::StatusCode::kInvalidArgument, {"leave region"}));
  Piece wraps = outside;
  wraps.bytes = UINT64_MAX - 10;
  EXPECT_TRUE(Fails(ends({wraps}), absl::StatusCode::kInvalidArgument));
  Piece keyless = outside;
  keyless.key = nullptr;
  EXPECT_TRUE(Fails(ends({keyless}), absl::StatusCode::kInvalidArgument));
  Piece single = outside;
  single.bytes = 1;
  EXPECT_TRUE(Fails(ends(std::vector<Piece>(cuda_ipc::kMaxOpPieces, single)),
                    absl::StatusCode::kInvalidArgument, {"8193 pieces"}));
  EXPECT_EQ(FirstNonZero(joined.to.bytes()), kNoMismatch);
}

// Whatever the driver refuses is a Status, leaves nothing behind, and works at the next time.
TEST(CudaIpcBackend, EachCallFailsInTurn) {
  {
    Joined warm(kKiB);
    ASSERT_OK(warm.Open());
  }
  const cuda_driver::LiveObjects before = LiveNow();
  int failures = 0;
  for (const std::string_view name : cuda_driver::kCalls) {
    if (name == "cuMemRelease") continue;  // that would be held
    const char* const call = name.data();
    for (int nth = 1; nth <= 3; ++nth) {
      Joined joined(GpuMemory::Plain(64 * kKiB),
                    GpuMemory::Virtual(2, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 1));
      Pattern(1).Fill(joined.from.bytes());
      LiveNow();  // nothing of the last one is closed meanwhile
      StandInHooks().kvxfer_standin_fail(call, nth, CUDA_ERROR_OUT_OF_MEMORY);
      absl::Status status = joined.Open();
      if (status.ok()) status = joined.Move(OpKind::kWrite);
      StandInHooks().kvxfer_standin_fail_none();
      if (!status.ok()) {
        ++failures;
        EXPECT_FALSE(absl::IsDeadlineExceeded(status)) << call << ": " << status;
        EXPECT_FALSE(status.message().empty()) << call;
      }
      joined.key.reset();
      joined.local = {};
      joined.remote = {};
      ASSERT_OK(joined.Open()) << "after " << call << " had failed";
      ASSERT_OK(joined.Move(OpKind::kWrite)) << "after " << call << " had failed";
      EXPECT_EQ(Pattern(1).Mismatch(joined.to.bytes().first(64 * kKiB)), kNoMismatch);
    }
  }
  EXPECT_GT(failures, 10);
  const cuda_driver::LiveObjects after = LiveNow();
  EXPECT_EQ(after.handles, before.handles);
  EXPECT_EQ(after.mappings, before.mappings);
  EXPECT_EQ(after.reservations, before.reservations);
  EXPECT_EQ(after.streams, before.streams);
  EXPECT_EQ(after.pinned, before.pinned);
}

// Agents of processes that have no GPU memory may be connected, and nobody has touched CUDA.
KVXFER_CHILD(CudaIpcWithoutCuda) {
  const auto pair = BackendPair::Make(CudaIpcFlavour());
  CHILD_EXPECT(pair != nullptr);
  CHILD_EXPECT(pair->out().Send("a word"));
  CHILD_EXPECT(pair->Until([&] { return !pair->in().messages.empty(); }));
  CHILD_EXPECT(pair->initiator().backend().Describe().devices.empty());
  CHILD_EXPECT(cuda::Driver::IfInUse() == nullptr);
  CHILD_EXPECT(cuda_driver::FindHooks() == nullptr);
  return 0;
}
TEST(CudaIpcBackend, DoesNotTouchCudaBeforeThereIsMemory) {
  EXPECT_EQ(RunChild("CudaIpcWithoutCuda", {}, kAmple), 0);
}

// A kernel that fails ruins the context of its process; what is left ends. That nothing moves any
// more is known with the end of the process only.
KVXFER_CHILD(CudaIpcWithARuinedContext) {
  Joined joined(64 * kKiB);
  CHILD_EXPECT(joined.Open().ok());
  StandInHooks().kvxfer_standin_fail_async(1, CUDA_ERROR_ILLEGAL_ADDRESS);
  const absl::Status first = joined.Move(OpKind::kWrite);
  CHILD_EXPECT(!first.ok() && absl::StrContains(first.message(), "ILLEGAL_ADDRESS"));
  CHILD_EXPECT(!joined.Move(OpKind::kWrite).ok());
  joined.out().Fence(1);
  CHILD_EXPECT(joined.pair->Until([&] { return joined.out().fenced.contains(1); }));
  joined.key.reset();
  joined.out().endpoint->Shutdown(absl::CancelledError("over"));
  CHILD_EXPECT(joined.pair->Until([&] { return joined.out().down; }));
  joined.pair->Idle(milliseconds(300));
  CHILD_EXPECT(!joined.pair->in().down);
  std::_Exit(0);  // memory cannot be freed any more
}
TEST(CudaIpcBackend, ARuinedContextEndsWhatIsLeft) {
  EXPECT_EQ(RunChild("CudaIpcWithARuinedContext", {}, kAmple), 0);
}

// The third GPU reaches nobody.
KVXFER_CHILD(CudaIpcWithoutPeerToPeer) {
  Joined joined(GpuMemory::Plain(64 * kKiB, 0), GpuMemory::Plain(64 * kKiB, 2));
  const absl::Status status = joined.Open();
  CHILD_EXPECT(absl::IsFailedPrecondition(status));
  CHILD_EXPECT(absl::StrContains(status.message(), "peer-to-peer"));
  Joined more(GpuMemory::Plain(64 * kKiB, 0),
              GpuMemory::Virtual(1, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 2));
  CHILD_EXPECT(absl::IsFailedPrecondition(more.Open()));
  return 0;
}
TEST(CudaIpcBackend, GpusThatDoNotReachEachOther) {
  ::setenv("KVXFER_STANDIN_DEVICES", "3", 1);
  EXPECT_EQ(RunChild("CudaIpcWithoutPeerToPeer", {}, kAmple), 0);
  ::unsetenv("KVXFER_STANDIN_DEVICES");
}

KVXFER_CHILD(CudaIpcWithoutAGpu) {
  const auto party = Party::Make(CudaIpcFlavour(), "a");
  CHILD_EXPECT(party.ok());
  std::byte memory[64];
  const auto region = RegisterGpu(
      (*party)->backend(), {.data = memory, .bytes = sizeof(memory), .kind = MemoryKind::kCuda}, 1);
  CHILD_EXPECT(!region.ok() && !region.status().message().empty());
  return 0;
}
TEST(CudaIpcBackend, ADriverWithoutAGpu) {
  ::setenv("KVXFER_STANDIN_DEVICES", "0", 1);
  EXPECT_EQ(RunChild("CudaIpcWithoutAGpu", {}, kAmple), 0);
  ::unsetenv("KVXFER_STANDIN_DEVICES");
}

KVXFER_CHILD(CudaIpcWithoutADriver) {
  const auto party = Party::Make(CudaIpcFlavour(), "a");
  CHILD_EXPECT(absl::IsUnimplemented(party.status()));
  CHILD_EXPECT(absl::StrContains(party.status().message(), "--gpus"));
  return 0;
}
TEST(CudaIpcBackend, NoDriverIsQuiet) {
  if (::access("/dev/nvidiactl", F_OK) == 0) GTEST_SKIP() << "this host has a CUDA driver";
  const char* const path = std::getenv("LD_LIBRARY_PATH");
  const std::string before = path == nullptr ? "" : path;
  ::unsetenv("LD_LIBRARY_PATH");
  EXPECT_EQ(RunChild("CudaIpcWithoutADriver", {}, kAmple), 0);
  ::setenv("LD_LIBRARY_PATH", before.c_str(), 1);
}

}  // namespace
}  // namespace kvxfer::testing
