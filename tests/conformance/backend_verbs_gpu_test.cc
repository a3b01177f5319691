// GPU memory and verbs: how devices come to know it, in one piece and in several, and that nothing
// is told of before kernels can see it.

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "src/cuda/driver.h"
#include "tests/conformance/verbs_device.h"
#include "tests/support/cuda_driver/hooks.h"
#include "tests/support/gpu_pieces.h"
#include "tests/support/needs_stand_in.h"
#include "tests/support/test_folder.h"

namespace kvxfer::testing {
namespace {

using ::testing::HasSubstr;

constexpr const char* kFlush = "cuFlushGPUDirectRDMAWrites";
constexpr const char* kExport = "cuMemGetHandleForAddressRange";

// GPU memory that one party has registered.
struct GpuRegion {
  std::unique_ptr<GpuPieces> memory;
  RegionId id = RegionId::kNone;
  LocalRegion local;
  std::unique_ptr<Registration> registration;

  uint64_t address() const { return reinterpret_cast<uint64_t>(local.span.data); }
  size_t size() const { return local.span.bytes; }
  RemoteRegion remote() const {
    return {.id = id,
            .rkey = local.rkey,
            .base = address(),
            .bytes = size(),
            .kind = MemoryKind::kCuda,
            .device_id = local.span.device_id,
            .access = local.access};
  }
};

class VerbsGpu : public VerbsDevice {
 protected:
  void SetUp() override {
    KVXFER_NEEDS_STAND_IN();
    ASSERT_OK(cuda::Driver::Get());
    hooks_ = cuda_driver::FindHooks();
    std::filesystem::create_directories(folder_ + "/sys/module");
  }
  void TearDown() override {
    if (hooks_ == nullptr) return;
    hooks_->kvxfer_standin_fail_none();
    regions_.clear();
    VerbsDevice::TearDown();
  }
  // On a host with that kernel module, or none.
  void UseHost(std::vector<FabricDevice> devices, const std::string& module = {},
               const verbs::VerbsOptions& options = {}) {
    if (!module.empty()) std::filesystem::create_directory(folder_ + "/sys/module/" + module);
    fabric_ = std::make_unique<VerbsFabric>(std::move(devices));
    fabric_->SetRetryTime(std::chrono::milliseconds(50));
    scope_.emplace(fabric_.get(), options, Topology(), Sysfs(folder_));
  }
  // Two parties with a device each, and host memory.
  void StartOne(const verbs::VerbsOptions& options = {}) {
    UseHost(Devices(1, 1), {}, options);
    ASSERT_NO_FATAL_FAILURE(Start(4 * kMiB));
  }

  static absl::StatusOr<std::unique_ptr<Registration>> TryRegister(Party& party,
                                                                   const LocalRegion& region) {
    absl::StatusOr<std::unique_ptr<Registration>> made;
    std::thread([&] { made = party.backend().Register(region); }).join();
    return made;
  }
  absl::StatusOr<GpuRegion*> RegisterPieces(Party& party, std::span<const size_t> bytes,
                                            int device = 0, size_t from = 0,
                                            size_t most = SIZE_MAX) {
    auto memory = GpuPieces::Allocate(device, bytes);
    if (!memory.ok()) return memory.status();
    auto region = std::make_unique<GpuRegion>();
    region->memory = *std::move(memory);
    const auto id = static_cast<uint32_t>(100 + regions_.size());
    region->id = static_cast<RegionId>(id);
    region->local = {.rkey = id * 0x9e3779b1u,
                     .span = region->memory->span(from, most),
                     .access = Access::kReadWrite};
    auto registration = TryRegister(party, region->local);
    if (!registration.ok()) return registration.status();
    region->registration = *std::move(registration);
    regions_.push_back(std::move(region));
    return regions_.back().get();
  }
  absl::StatusOr<GpuRegion*> RegisterOne(Party& party, int device = 0, size_t bytes = 4 * kMiB) {
    return RegisterPieces(party, std::array{bytes}, device);
  }
  const RemoteKey* ImportGpu(const GpuRegion& region) {
    auto key = pair_->TryImport(region.remote(), region.registration->key);
    EXPECT_OK(key);
    if (!key.ok()) return nullptr;
    out().keys.push_back(*std::move(key));
    return out().keys.back().get();
  }
  // What kernels see.
  std::span<std::byte> View(const GpuRegion& region) const {
    return {hooks_->kvxfer_standin_alias(region.address(), region.size()), region.size()};
  }
  uint64_t flushes() const { return hooks_->kvxfer_standin_calls(kFlush); }
  // One Poll of the target, with all the room that it can want.
  std::vector<Event> PollTarget() {
    std::vector<Event> events(64);
    events.resize(pair_->target().backend().Poll(events, Input::kAll));
    return events;
  }
  // So many writes of the initiator's host memory, with immediates, have been executed.
  void WriteAndWait(const GpuRegion& to, const RemoteKey* key, size_t count) {
    const uint64_t before = fabric_->completions();
    std::vector<Op> ops;
    for (size_t i = 0; i < count; ++i) {
      ops.push_back(out().Make(OpKind::kWrite, 1,
                               {{.local = local_->address() + i * kOp,
                                 .remote = to.address() + i * kOp,
                                 .bytes = kOp,
                                 .registration = local_->registration.get(),
                                 .key = key}},
                               static_cast<uint32_t>(i)));
    }
    ASSERT_EQ(out().Post(ops), count);
    // A completion at each end.
    ASSERT_TRUE(Eventually(kAmple, [&] { return fabric_->completions() >= before + 2 * count; }));
  }
  void ExpectRandomRuns(const GpuRegion& from, const GpuRegion& to, const RemoteKey* key);

  const cuda_driver::Hooks* hooks_ = nullptr;
  const TestFolder test_folder_;
  const std::string folder_ = test_folder_.path();
  std::vector<std::unique_ptr<GpuRegion>> regions_;
};

INSTANTIATE_TEST_SUITE_P(InMemory, VerbsGpu, ::testing::Values(VerbsDeviceFlavour()), FlavourName);

// In a process of its own, for here CUDA is in use.
TEST_P(VerbsDevice, HostMemoryAloneUsesNoCuda) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        Use(Devices(1, 1));
        Start(64 * kOp);
        ExpectAllRailsWork();
        End();
        const bool loaded = cuda_driver::FindHooks() != nullptr;
        std::exit(HasFailure() || loaded || cuda::Driver::IfInUse() != nullptr ? 1 : 0);
      },
      ::testing::ExitedWithCode(0), "");
}

// --- how devices come to know it -----------------------------------------------------------------

TEST_P(VerbsGpu, ADmabufIsTakenFirstAndNotKeptOpen) {
  UseHost(Devices(1, 2), "nvidia_peermem");
  ASSERT_NO_FATAL_FAILURE(Start(4096));
  const uint64_t plain = fabric_->calls(Call::kRegMr);
  // From within a page on.
  ASSERT_OK_AND_ASSIGN(GpuRegion * region, RegisterPieces(pair_->target(), std::array{4 * kMiB}, 0,
                                                          5 * 4096 + 512, kMiB + 7));
  EXPECT_EQ(fabric_->calls(Call::kRegDmabufMr), 2u);
  EXPECT_EQ(fabric_->calls(Call::kRegMr), plain);
  cuda_driver::LiveObjects live;
  hooks_->kvxfer_standin_live(&live);
  EXPECT_EQ(live.dmabufs, 0u);
  const RemoteKey* const key = ImportGpu(*region);
  ASSERT_NE(key, nullptr);
  Pattern(1).Fill(local_->bytes());
  const kvxfer::Run run{.local = local_->address(),
                        .remote = region->address() + kMiB + 7 - 4096,
                        .bytes = 4096,
                        .registration = local_->registration.get(),
                        .key = key};
  ASSERT_TRUE(pair_->PostAll(std::vector<Op>{out().Make(OpKind::kWrite, 1, {run}, 1)}));
  ASSERT_TRUE(Arrived(1));
  EXPECT_EQ(Pattern(1).Mismatch(View(*region).last(4096)), kNoMismatch);
  EXPECT_EQ(FirstNonZero(View(*region).first(kMiB + 7 - 4096)), kNoMismatch);
}

TEST_P(VerbsGpu, WithoutDmabufItIsPeerMemoryWhereTheModuleIsLoaded) {
  for (const char* module : {"nvidia_peermem", "nv_peer_mem"}) {
    UseHost(Devices(1, 2), module);
    ASSERT_NO_FATAL_FAILURE(Start(4096));
    // The driver does not export it; then, the NICs' drivers do not take it.
    hooks_->kvxfer_standin_fail(kExport, 1, cuda::api::CUDA_ERROR_NOT_SUPPORTED);
    uint64_t plain = fabric_->calls(Call::kRegMr);
    ASSERT_OK(RegisterOne(pair_->target()));
    EXPECT_EQ(fabric_->calls(Call::kRegMr), plain + 2);
    EXPECT_EQ(fabric_->calls(Call::kRegDmabufMr), 0u);
    plain += 2;
    fabric_->FailCall(Call::kRegDmabufMr, 1, EOPNOTSUPP);
    fabric_->FailCall(Call::kRegDmabufMr, 2, EOPNOTSUPP);
    ASSERT_OK(RegisterOne(pair_->target()));
    EXPECT_EQ(fabric_->calls(Call::kRegMr), plain + 2);
    regions_.clear();
    End();
    std::filesystem::remove(folder_ + "/sys/module/" + module);
  }
}

TEST_P(VerbsGpu, WithNeitherItIsRefusedWithBothCauses) {
  ASSERT_NO_FATAL_FAILURE(StartOne());
  const uint64_t plain = fabric_->calls(Call::kRegMr);
  fabric_->FailCall(Call::kRegDmabufMr, 1, EOPNOTSUPP);
  EXPECT_TRUE(
      Fails(RegisterOne(pair_->target()).status(), absl::StatusCode::kFailedPrecondition,
            {"GPU memory cannot be given to t0", "ibv_reg_dmabuf_mr", "the module is not loaded",
             "modprobe nvidia-peermem", "open kernel modules"}));
  hooks_->kvxfer_standin_fail(kExport, 1, cuda::api::CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_TRUE(Fails(RegisterOne(pair_->target()).status(), absl::StatusCode::kFailedPrecondition,
                    {kExport, "CUDA_ERROR_NOT_SUPPORTED", "modprobe nvidia-peermem"}));
  fabric_->FailCall(Call::kRegDmabufMr, 1, ENOMEM);
  EXPECT_TRUE(
      Fails(RegisterOne(pair_->target()).status(), absl::StatusCode::kResourceExhausted, {"BAR1"}));
  // Where no module is loaded it is not tried.
  EXPECT_EQ(fabric_->calls(Call::kRegMr), plain);
  // And nothing is kept of it: the next one is registered as if nothing had been.
  ASSERT_OK(RegisterOne(pair_->target()));
}

TEST_P(VerbsGpu, OfTheDevicesThoseThatTakeItHaveIt) {
  UseHost(Devices(1, 2));
  ASSERT_NO_FATAL_FAILURE(Start(4096));
  fabric_->FailCall(Call::kRegDmabufMr, 1, EOPNOTSUPP);
  ASSERT_OK_AND_ASSIGN(GpuRegion * region, RegisterOne(pair_->target()));
  EXPECT_NE(ImportGpu(*region), nullptr);
}

TEST_P(VerbsGpu, MemoryThatNoNicMayBeGivenIsRefusedBefore) {
  ASSERT_NO_FATAL_FAILURE(StartOne());
  const auto refused = [&](const MemorySpan& span, std::initializer_list<const char*> words) {
    const LocalRegion region{.rkey = 9, .span = span, .access = Access::kReadWrite};
    return Fails(TryRegister(pair_->target(), region).status(),
                 absl::StatusCode::kFailedPrecondition, words);
  };
  ASSERT_OK_AND_ASSIGN(const auto chunk, GpuPieces::Allocate(0, std::array{2 * kMiB}, false));
  EXPECT_TRUE(refused(chunk->span(), {"gpuDirectRDMACapable", "expandable_segments"}));
  ASSERT_OK_AND_ASSIGN(const cuda::Driver* const driver, cuda::Driver::Get());
  const cuda::ContextScope context(*driver, 0);
  cuda::api::CUdeviceptr managed = 0;
  ASSERT_EQ(driver->calls().cuMemAllocManaged(&managed, kMiB, cuda::api::CU_MEM_ATTACH_GLOBAL),
            cuda::api::CUDA_SUCCESS);
  EXPECT_TRUE(
      refused({.data = reinterpret_cast<void*>(managed), .bytes = kMiB, .kind = MemoryKind::kCuda},
              {"managed memory", "cudaMalloc"}));
  EXPECT_EQ(driver->calls().cuMemFree_v2(managed), cuda::api::CUDA_SUCCESS);
  EXPECT_EQ(fabric_->calls(Call::kRegDmabufMr), 0u);
}

// --- in several pieces ---------------------------------------------------------------------------

// Writes and reads of random runs between two regions, beside what they should come to.
void VerbsGpu::ExpectRandomRuns(const GpuRegion& from, const GpuRegion& to, const RemoteKey* key) {
  const uint64_t size = std::min(from.size(), to.size());
  const std::span<std::byte> source = View(from).first(size);
  const std::span<std::byte> target = View(to).first(size);
  for (const OpKind kind : {OpKind::kWrite, OpKind::kRead}) {
    const auto here = kind == OpKind::kWrite ? source : target;
    const auto there = kind == OpKind::kWrite ? target : source;
    Pattern(random_()).Fill(here);
    FillWith(there, kPoison);
    std::vector<std::byte> expected(size);
    std::vector<Op> ops;
    const uint32_t rails = out().rails();
    // Each part of what is written is of one run: others may land before it.
    uint64_t next = 0;
    while (next < size) {
      std::vector<kvxfer::Run> runs;
      uint64_t bytes = 0;
      while (next < size && runs.size() < caps().max_op_pieces && random_() % 16 != 0) {
        // From a few bytes, which would travel within a request, to more than a piece has.
        const uint64_t most = uint64_t{1} << (random_() % 21);
        const uint64_t length =
            std::min({1 + random_() % most, size - next, caps().max_op_bytes - bytes});
        if (length == 0) break;
        const uint64_t at = random_() % (size - length + 1);
        std::copy_n(here.begin() + static_cast<ptrdiff_t>(at), length,
                    expected.begin() + static_cast<ptrdiff_t>(next));
        const uint64_t local = kind == OpKind::kWrite ? at : next;
        const uint64_t remote = kind == OpKind::kWrite ? next : at;
        runs.push_back({.local = from.address() + local,
                        .remote = to.address() + remote,
                        .bytes = length,
                        .registration = from.registration.get(),
                        .key = key});
        bytes += length;
        next += length;
      }
      if (runs.empty()) continue;
      ops.push_back(out().Make(kind, 1, runs,
                               kind == OpKind::kWrite ? std::optional(7u) : std::nullopt,
                               static_cast<uint32_t>(ops.size()) % rails));
    }
    const size_t before = in().immediates.size();
    ASSERT_TRUE(pair_->PostAll(ops));
    ASSERT_TRUE(Ended());
    ASSERT_TRUE(Arrived(before + (kind == OpKind::kWrite ? ops.size() : 0)));
    EXPECT_EQ(out().failed(), 0u);
    ASSERT_EQ(std::memcmp(there.data(), expected.data(), size), 0)
        << (kind == OpKind::kWrite ? "write" : "read");
    // For a read what was local is the target of it.
    if (kind == OpKind::kWrite) continue;
    ASSERT_EQ(hooks_->kvxfer_standin_nic_pending(from.local.span.device_id), 0u);
  }
}

TEST_P(VerbsGpu, RandomRunsOverUnequalPiecesGoWhereTheyShould) {
  UseHost(Devices(2, 2));
  ASSERT_NO_FATAL_FAILURE(Start(4096));
  const std::array<size_t, 5> theirs = {4 * kMiB, 2 * kMiB, 2 * kMiB, 6 * kMiB, 2 * kMiB};
  const std::array<size_t, 4> ours = {2 * kMiB, 6 * kMiB, 2 * kMiB, 6 * kMiB};
  for (const bool in_parts : {false, true}) {
    SCOPED_TRACE(in_parts ? "in pieces" : "as one");
    fabric_->RefuseGpuMemoryAbove(in_parts ? 6 * kMiB : UINT64_MAX);
    const uint64_t before = fabric_->calls(Call::kRegDmabufMr);
    // The first and the last piece in part.
    ASSERT_OK_AND_ASSIGN(GpuRegion * to,
                         RegisterPieces(pair_->target(), theirs, 1, kMiB + 100, 14 * kMiB));
    EXPECT_EQ(fabric_->calls(Call::kRegDmabufMr) - before, in_parts ? 2u * (1 + 5) : 2u);
    ASSERT_OK_AND_ASSIGN(GpuRegion * from, RegisterPieces(pair_->initiator(), ours));
    const RemoteKey* const key = ImportGpu(*to);
    ASSERT_NE(key, nullptr);
    // A large part of it, so that it does not take long.
    ASSERT_NO_FATAL_FAILURE(ExpectRandomRuns(*from, *to, key));
  }
}

TEST_P(VerbsGpu, ADeviceThatTakesItAsOneGoesWithOneThatDoesNot) {
  UseHost(Devices(2, 2));
  ASSERT_NO_FATAL_FAILURE(Start(4096));
  const std::array<size_t, 3> bytes = {2 * kMiB, 4 * kMiB, 2 * kMiB};
  fabric_->FailCall(Call::kRegDmabufMr, 1, EINVAL);
  ASSERT_OK_AND_ASSIGN(GpuRegion * to, RegisterPieces(pair_->target(), bytes, 1));
  EXPECT_EQ(fabric_->calls(Call::kRegDmabufMr), 1u + 3 + 1);
  fabric_->FailCall(Call::kRegDmabufMr, 1, EINVAL);
  ASSERT_OK_AND_ASSIGN(GpuRegion * from, RegisterPieces(pair_->initiator(), bytes));
  const RemoteKey* const key = ImportGpu(*to);
  ASSERT_NE(key, nullptr);
  ExpectRandomRuns(*from, *to, key);
}

TEST_P(VerbsGpu, APieceThatIsRefusedRefusesTheRegion) {
  ASSERT_NO_FATAL_FAILURE(StartOne());
  const std::array<size_t, 3> bytes = {2 * kMiB, 4 * kMiB, 2 * kMiB};
  for (const uint64_t piece : {2u, 3u, 4u}) {  // the first call is for the whole
    const size_t objects = fabric_->live_objects();
    fabric_->FailCall(Call::kRegDmabufMr, 1, EINVAL);
    fabric_->FailCall(Call::kRegDmabufMr, piece, ENOMEM);
    EXPECT_TRUE(Fails(RegisterPieces(pair_->target(), bytes).status(),
                      absl::StatusCode::kResourceExhausted, {"t0", "BAR1"}));
    EXPECT_EQ(fabric_->live_objects(), objects);
  }
}

// Without order an op is one request, so it must not be cut.
TEST_P(VerbsGpu, WithoutOrderPiecesAreRefused) {
  UseHost(Devices(1, 1));
  fabric_->Reorder(1);
  ASSERT_NO_FATAL_FAILURE(Start(4096));
  const std::array<size_t, 2> bytes = {2 * kMiB, 2 * kMiB};
  ASSERT_OK(RegisterPieces(pair_->target(), bytes));
  fabric_->RefuseGpuMemoryAbove(2 * kMiB);
  EXPECT_FALSE(RegisterPieces(pair_->target(), bytes).ok());
}

TEST_P(VerbsGpu, AnOpOfMorePiecesThanTheQueueHoldsEndsWithTheRemedy) {
  verbs::VerbsOptions options;
  options.queue_depth = 16;
  ASSERT_NO_FATAL_FAILURE(StartOne(options));
  const std::array<size_t, 2> bytes = {2 * kMiB, 2 * kMiB};
  fabric_->RefuseGpuMemoryAbove(2 * kMiB);
  ASSERT_OK_AND_ASSIGN(GpuRegion * to, RegisterPieces(pair_->target(), bytes));
  const RemoteKey* const key = ImportGpu(*to);
  ASSERT_NE(key, nullptr);
  // Each goes over the boundary: two requests.
  const auto op = [&](size_t count) {
    const kvxfer::Run run{.local = local_->address(),
                          .remote = to->address() + 2 * kMiB - 8,
                          .bytes = 16,
                          .registration = local_->registration.get(),
                          .key = key};
    return out().Make(OpKind::kWrite, 1, std::vector<kvxfer::Run>(count, run), 1);
  };
  ASSERT_TRUE(pair_->PostAll(std::vector<Op>{op(7), op(8)}));
  ASSERT_TRUE(Ended());
  EXPECT_OK(out().ended[1]);
  EXPECT_TRUE(Fails(out().ended[2], absl::StatusCode::kFailedPrecondition,
                    {"16 requests", "verbs.queue_depth"}));
}

// --- visibility ----------------------------------------------------------------------------------

TEST_P(VerbsGpu, ManyArrivalsOfAPollAreOneFlush) {
  ASSERT_NO_FATAL_FAILURE(StartOne());
  ASSERT_OK_AND_ASSIGN(GpuRegion * to, RegisterOne(pair_->target()));
  const RemoteKey* const key = ImportGpu(*to);
  ASSERT_NE(key, nullptr);
  Pattern(1).Fill(local_->bytes());
  const uint64_t before = flushes();
  ASSERT_NO_FATAL_FAILURE(WriteAndWait(*to, key, 10));
  // Nobody has looked: nothing is told of, and nothing is there.
  EXPECT_EQ(flushes(), before);
  EXPECT_GT(hooks_->kvxfer_standin_nic_pending(0), 0u);
  EXPECT_EQ(FirstNonZero(View(*to)), kNoMismatch);
  const std::vector<Event> events = PollTarget();
  EXPECT_EQ(std::ranges::count(events, EventKind::kImmediate, &Event::kind), 10);
  EXPECT_EQ(flushes(), before + 1);
  EXPECT_EQ(Pattern(1).Mismatch(View(*to).first(10 * kOp)), kNoMismatch);
  EXPECT_TRUE(PollTarget().empty());
  EXPECT_EQ(flushes(), before + 1);
  ASSERT_TRUE(Ended());
}

TEST_P(VerbsGpu, AHostThatHasNoGpuMemoryRegisteredFlushesNothing) {
  ASSERT_NO_FATAL_FAILURE(StartOne());
  const uint64_t before = flushes();
  ASSERT_TRUE(pair_->PostAll(Stream(OpKind::kWrite, 1, 50, kOp)));
  ASSERT_TRUE(pair_->PostAll(Stream(OpKind::kRead, 1, 50, kOp)));
  ASSERT_TRUE(Ended());
  ASSERT_TRUE(Arrived(50));
  EXPECT_EQ(flushes(), before);
  // Nor does it any more once none is.
  ASSERT_OK(RegisterOne(pair_->target()));
  regions_.clear();
  ASSERT_TRUE(pair_->PostAll(Stream(OpKind::kWrite, 1, 50, kOp)));
  ASSERT_TRUE(Arrived(100));
  EXPECT_EQ(flushes(), before);
  ASSERT_TRUE(Ended());
}

TEST_P(VerbsGpu, ReadsIntoItAreFlushedAndOthersAreNot) {
  ASSERT_NO_FATAL_FAILURE(StartOne());
  ASSERT_OK_AND_ASSIGN(GpuRegion * into, RegisterOne(pair_->initiator(), 1));
  Pattern(1).Fill(remote_->bytes());
  const auto read = [&](uint64_t local, const Registration* registration) {
    return out().Make(OpKind::kRead, 1,
                      {{.local = local,
                        .remote = remote_->address(),
                        .bytes = kOp,
                        .registration = registration,
                        .key = key_}});
  };
  const uint64_t before = flushes();
  ASSERT_TRUE(pair_->PostAll(std::vector<Op>{read(local_->address(), local_->registration.get())}));
  ASSERT_TRUE(Ended());
  EXPECT_EQ(flushes(), before);
  ASSERT_TRUE(pair_->PostAll(std::vector<Op>{read(into->address(), into->registration.get())}));
  ASSERT_TRUE(Ended());
  EXPECT_EQ(flushes(), before + 1);
  EXPECT_EQ(Pattern(1).Mismatch(View(*into).first(kOp)), kNoMismatch);
}

TEST_P(VerbsGpu, WhatCannotBeFlushedIsNotToldOfAndItsLinkEnds) {
  ASSERT_NO_FATAL_FAILURE(StartOne());
  ASSERT_OK_AND_ASSIGN(GpuRegion * to, RegisterOne(pair_->target()));
  const RemoteKey* const key = ImportGpu(*to);
  ASSERT_NE(key, nullptr);
  hooks_->kvxfer_standin_fail(kFlush, 0, cuda::api::CUDA_ERROR_UNKNOWN);
  ASSERT_NO_FATAL_FAILURE(WriteAndWait(*to, key, 10));
  ASSERT_TRUE(pair_->Until([&] { return in().down && out().down; }));
  EXPECT_TRUE(in().immediates.empty());
  EXPECT_THAT(std::string(in().why.message()), HasSubstr(kFlush));
  EXPECT_THAT(std::string(out().why.message()), HasSubstr(kFlush));
  hooks_->kvxfer_standin_fail_none();
  // A new one is as good as any.
  ASSERT_OK_AND_ASSIGN(TestLink * again, pair_->initiator().Connect(pair_->target()));
  ASSERT_TRUE(pair_->Until([&] { return again->connected; }));
}

TEST_P(VerbsGpu, AReadThatCannotBeFlushedFailsAlone) {
  ASSERT_NO_FATAL_FAILURE(StartOne());
  ASSERT_OK_AND_ASSIGN(GpuRegion * into, RegisterOne(pair_->initiator(), 1));
  Pattern(1).Fill(remote_->bytes());
  const auto read = [&](uint64_t local, const Registration* registration) {
    return out().Make(OpKind::kRead, 1,
                      {{.local = local,
                        .remote = remote_->address(),
                        .bytes = kOp,
                        .registration = registration,
                        .key = key_}});
  };
  hooks_->kvxfer_standin_fail(kFlush, 1, cuda::api::CUDA_ERROR_UNKNOWN);
  const uint64_t before = fabric_->completions();
  ASSERT_EQ(out().Post(std::vector<Op>{read(into->address(), into->registration.get()),
                                       read(local_->address(), local_->registration.get())}),
            2u);
  ASSERT_TRUE(Eventually(kAmple, [&] { return fabric_->completions() >= before + 2; }));
  ASSERT_TRUE(Ended());
  // Not an error of the rail: nobody is to try it over another.
  EXPECT_TRUE(Fails(out().ended[1], absl::StatusCode::kInternal, {kFlush}));
  EXPECT_OK(out().ended[2]);
  ASSERT_TRUE(
      pair_->PostAll(std::vector<Op>{read(into->address() + kOp, into->registration.get())}));
  ASSERT_TRUE(Ended());
  EXPECT_OK(out().ended[3]);
  EXPECT_EQ(Pattern(1).Mismatch(View(*into).subspan(kOp, kOp)), kNoMismatch);
  EXPECT_FALSE(out().down);
}

// What lands while nobody polls is in the hub's queue before the next Poll begins.
TEST_P(VerbsGpu, WhatCameInWhileARailWasFencedIsFlushedToo) {
  ASSERT_NO_FATAL_FAILURE(StartOne());
  ASSERT_OK_AND_ASSIGN(GpuRegion * to, RegisterOne(pair_->target()));
  const RemoteKey* const key = ImportGpu(*to);
  ASSERT_NE(key, nullptr);
  Pattern(1).Fill(local_->bytes());
  ASSERT_NO_FATAL_FAILURE(WriteAndWait(*to, key, 3));
  in().FenceRail(0);
  EXPECT_EQ(FirstNonZero(View(*to)), kNoMismatch);
  const std::vector<Event> events = PollTarget();
  in().fencing_rails.clear();
  EXPECT_EQ(std::ranges::count(events, EventKind::kImmediate, &Event::kind), 3);
  EXPECT_EQ(Pattern(1).Mismatch(View(*to).first(3 * kOp)), kNoMismatch);
  ASSERT_TRUE(Ended());
}

}  // namespace
}  // namespace kvxfer::testing
