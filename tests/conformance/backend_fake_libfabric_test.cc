// The libfabric backend over a fake fabric that is told how to behave. Runs where the environment
// has brought the fake (docs/testing.md).

#include <sys/mman.h>

#include <cstdlib>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "src/backends/libfabric/end.h"
#include "src/backends/libfabric/provider.h"
#include "src/cuda/driver.h"
#include "tests/conformance/backend_conformance.h"
#include "tests/support/agents.h"
#include "tests/support/blocks.h"
#include "tests/support/cuda_driver/hooks.h"
#include "tests/support/needs_stand_in.h"
#include "tests/support/scale.h"

namespace kvxfer::testing {
namespace {

using std::chrono::milliseconds;

// What FAKE_FABRIC is, for those whose backends are made meanwhile.
class Fake {
 public:
  explicit Fake(const std::string& settings) : before_(std::getenv("FAKE_FABRIC")) {
    EXPECT_EQ(::setenv("FAKE_FABRIC", settings.c_str(), 1), 0);
  }
  ~Fake() { EXPECT_EQ(::setenv("FAKE_FABRIC", before_.c_str(), 1), 0); }

 private:
  const std::string before_;
};

std::vector<Flavour> FakeFlavours() {
  if (std::getenv("FAKE_FABRIC") == nullptr) return {};
  std::vector<Flavour> all = LibfabricFlavours();
  for (Flavour& flavour : all) flavour.domains.clear();
  return all;
}

class LibfabricFake : public BackendConformance {
 protected:
  static Flavour Over(std::string provider) {
    Flavour flavour = GetParam();
    flavour.provider = std::move(provider);
    return flavour;
  }
};
// The entries of ctest say over what; see tests/fabric/fabric.cmake.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(LibfabricFake);
INSTANTIATE_TEST_SUITE_P(Immediate, LibfabricFake, ::testing::ValuesIn(FakeFlavours()),
                         FlavourName);

TEST_P(LibfabricFake, KeysThatKvxferDoesNotCarryAreRefused) {
  const Flavour over = Over("endpoint_keys");
  const Fake bound("endpoint_keys");
  EXPECT_TRUE(Fails(Party::Make(over, "alone").status(), absl::StatusCode::kUnavailable,
                    {"endpoint_keys", "FI_MR_ENDPOINT", "ucx"}));
  const Fake raw("endpoint_keys,mr_mode=local+prov_key+raw");
  EXPECT_TRUE(Fails(Party::Make(over, "alone").status(), absl::StatusCode::kUnavailable,
                    {"endpoint_keys", "FI_MR_RAW", "ucx"}));
}

// Memory is registered on any thread while the driver makes progress.
TEST_P(LibfabricFake, AProviderForOneThreadIsRefused) {
  const Fake one("efa,api_minor=18,thread_safe=0");
  EXPECT_TRUE(Fails(Party::Make(Over("efa"), "alone").status(), absl::StatusCode::kUnavailable,
                    {"efa", "FI_THREAD_SAFE", "ucx"}));
}

// Peers would write through it by themselves.
TEST_P(LibfabricFake, SharedMemoryIsNotAskedFor) {
  for (const char* settings : {"efa,api_minor=17", "efa,api_minor=18"}) {
    const Fake efa(settings);
    ASSERT_OK_AND_ASSIGN(const libfabric::InfoPtr info, libfabric::FindProvider("efa", "", ""));
    EXPECT_EQ(info->caps & (FI_LOCAL_COMM | FI_REMOTE_COMM), FI_REMOTE_COMM) << settings;
    EXPECT_LE(info->tx_attr->size, libfabric::kMaxFlights);
    EXPECT_LE(info->rx_attr->size, libfabric::kMaxFlights + libfabric::kMaxUnheard);
  }
}

// efa of 1.17 tells of a peer's write with the flag of one's own.
TEST_P(LibfabricFake, ImmediatesOfAnOldLibrary) {
  const Fake old("efa,api_minor=17");
  pair_ = BackendPair::Make(Over("efa"));
  ASSERT_NE(pair_, nullptr);
  ASSERT_NO_FATAL_FAILURE(Prepare(64 * 8));
  ASSERT_TRUE(pair_->PostAll(Stream(OpKind::kWrite, 1, 64, 8)));
  ASSERT_TRUE(Ended());
  ASSERT_TRUE(Arrived(64));
}

// The driver posts and polls while another thread registers, and lets go of what that has made.
TEST_P(LibfabricFake, MemoryIsRegisteredBesideTheDriver) {
  const Fake efa("efa,api_minor=18");
  pair_ = BackendPair::Make(Over("efa"));
  ASSERT_NE(pair_, nullptr);
  ASSERT_NO_FATAL_FAILURE(Prepare(64 * 8));
  ASSERT_OK_AND_ASSIGN(const TestMemory memory, TestMemory::Allocate(GetParam().memory, 65536));
  std::mutex mutex;
  std::vector<std::unique_ptr<Registration>> made;
  const auto count = [&] {
    const std::lock_guard lock(mutex);
    return made.size();
  };
  const std::jthread other([&](const std::stop_token& stop) {
    for (uint32_t rkey = 1; !stop.stop_requested(); ++rkey) {
      while (count() >= 64 && !stop.stop_requested()) Pause();
      auto registration = pair_->target().backend().Register(
          {.rkey = rkey, .span = memory.span(), .access = Access::kReadWrite});
      ASSERT_OK(registration);
      EXPECT_FALSE((*registration)->key.empty());
      const std::lock_guard lock(mutex);
      made.push_back(*std::move(registration));
    }
  });
  for (uint64_t transfer = 1; transfer <= 10; ++transfer) {
    ASSERT_TRUE(pair_->PostAll(Stream(OpKind::kWrite, transfer, 64, 8)));
    ASSERT_TRUE(Ended());
    ASSERT_TRUE(pair_->Until([&] { return count() > 0; }));
    const std::lock_guard lock(mutex);
    made.clear();
  }
  ASSERT_TRUE(Arrived(640));
}

// Expect each op to end once where a provider tells of one failure several times over.
TEST_P(LibfabricFake, AnErrorThatIsToldTwiceEndsOneOp) {
  const Fake repeating("efa,api_minor=18,errors=0.2,repeat=1,spare=1");
  pair_ = BackendPair::Make(Over("efa"));
  ASSERT_NE(pair_, nullptr);
  ASSERT_NO_FATAL_FAILURE(Prepare(64 * 8));
  const std::vector<Op> ops = Stream(OpKind::kWrite, 1, 64, 8);
  size_t posted = 0;
  ASSERT_TRUE(pair_->Until([&] { return (posted = out().Post(ops)) > 0; }));
  // The party itself expects no op to end twice.
  ASSERT_TRUE(pair_->Until([&] { return out().open.empty(); }));
  EXPECT_EQ(out().ended.size(), posted);
  EXPECT_GT(out().failed(), 0u);
}

// Expect another backend to be taken where writes of a peer land and nobody is told of them.
TEST_P(LibfabricFake, ADeviceThatTellsOfNoWritesIsNotTaken) {
  const Fake mute("efa,api_minor=18,mute=1");
  constexpr Shape kSmall{.block_bytes = 512, .ids = 4};
  AgentOptions a = OptionsFor(Over("efa"), "a");
  a.backends = {"libfabric", "tcp"};
  a.connect_timeout = std::chrono::seconds(1);
  AgentOptions b = a;
  b.name = "b";
  ASSERT_OK_AND_ASSIGN(Pair pair, Pair::Create(Over("efa"), a, b, kSmall.memory_bytes()));
  const BlockSet blocks(kSmall, pair.a.memory.address(), pair.b.memory.address());
  ASSERT_OK_AND_ASSIGN(const Transfer transfer, blocks.Write(*pair.a.agent, "b", Unhurried()));
  ASSERT_OK(transfer.Wait(kAmple));
  EXPECT_EQ(transfer.stats().path, "tcp");
  ASSERT_OK_AND_ASSIGN(const Transfer next, blocks.Write(*pair.a.agent, "b", Unhurried()));
  ASSERT_OK(next.Wait(kAmple));
  EXPECT_EQ(next.stats().path, "tcp");
  // Told once the attempt has ended, for which nobody waited.
  EXPECT_TRUE(Eventually(kAmple, [&] {
    const auto why = pair.a.agent->Explain("b");
    return why.ok() && why->paths.size() == 2 &&
           why->paths[0].why.find("does not tell of peers' writes") != std::string::npos;
  }));
}

TEST_P(LibfabricFake, ARegistrationThatFailsNamesTheRemedy) {
  const Fake efa("efa,api_minor=18");
  ASSERT_OK_AND_ASSIGN(auto alone, Party::Make(Over("efa"), "alone"));
  void* const gone = ::mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_EQ(::munmap(gone, 4096), 0);
  const LocalRegion region{
      .rkey = 1, .span = {.data = gone, .bytes = 4096}, .access = Access::kReadWrite};
  EXPECT_TRUE(Fails(alone->backend().Register(region).status(), absl::StatusCode::kUnavailable,
                    {"Bad address", "mapped", "freed", "GPU"}));
}

absl::Status RegisterAs(Party& party, const MemorySpan& span) {
  return party.backend().Register({.rkey = 1, .span = span, .access = Access::kReadWrite}).status();
}

// A provider that was asked for GPU memory would initialise CUDA.
TEST_P(LibfabricFake, GpuMemoryIsAskedForWhereCudaIsInUse) {
  if (GetParam().memory == MemoryType::kCuda || cuda::Driver::IfInUse() != nullptr) {
    GTEST_SKIP() << "this process uses CUDA already";
  }
  const Fake able("efa,api_minor=18,hmem=1");
  ASSERT_OK_AND_ASSIGN(auto early, Party::Make(Over("efa"), "early"));
  EXPECT_EQ(cuda::Driver::IfInUse(), nullptr);
  KVXFER_NEEDS_STAND_IN();  // which the fake finds; and from here on CUDA is in use
  ASSERT_OK_AND_ASSIGN(const TestMemory memory, TestMemory::Allocate(MemoryType::kCuda, 65536));
  EXPECT_TRUE(Fails(RegisterAs(*early, memory.span()), absl::StatusCode::kFailedPrecondition,
                    {"efa:rdmap0s0-rdm", "did not use CUDA when the agent was made"}));
  ASSERT_OK_AND_ASSIGN(auto late, Party::Make(Over("efa"), "late"));
  EXPECT_OK(RegisterAs(*late, memory.span()));
}

// Over GPU memory alone: see tests/fabric/fabric.cmake.
class LibfabricGpu : public LibfabricFake {
 protected:
  void SetUp() override {
    if (GetParam().memory != MemoryType::kCuda) GTEST_SKIP() << "KVXFER_FABRIC_MEMORY is not cuda";
    KVXFER_NEEDS_STAND_IN();
    hooks_ = cuda_driver::FindHooks();
    ASSERT_NE(hooks_, nullptr);
  }
  void TearDown() override {
    if (hooks_ == nullptr) return;
    hooks_->kvxfer_standin_fail_none();
    LibfabricFake::TearDown();
  }
  void StartOver(const char* settings) {
    const Fake fake(settings);
    pair_ = BackendPair::Make(Over("efa"));
    ASSERT_NE(pair_, nullptr);
    ASSERT_NO_FATAL_FAILURE(Prepare(64 * 4096));
  }

  static constexpr const char* kFlush = "cuFlushGPUDirectRDMAWrites";
  const cuda_driver::Hooks* hooks_ = nullptr;
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(LibfabricGpu);
INSTANTIATE_TEST_SUITE_P(Immediate, LibfabricGpu, ::testing::ValuesIn(FakeFlavours()), FlavourName);

TEST_P(LibfabricGpu, WhatAProviderDoesNotTakeIsRefusedWithItsCause) {
  ASSERT_OK_AND_ASSIGN(const TestMemory memory, TestMemory::Allocate(MemoryType::kCuda, 65536));
  const Fake unable("efa,api_minor=18,hmem=0");
  ASSERT_OK_AND_ASSIGN(auto without, Party::Make(Over("efa"), "without"));
  EXPECT_TRUE(Fails(RegisterAs(*without, memory.span()), absl::StatusCode::kFailedPrecondition,
                    {"efa:rdmap0s0-rdm", "FI_HMEM", "fi_info"}));
  // It would register it, and copy with a CPU.
  const Fake short_of("efa,api_minor=18,hmem=1,p2p=0");
  ASSERT_OK_AND_ASSIGN(auto copying, Party::Make(Over("efa"), "copying"));
  EXPECT_TRUE(Fails(RegisterAs(*copying, memory.span()), absl::StatusCode::kFailedPrecondition,
                    {"efa:rdmap0s0-rdm", "its device does not reach it", "efa-nv-peermem"}));
  const Fake able("efa,api_minor=18,hmem=1,regions=1");  // which the domain takes for itself
  ASSERT_OK_AND_ASSIGN(auto full, Party::Make(Over("efa"), "full"));
  EXPECT_TRUE(Fails(RegisterAs(*full, memory.span()), absl::StatusCode::kUnavailable,
                    {"fi_mr_regattr", "of GPU 0", "BAR1"}));
  // Freed, or never there.
  MemorySpan gone = memory.span();
  gone.data = reinterpret_cast<void*>(uintptr_t{1} << 40);
  EXPECT_TRUE(Fails(RegisterAs(*full, gone), absl::StatusCode::kInvalidArgument, {}));
}

// Whether the immediate came with the write, or over the control stream.
TEST_P(LibfabricGpu, NothingIsToldOfBeforeKernelsSeeIt) {
  for (const char* settings :
       {"efa,api_minor=18,hmem=1", "efa,api_minor=18,hmem=1,cq_data_size=0"}) {
    SCOPED_TRACE(settings);
    ASSERT_NO_FATAL_FAILURE(StartOver(settings));
    Pattern(1).Fill(local_->bytes());
    size_t early = 0;
    pair_->target().on_immediate = [&](TestLink&, uint32_t i) {
      early +=
          Pattern(1).Mismatch(remote_->bytes().subspan(i * 4096, 4096), i * 4096) != kNoMismatch;
    };
    const uint64_t before = hooks_->kvxfer_standin_calls(kFlush);
    ASSERT_TRUE(pair_->PostAll(Stream(OpKind::kWrite, 1, 64, 4096)));
    ASSERT_TRUE(Ended());
    ASSERT_TRUE(Arrived(64));
    EXPECT_EQ(early, 0u);
    EXPECT_GT(hooks_->kvxfer_standin_calls(kFlush), before);
    remote_ = local_ = nullptr;
    pair_.reset();
  }
}

TEST_P(LibfabricGpu, WhatCannotBeFlushedIsNotToldOfAndItsLinkEnds) {
  ASSERT_NO_FATAL_FAILURE(StartOver("efa,api_minor=18,hmem=1"));
  hooks_->kvxfer_standin_fail(kFlush, 0, cuda::api::CUDA_ERROR_UNKNOWN);
  out().Post(Stream(OpKind::kWrite, 1, 8, 4096));
  ASSERT_TRUE(pair_->Until([&] { return in().down && out().down; }));
  EXPECT_TRUE(in().immediates.empty());
  EXPECT_NE(in().why.message().find(kFlush), absl::string_view::npos) << in().why;
  EXPECT_NE(out().why.message().find(kFlush), absl::string_view::npos) << out().why;
}

TEST_P(LibfabricGpu, AReadThatCannotBeFlushedFailsAlone) {
  ASSERT_NO_FATAL_FAILURE(StartOver("efa,api_minor=18,hmem=1"));
  Pattern(1).Fill(remote_->bytes());
  hooks_->kvxfer_standin_fail(kFlush, 1, cuda::api::CUDA_ERROR_UNKNOWN);
  ASSERT_TRUE(pair_->PostAll(Stream(OpKind::kRead, 1, 1, 4096)));
  ASSERT_TRUE(Ended());
  EXPECT_TRUE(Fails(out().ended[1], absl::StatusCode::kInternal, {kFlush}));
  ASSERT_TRUE(pair_->PostAll(Stream(OpKind::kRead, 2, 64, 4096)));
  ASSERT_TRUE(Ended());
  EXPECT_EQ(out().failed(), 1u);
  EXPECT_EQ(Pattern(1).Mismatch(local_->bytes()), kNoMismatch);
}

// A completion queue holds what has come in and was not read: its peer stops before it is full.
TEST_P(LibfabricFake, WhatATargetDoesNotReadIsBounded) {
  const Fake efa("efa,api_minor=18");
  pair_ = BackendPair::Make(Over("efa"));
  ASSERT_NE(pair_, nullptr);
  ASSERT_NO_FATAL_FAILURE(Prepare(4096));
  uint32_t posted = 0;
  std::optional<Op> op;
  for (Time last = Now(); Now() - last < milliseconds(100);) {
    if (!op) op = out().Make(OpKind::kWrite, 1, {RunAt(0, 8)}, posted);
    pair_->initiator().Turn();
    if (out().Post({&*op, 1}) == 0) continue;
    op.reset();
    ++posted;
    last = Now();
  }
  EXPECT_TRUE(pair_->AllEnded());
  EXPECT_EQ(posted, libfabric::kMaxUnheard);
  ASSERT_TRUE(Arrived(posted));
  // Expect that it goes on, also across the end of what counts them.
  ASSERT_TRUE(pair_->PostAll(Stream(OpKind::kWrite, 2, 512, 8)));
  ASSERT_TRUE(Ended());
  ASSERT_TRUE(Arrived(posted + 512));
}

// Expect an immediate that comes long after its write has ended to be looked for, by who sleeps,
// and to be waited for by a fence.
TEST_P(LibfabricFake, ImmediatesThatComeBehindTheirWrites) {
  const Fake late("efa,api_minor=18,behind=0.5,delay=20000");
  pair_ = BackendPair::Make(Over("efa"));
  ASSERT_NE(pair_, nullptr);
  ASSERT_NO_FATAL_FAILURE(Prepare(64 * 8));
  for (uint64_t transfer = 1; transfer <= 10; ++transfer) {
    const size_t before = in().immediates.size();
    ASSERT_TRUE(pair_->PostAll(Stream(OpKind::kWrite, transfer, 64, 8)));
    ASSERT_TRUE(Ended());
    if (transfer % 2 == 0) {
      out().Fence(transfer);
      in().Fence(transfer);
      ASSERT_TRUE(pair_->Until([&] { return in().fenced.contains(transfer); }));
      EXPECT_EQ(in().immediates.size(), before + 64) << "some came after the fence";
    } else {
      while (in().immediates.size() < before + 64) {
        pair_->initiator().Turn();
        pair_->initiator().backend().Arm();
        ASSERT_TRUE(pair_->target().Turn() > 0 || pair_->target().Sleep(milliseconds(2000)));
      }
    }
  }
}

// Expect nothing to land once a fence is answered, also of writes that are said to have failed and
// land ten milliseconds later.
TEST_P(LibfabricFake, AFailedWriteDoesNotLandAfterItsFence) {
  const Fake failing("efa,api_minor=18,errors=0.3,late=20000,delay=0");
  ASSERT_OK_AND_ASSIGN(auto initiator, Party::Make(Over("efa"), "initiator"));
  ASSERT_OK_AND_ASSIGN(auto target, Party::Make(Over("efa"), "target"));
  ASSERT_OK_AND_ASSIGN(TestRegion * local, initiator->Register(8 * 4096));
  ASSERT_OK_AND_ASSIGN(TestRegion * remote, target->Register(8 * 4096));
  const auto until = [&](const std::function<bool()>& done) {
    return Eventually(kAmple, [&] {
      initiator->Turn();
      target->Turn();
      return done();
    });
  };
  int failed = 0;
  for (int round = 0; round < 20; ++round) {
    ASSERT_OK_AND_ASSIGN(TestLink * out, initiator->Connect(*target));
    const size_t links = target->links.size();
    ASSERT_TRUE(until([&] { return target->links.size() > links; }));
    TestLink* const in = target->links.back().get();
    in->endpoint->Authorize();
    ASSERT_TRUE(until([&] { return out->down || (out->connected && out->rail_up(0)); }));
    if (out->down) continue;  // the probe failed
    ASSERT_OK_AND_ASSIGN(auto key,
                         out->endpoint->Import(remote->remote(), remote->registration->key));
    Pattern(static_cast<uint64_t>(round)).Fill(local->bytes());
    for (uint64_t at = 0; at < 8 * 4096; at += 4096) {
      const Op op = out->Make(OpKind::kWrite, 1,
                              {{.local = local->address() + at,
                                .remote = remote->address() + at,
                                .bytes = 4096,
                                .registration = local->registration.get(),
                                .key = key.get()}});
      out->Post({&op, 1});
    }
    out->keys.push_back(std::move(key));
    out->Fence(1);
    in->Fence(1);
    ASSERT_TRUE(until([&] { return in->fenced.contains(1); }));
    remote->memory.Clear();
    const Time end = Now() + milliseconds(30);
    ASSERT_TRUE(until([&] { return Now() > end; }));
    EXPECT_EQ(FirstNonZero(remote->bytes()), kNoMismatch) << "round " << round;
    failed += out->rails_down.empty() ? 0 : 1;
  }
  EXPECT_GT(failed, 0);
}

}  // namespace
}  // namespace kvxfer::testing
