// cuda_ipc between processes, at the initiator: opening memory of a peer, copying, and closing it
// when it is no more.
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "src/backends/cuda_ipc/opened.h"
#include "src/backends/cuda_ipc/wire.h"
#include "src/cuda/closer.h"
#include "tests/support/pattern.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"
#include "tests/unit/backends/cuda_ipc/util.h"

namespace kvxfer::testing {
namespace {

using namespace cuda::api;  // NOLINT(google-build-using-namespace): the driver's own names

// Scattered over all of it, across the borders of chunks.
std::vector<Piece> Scattered(Dialled& dialled, const RemoteRegion& region, const RemoteKey* key) {
  std::vector<Piece> runs;
  std::mt19937_64 random(TestSeed());
  for (uint64_t at = 0; at < region.bytes;) {
    const uint64_t bytes = std::min<uint64_t>(1 + random() % (256 * kKiB), region.bytes - at);
    runs.push_back(dialled.RunAt(region, key, at, bytes));
    at += bytes;
  }
  std::ranges::shuffle(runs, random);
  return runs;
}

class CudaIpcMemory : public ::testing::TestWithParam<const char*> {};

TEST_P(CudaIpcMemory, WritesAndReads) {
  const uint64_t opened = Opened();
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<IpcPeer> peer, IpcPeer::Start());
  constexpr uint64_t kBytes = 5 * kMiB + 77;
  ASSERT_OK_AND_ASSIGN(const RemoteRegion region, peer->Register(GetParam(), kBytes));
  {
    const GpuMemory memory = GpuMemory::Plain(kBytes);
    Dialled dialled(*peer);
    ASSERT_OK(dialled.Register(memory.span()));
    const RemoteKey* const key = dialled.Import(region, peer->key(region));
    ASSERT_NE(key, nullptr);
    EXPECT_GT(Opened(), opened);
    Pattern(1).Fill(memory.bytes());
    ASSERT_OK(dialled.Move(OpKind::kWrite, Scattered(dialled, region, key)));
    ASSERT_OK_AND_ASSIGN(const bool holds, peer->Holds(1, kBytes));
    EXPECT_TRUE(holds);
    ASSERT_OK(peer->Fill(2));
    ASSERT_OK(dialled.Move(OpKind::kRead, Scattered(dialled, region, key)));
    EXPECT_EQ(Pattern(2).Mismatch(memory.bytes()), kNoMismatch);
    const std::string path = dialled.link().path();
    const bool other = std::string_view(GetParam()) == "other";
    EXPECT_NE(path.find(other ? "GPU 0 -> GPU 1 over" : "GPU 0 -> GPU 0 over the same GPU"),
              std::string::npos)
        << path;
    EXPECT_NE(path.find(std::to_string(peer->process().pid())), std::string::npos) << path;
  }
  EXPECT_EQ(Opened(), opened);
}

// A region that begins in the midst of an allocation.
TEST_P(CudaIpcMemory, FromTheMiddle) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<IpcPeer> peer, IpcPeer::Start());
  constexpr uint64_t kOffset = 3 * kMiB + 4096 + 5;
  constexpr uint64_t kBytes = 2 * kMiB + 3;
  ASSERT_OK_AND_ASSIGN(const RemoteRegion region, peer->Register(GetParam(), kBytes, kOffset));
  const GpuMemory memory = GpuMemory::Plain(kBytes);
  Dialled dialled(*peer);
  ASSERT_OK(dialled.Register(memory.span()));
  const RemoteKey* const key = dialled.Import(region, peer->key(region));
  ASSERT_NE(key, nullptr);
  ASSERT_OK(peer->Fill(3));
  ASSERT_OK(dialled.Move(OpKind::kRead, Scattered(dialled, region, key)));
  EXPECT_EQ(Pattern(3).Mismatch(memory.bytes(), kOffset), kNoMismatch);
}

// Expect that an allocation is opened once, however many regions and links use it, and closed with
// the last.
TEST_P(CudaIpcMemory, OpenedOnceAndClosedWithTheLast) {
  const cuda_driver::LiveObjects before = LiveNow();
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<IpcPeer> peer, IpcPeer::Start());
  ASSERT_OK_AND_ASSIGN(const RemoteRegion whole, peer->Register(GetParam(), kMiB));
  ASSERT_OK_AND_ASSIGN(const RemoteRegion first, peer->RegisterPart(0, 64 * kKiB));
  ASSERT_OK_AND_ASSIGN(const RemoteRegion second, peer->RegisterPart(64 * kKiB, 64 * kKiB));
  const auto opened = [&] {
    const cuda_driver::LiveObjects now = LiveNow();
    return now.ipc_mappings - before.ipc_mappings + now.mappings - before.mappings;
  };
  const GpuMemory memory = GpuMemory::Plain(kMiB);
  Dialled dialled(*peer);
  ASSERT_OK(dialled.Register(memory.span()));
  dialled.Dial(peer->address(), peer->host());
  for (const RemoteRegion& region : {whole, first, second}) {
    ASSERT_NE(dialled.Import(region, peer->key(region)), nullptr);
    EXPECT_EQ(opened(), 1u);
  }
  ASSERT_NE(dialled.Import(first, peer->key(first), nullptr, /*over=*/1), nullptr);
  EXPECT_EQ(opened(), 1u);
  while (!dialled.keys().empty()) {
    EXPECT_EQ(opened(), 1u);
    dialled.keys().pop_back();
  }
  EXPECT_EQ(opened(), 0u);
  // And again.
  ASSERT_NE(dialled.Import(second, peer->key(second)), nullptr);
  EXPECT_EQ(opened(), 1u);
}

// Expect nothing held of a peer that was killed in the midst of writes, from kDown on, whatever the
// agent still has.
TEST_P(CudaIpcMemory, TheTargetIsKilled) {
  const cuda_driver::LiveObjects before = LiveNow();
  const uint64_t opened = Opened();
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<IpcPeer> peer, IpcPeer::Start());
  constexpr uint64_t kBytes = 4 * kMiB;
  ASSERT_OK_AND_ASSIGN(const RemoteRegion region, peer->Register(GetParam(), kBytes));
  const GpuMemory memory = GpuMemory::Plain(kBytes);
  Dialled dialled(*peer);
  ASSERT_OK(dialled.Register(memory.span()));
  const RemoteKey* const key = dialled.Import(region, peer->key(region));
  ASSERT_NE(key, nullptr);
  TestLink& link = dialled.link();
  constexpr uint64_t kPiece = 64 * kKiB;
  size_t posted = 0;
  // No two that are under way go to one place.
  const auto post = [&] {
    if (link.open.size() >= kBytes / kPiece / 2) return;
    const uint64_t at = posted * kPiece % kBytes;
    const Op op = link.Make(OpKind::kWrite, 1, {dialled.RunAt(region, key, at, kPiece)});
    posted += link.Post({&op, 1});
  };
  for (int i = 0; i < 20; ++i) post();
  peer->process().Signal(SIGKILL);
  ASSERT_TRUE(dialled.Until([&] {
    if (!link.down) post();
    return link.down;
  }));
  EXPECT_EQ(link.ended.size(), posted);
  EXPECT_EQ(Opened(), opened);
  EXPECT_EQ(LiveNow().ipc_mappings, before.ipc_mappings);
}

INSTANTIATE_TEST_SUITE_P(Of, CudaIpcMemory, ::testing::Values("plain", "virtual", "other"),
                         [](const auto& info) { return std::string(info.param); });

// Memory that has a fabric handle and no other.
KVXFER_CHILD(CudaIpcByFabricHandle) {
  const auto peer = IpcPeer::Start();
  CHILD_EXPECT(peer.ok());
  const auto region = (*peer)->Register("fabric", kMiB);
  CHILD_EXPECT(region.ok());
  const GpuMemory memory = GpuMemory::Plain(kMiB);
  Dialled dialled(**peer);
  CHILD_EXPECT(dialled.Register(memory.span()).ok());
  const RemoteKey* const key = dialled.Import(*region, (*peer)->key(*region));
  CHILD_EXPECT(key != nullptr);
  Pattern(6).Fill(memory.bytes());
  CHILD_EXPECT(dialled.Move(OpKind::kWrite, {dialled.RunAt(*region, key, 0, kMiB)}).ok());
  CHILD_EXPECT((*peer)->Holds(6, kMiB).value_or(false));
  return 0;
}
TEST(CudaIpcProcess, AFabricHandleDoesWhereThereIsNoOther) {
  ::setenv("KVXFER_STANDIN_FABRIC", "1", 1);
  EXPECT_EQ(RunChild("CudaIpcByFabricHandle", {}, kAmple), 0);
  ::unsetenv("KVXFER_STANDIN_FABRIC");
}

// Copies need nothing of the target's CPU.
TEST(CudaIpcProcess, AStoppedTargetIsWrittenTo) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<IpcPeer> peer, IpcPeer::Start());
  ASSERT_OK_AND_ASSIGN(const RemoteRegion region, peer->Register("plain", kMiB));
  const GpuMemory memory = GpuMemory::Plain(kMiB);
  Dialled dialled(*peer);
  ASSERT_OK(dialled.Register(memory.span()));
  const RemoteKey* const key = dialled.Import(region, peer->key(region));
  ASSERT_NE(key, nullptr);
  Pattern(5).Fill(memory.bytes());
  peer->process().Signal(SIGSTOP);
  peer->process().WaitStopped();
  EXPECT_OK(dialled.Move(OpKind::kWrite, {dialled.RunAt(region, key, 0, kMiB)}));
  peer->process().Signal(SIGCONT);
  ASSERT_OK_AND_ASSIGN(const bool holds, peer->Holds(5, kMiB));
  EXPECT_TRUE(holds);
}

TEST(CudaIpcProcess, WhatCannotBeOpenedSaysWhyAndIsTriedAgain) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<IpcPeer> peer, IpcPeer::Start());
  ASSERT_OK_AND_ASSIGN(const RemoteRegion plain, peer->Register("plain", kMiB));
  ASSERT_OK_AND_ASSIGN(const RemoteRegion other, peer->Register("virtual", 4 * kMiB));
  const GpuMemory memory = GpuMemory::Plain(4 * kMiB);
  Dialled dialled(*peer);
  ASSERT_OK(dialled.Register(memory.span()));
  const uint64_t opened = Opened();
  const auto refused = [&](const RemoteRegion& region, std::initializer_list<const char*> words) {
    absl::Status why;
    EXPECT_EQ(dialled.Import(region, peer->key(region), &why), nullptr);
    EXPECT_EQ(Opened(), opened);
    for (const char* const word : words) {
      EXPECT_TRUE(absl::StrContains(why.message(), word)) << word << " in " << why;
    }
    return !why.ok() && !absl::IsUnavailable(why) && !absl::IsDeadlineExceeded(why);
  };
  const auto fail_here = [](const char* call, int error) {
    StandInHooks().kvxfer_standin_fail(call, 1, error);
  };
  const std::string pid = std::to_string(peer->process().pid());
  for (const int error :
       {CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_MAP_FAILED, CUDA_ERROR_INVALID_HANDLE,
        CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_OPERATING_SYSTEM, CUDA_ERROR_INVALID_VALUE}) {
    fail_here("cuIpcOpenMemHandle_v2", error);
    EXPECT_TRUE(refused(plain, {"cuIpcOpenMemHandle", pid.c_str(), "--ipc=host"})) << error;
  }
  for (const char* const call :
       {"cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"}) {
    fail_here(call, CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_TRUE(refused(other, {call, pid.c_str()}));
  }
  ASSERT_OK(peer->FailNext("cuIpcGetMemHandle", CUDA_ERROR_NOT_SUPPORTED));
  EXPECT_TRUE(refused(plain, {"cuIpcGetMemHandle", pid.c_str()}));
  ASSERT_OK(peer->FailNext("cuMemExportToShareableHandle", CUDA_ERROR_UNKNOWN));
  EXPECT_TRUE(refused(other, {"cuMemExportToShareableHandle", pid.c_str()}));
  EXPECT_NE(dialled.Import(plain, peer->key(plain)), nullptr);
  EXPECT_NE(dialled.Import(other, peer->key(other)), nullptr);
  EXPECT_FALSE(dialled.link().down);
}

// While an older mapping is in the way, which is to be closed.
TEST(CudaIpcProcess, WhatCannotBeOpenedYetIsAskedForAgain) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<IpcPeer> peer, IpcPeer::Start());
  ASSERT_OK_AND_ASSIGN(const RemoteRegion region, peer->Register("plain", kMiB));
  const GpuMemory memory = GpuMemory::Plain(kMiB);
  Dialled dialled(*peer);
  ASSERT_OK(dialled.Register(memory.span()));
  std::atomic<bool> go{false};
  cuda::CloseLater([&] { go.wait(false); });
  StandInHooks().kvxfer_standin_fail("cuIpcOpenMemHandle_v2", 0, CUDA_ERROR_ALREADY_MAPPED);
  const uint64_t before = StandInHooks().kvxfer_standin_calls("cuIpcOpenMemHandle_v2");
  absl::StatusOr<std::unique_ptr<RemoteKey>> made;
  EXPECT_TRUE(dialled.Until([&] {
    made = dialled.link().endpoint->Import(region, peer->key(region));
    return StandInHooks().kvxfer_standin_calls("cuIpcOpenMemHandle_v2") >= before + 3;
  }));
  EXPECT_TRUE(Fails(made, absl::StatusCode::kUnavailable, {"still to be closed"}));
  go = true;
  go.notify_all();
  // With nothing to close it is an error.
  absl::Status why;
  ASSERT_TRUE(Eventually(kAmple, [] { return !cuda::Closing(); }));
  EXPECT_EQ(dialled.Import(region, peer->key(region), &why), nullptr);
  EXPECT_TRUE(Fails(why, absl::StatusCode::kFailedPrecondition, {"ALREADY_MAPPED"}));
  StandInHooks().kvxfer_standin_fail_none();
  EXPECT_NE(dialled.Import(region, peer->key(region)), nullptr);
}

TEST(CudaIpcProcess, AnAllocationIsNoLargerThanItIs) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<IpcPeer> peer, IpcPeer::Start());
  ASSERT_OK_AND_ASSIGN(const RemoteRegion region, peer->Register("plain", kMiB));
  ASSERT_OK_AND_ASSIGN(const Fields handle, peer->Call({"handle"}));
  const uint64_t opened = Opened();
  cuda_ipc::OpenedTable table;
  cuda_ipc::PartPacket part{.base = region.base,
                            .bytes = kMiB,
                            .allocation_base = region.base,
                            .allocation_bytes = kMiB,
                            .buffer_id = 1,
                            .form = cuda_ipc::HandleForm::kLegacy};
  ASSERT_EQ(handle[0].copy(reinterpret_cast<char*>(part.handle.data()), sizeof(part.handle)),
            sizeof(part.handle));
  std::vector<std::shared_ptr<cuda_ipc::OpenedMemory>> kept;
  const auto open = [&]() -> absl::StatusOr<uint64_t> {
    auto memory = table.Find(&StandIn(), {.pid = peer->host().pid}, part, {});
    if (!memory.ok()) return memory.status();
    kept.push_back(*memory);
    return (*memory)->AddressFor(0);
  };
  EXPECT_OK(open());
  part.allocation_bytes = 2 * kMiB;
  EXPECT_TRUE(Fails(open(), absl::StatusCode::kFailedPrecondition, {"2097152", "fewer"}));
  kept.clear();
  EXPECT_EQ(Opened(), opened);
}

TEST(CudaIpcProcess, ARegionThatIsNoMore) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<IpcPeer> peer, IpcPeer::Start());
  ASSERT_OK_AND_ASSIGN(const RemoteRegion region, peer->Register("plain", kMiB));
  const GpuMemory memory = GpuMemory::Plain(kMiB);
  Dialled dialled(*peer);
  ASSERT_OK(dialled.Register(memory.span()));
  const RemoteKey* const key = dialled.Import(region, peer->key(region));
  ASSERT_NE(key, nullptr);
  ASSERT_OK(peer->Deregister(region));
  absl::Status last;
  EXPECT_TRUE(dialled.Until([&] {
    last = dialled.Move(OpKind::kWrite, {dialled.RunAt(region, key, 0, 64)});
    return !last.ok();
  }));
  EXPECT_TRUE(Fails(last, absl::StatusCode::kFailedPrecondition, {"deregistered"}));
  absl::Status why;
  EXPECT_EQ(dialled.Import(region, peer->key(region), &why), nullptr);
  EXPECT_TRUE(Fails(why, absl::StatusCode::kFailedPrecondition, {"deregistered"}));
  // Nor one that there never was, or that has another key.
  RemoteRegion forged = region;
  forged.rkey ^= 1;
  const cuda_ipc::RegionKey key_of_forged{.region = 1, .rkey = forged.rkey};
  EXPECT_EQ(dialled.Import(forged, Encode(key_of_forged), &why), nullptr);
  EXPECT_TRUE(Fails(why, absl::StatusCode::kFailedPrecondition));
  EXPECT_FALSE(dialled.link().down);
}

}  // namespace
}  // namespace kvxfer::testing
