// Every misuse is a Status that names what and whom, without a crash and without any effect: after
// each test nothing has landed, nobody was told, and a good transfer still goes through.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "src/core/metadata.h"
#include "src/core/strings.h"
#include "tests/support/agents.h"
#include "tests/support/blocks.h"
#include "tests/support/child_process.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

using absl::StatusCode;
using std::chrono::milliseconds;
constexpr uint64_t kBytes = 64 * 1024;
constexpr uint64_t kHuge = uint64_t{1} << 63;

Flavour Tcp() { return PlainFlavours()[1]; }

class BadInput : public ::testing::TestWithParam<Flavour> {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(pair_, Pair::Create(GetParam(), kBytes));
    Pattern(1).Fill(pair_.a.memory.bytes());
    local_ = pair_.a.memory.address();
    remote_ = pair_.b.memory.address();
  }
  void TearDown() override {
    if (pair_.a.agent == nullptr || pair_.b.agent == nullptr) return;
    EXPECT_EQ(FirstNonZero(pair_.b.memory.bytes()), kNoMismatch) << "something has landed";
    EXPECT_TRUE(pair_.b.memory.GuardsIntact());
    const absl::StatusOr<Transfer> good =
        BlockSet({}, local_, remote_).Write(*pair_.a.agent, "b", Telling("good"));
    ASSERT_OK(good);
    ASSERT_OK(good->Wait(kAmple));
    const absl::StatusOr<Notification> n = pair_.b.agent->WaitNotification(kAmple);
    ASSERT_OK(n);
    EXPECT_EQ(n->payload, "good") << "somebody was told of a refused transfer";
  }
  absl::StatusOr<Transfer> Write(std::vector<Descriptor> local, std::vector<Descriptor> remote,
                                 const TransferOptions& options = {}) {
    return pair_.a.agent->Write("b", DescriptorBlocks{.local = local, .remote = remote}, options);
  }
  absl::StatusOr<Transfer> WritePaged(const PagedRegion& local, const PagedRegion& remote,
                                      std::vector<uint32_t> local_ids,
                                      std::vector<uint32_t> remote_ids) {
    return pair_.a.agent->Write("b", PagedBlocks{.local = {&local, 1},
                                                 .remote = {&remote, 1},
                                                 .local_ids = local_ids,
                                                 .remote_ids = remote_ids});
  }
  PagedRegion Pages(uint64_t base) const {
    return {.base = base, .block_bytes = 1024, .stride = 1024, .count = 64};
  }

  Pair pair_;
  uint64_t local_ = 0;
  uint64_t remote_ = 0;
};

TEST_P(BadInput, AddressesOutsideOfEveryRegion) {
  EXPECT_TRUE(Fails(Write({{local_ - 1, 10}}, {{remote_, 10}}), StatusCode::kInvalidArgument));
  EXPECT_TRUE(
      Fails(Write({{local_, 10}}, {{remote_ - 1, 10}}), StatusCode::kInvalidArgument, {"b"}));
  EXPECT_TRUE(
      Fails(Write({{local_ + kBytes - 9, 10}}, {{remote_, 10}}), StatusCode::kInvalidArgument));
  EXPECT_TRUE(
      Fails(Write({{local_, 10}}, {{remote_ + kBytes - 9, 10}}), StatusCode::kInvalidArgument));
  EXPECT_TRUE(Fails(Write({{local_, 10}}, {{0, 10}}), StatusCode::kInvalidArgument));
  EXPECT_TRUE(Fails(Write({{0, 10}}, {{remote_, 10}}), StatusCode::kInvalidArgument));
  // Good blocks before a bad one are not sent.
  EXPECT_TRUE(Fails(Write({{local_, 10}, {local_, 10}}, {{remote_, 10}, {remote_ + kBytes, 10}}),
                    StatusCode::kInvalidArgument));
}

TEST_P(BadInput, HugeSizes) {
  for (const uint64_t bytes : {kHuge - 1, kHuge, kHuge + 1, UINT64_MAX, UINT64_MAX - local_ + 1}) {
    EXPECT_TRUE(Fails(Write({{local_, bytes}}, {{remote_, bytes}}), StatusCode::kInvalidArgument))
        << bytes;
    PagedRegion mine = Pages(local_);
    PagedRegion theirs = Pages(remote_);
    mine.block_bytes = theirs.block_bytes = mine.stride = theirs.stride = bytes;
    EXPECT_TRUE(Fails(WritePaged(mine, theirs, {0}, {0}), StatusCode::kInvalidArgument)) << bytes;
    theirs = mine = Pages(local_);
    theirs.base = remote_;
    theirs.stride = bytes;
    EXPECT_TRUE(Fails(WritePaged(mine, theirs, {0}, {1}), StatusCode::kInvalidArgument)) << bytes;
    theirs.stride = 1024;
    theirs.count = bytes;
    EXPECT_TRUE(Fails(WritePaged(mine, theirs, {0}, {1}), StatusCode::kInvalidArgument)) << bytes;
  }
}

TEST_P(BadInput, ListsThatDoNotFit) {
  EXPECT_TRUE(Fails(Write({}, {}), StatusCode::kInvalidArgument, {"no blocks"}));
  EXPECT_TRUE(Fails(Write({{local_, 8}}, {}), StatusCode::kInvalidArgument));
  EXPECT_TRUE(Fails(Write({{local_, 8}}, {{remote_, 9}}), StatusCode::kInvalidArgument));
  EXPECT_TRUE(Fails(WritePaged(Pages(local_), Pages(remote_), {}, {}), StatusCode::kInvalidArgument,
                    {"no blocks"}));
  EXPECT_TRUE(
      Fails(WritePaged(Pages(local_), Pages(remote_), {0, 1}, {0}), StatusCode::kInvalidArgument));
  EXPECT_TRUE(Fails(WritePaged(Pages(local_), Pages(remote_), {64}, {0}),
                    StatusCode::kInvalidArgument, {"64"}));
  EXPECT_TRUE(Fails(WritePaged(Pages(local_), Pages(remote_), {0}, {UINT32_MAX}),
                    StatusCode::kInvalidArgument, {"4294967295"}));
  PagedRegion other_size = Pages(remote_);
  other_size.block_bytes = 512;
  EXPECT_TRUE(Fails(WritePaged(Pages(local_), other_size, {0}, {0}), StatusCode::kInvalidArgument));
  PagedRegion too_close = Pages(remote_);
  too_close.stride = 1023;
  EXPECT_TRUE(Fails(WritePaged(Pages(local_), too_close, {0}, {0}), StatusCode::kInvalidArgument));
  const PagedBlocks no_regions{.local = {}, .remote = {}, .local_ids = {}, .remote_ids = {}};
  EXPECT_TRUE(Fails(pair_.a.agent->Write("b", no_regions), StatusCode::kInvalidArgument));
}

TEST_P(BadInput, DestinationTwice) {
  EXPECT_TRUE(Fails(WritePaged(Pages(local_), Pages(remote_), {0, 1}, {5, 5}),
                    StatusCode::kInvalidArgument, {"5"}));
  EXPECT_TRUE(Fails(Write({{local_, 10}, {local_ + 100, 10}}, {{remote_, 10}, {remote_ + 9, 10}}),
                    StatusCode::kInvalidArgument, {"overlap"}));
  // For a read it is the local side that must be free of overlap; a source may be read twice.
  const std::vector<Descriptor> twice = {{remote_, 10}, {remote_, 10}};
  const std::vector<Descriptor> apart = {{local_ + 10, 10}, {local_ + 20, 10}};
  const std::vector<Descriptor> same = {{local_ + 10, 10}, {local_ + 15, 10}};
  EXPECT_TRUE(Fails(pair_.a.agent->Read("b", DescriptorBlocks{.local = same, .remote = twice}),
                    StatusCode::kInvalidArgument, {"overlap"}));
  ASSERT_OK_AND_ASSIGN(
      const Transfer read,
      pair_.a.agent->Read("b", DescriptorBlocks{.local = apart, .remote = twice}, Unhurried()));
  EXPECT_OK(read.Wait(kAmple));
}

TEST_P(BadInput, RightsThatWereNotGranted) {
  ASSERT_OK_AND_ASSIGN(TestMemory memory, TestMemory::Allocate(GetParam().memory, 4096));
  ASSERT_OK(pair_.b.agent->RegisterMemory(memory.span(), Access::kRemoteRead));
  ASSERT_OK_AND_ASSIGN(TestMemory sink, TestMemory::Allocate(GetParam().memory, 4096));
  ASSERT_OK(pair_.b.agent->RegisterMemory(sink.span(), Access::kRemoteWrite));
  ASSERT_OK(Introduce(*pair_.a.agent, *pair_.b.agent));
  EXPECT_TRUE(
      Fails(Write({{local_, 16}}, {{memory.address(), 16}}), StatusCode::kPermissionDenied, {"b"}));
  const std::vector<Descriptor> mine = {{local_, 16}};
  const std::vector<Descriptor> theirs = {{sink.address(), 16}};
  EXPECT_TRUE(Fails(pair_.a.agent->Read("b", DescriptorBlocks{.local = mine, .remote = theirs}),
                    StatusCode::kPermissionDenied, {"b"}));
  EXPECT_EQ(FirstNonZero(memory.bytes()), kNoMismatch);
}

// Where the target checks for itself. Elsewhere the initiator does: there is nothing that a forged
// copy could change at the target.
class ForgedMetadata : public BadInput {};

TEST_P(ForgedMetadata, RightsAreCheckedAtTheTarget) {
  ASSERT_OK_AND_ASSIGN(TestMemory memory, TestMemory::Allocate(GetParam().memory, 4096));
  ASSERT_OK(pair_.b.agent->RegisterMemory(memory.span(), Access::kRemoteRead));
  ASSERT_OK_AND_ASSIGN(const std::string honest, pair_.b.agent->Metadata());
  ASSERT_OK_AND_ASSIGN(AgentMetadata forged, DecodeMetadata(honest));
  for (AgentMetadata::Region& region : forged.regions) region.region.access = Access::kReadWrite;
  ASSERT_OK_AND_ASSIGN(Node c, Node::Create(OptionsFor(GetParam(), "c"), GetParam().memory, 4096));
  ASSERT_OK(c.agent->AddPeer(EncodeMetadata(forged)));
  Pattern(2).Fill(c.memory.bytes());
  const std::vector<Descriptor> from = {{c.memory.address(), 512}};
  const std::vector<Descriptor> to = {{memory.address(), 512}};
  TransferOptions brief = Telling("forged");
  brief.deadline = std::chrono::seconds(3);
  ASSERT_OK_AND_ASSIGN(const Transfer transfer,
                       c.agent->Write("b", DescriptorBlocks{.local = from, .remote = to}, brief));
  EXPECT_FALSE(transfer.Wait(kAmple).ok());
  EXPECT_EQ(FirstNonZero(memory.bytes()), kNoMismatch);
}

TEST_P(BadInput, Options) {
  TransferOptions options;
  options.deadline = Duration(0);
  EXPECT_TRUE(Fails(Write({{local_, 8}}, {{remote_, 8}}, options), StatusCode::kInvalidArgument,
                    {"deadline"}));
  options.deadline = -milliseconds(1);
  EXPECT_TRUE(Fails(Write({{local_, 8}}, {{remote_, 8}}, options), StatusCode::kInvalidArgument,
                    {"deadline"}));
  options = Telling(std::string(kMaxNotificationBytes + 1, 'x'));
  EXPECT_TRUE(Fails(Write({{local_, 8}}, {{remote_, 8}}, options), StatusCode::kInvalidArgument,
                    {"65537"}));
  EXPECT_TRUE(Fails(pair_.a.agent->Notify("b", std::string(kMaxNotificationBytes + 1, 'x')),
                    StatusCode::kInvalidArgument, {"65537"}));
  options = Unhurried();
  options.backend = "warp";
  const absl::Status unknown = Write({{local_, 8}}, {{remote_, 8}}, options).status();
  EXPECT_FALSE(unknown.ok());
  EXPECT_NE(unknown.message().find("warp"), std::string::npos) << unknown;
  EXPECT_TRUE(
      Fails(pair_.a.agent->Notify("b", "x", options), StatusCode::kInvalidArgument, {"warp"}));
  EXPECT_TRUE(Fails(pair_.a.agent->Notify("nobody", "x"), StatusCode::kNotFound, {"nobody"}));
  const std::vector<Descriptor> some = {{local_, 8}};
  EXPECT_TRUE(Fails(pair_.a.agent->Write("nobody", DescriptorBlocks{.local = some, .remote = some}),
                    StatusCode::kNotFound, {"nobody"}));
  EXPECT_TRUE(Fails(pair_.a.agent->Write("", DescriptorBlocks{.local = some, .remote = some}),
                    StatusCode::kNotFound));
}

TEST_P(BadInput, Registration) {
  Agent& agent = *pair_.a.agent;
  EXPECT_TRUE(Fails(agent.RegisterMemory({.data = nullptr, .bytes = 10}, Access::kReadWrite),
                    StatusCode::kInvalidArgument));
  EXPECT_TRUE(
      Fails(agent.RegisterMemory({.data = pair_.a.memory.data(), .bytes = 0}, Access::kReadWrite),
            StatusCode::kInvalidArgument));
  EXPECT_TRUE(Fails(
      agent.RegisterMemory({.data = pair_.a.memory.data(), .bytes = SIZE_MAX}, Access::kReadWrite),
      StatusCode::kInvalidArgument));
  EXPECT_TRUE(Fails(
      agent.RegisterMemory({.data = pair_.a.memory.data(), .bytes = 10, .kind = MemoryKind::kCuda},
                           Access::kReadWrite),
      StatusCode::kInvalidArgument));
  EXPECT_TRUE(Fails(agent.DeregisterMemory(RegionId::kNone), StatusCode::kNotFound));
  EXPECT_TRUE(Fails(agent.DeregisterMemory(RegionId{4711}), StatusCode::kNotFound, {"4711"}));
  ASSERT_OK_AND_ASSIGN(const RegionId again,
                       agent.RegisterMemory(pair_.a.memory.span(), Access::kNone));
  EXPECT_OK(agent.DeregisterMemory(again));
  EXPECT_TRUE(Fails(agent.DeregisterMemory(again), StatusCode::kNotFound));
}

INSTANTIATE_TEST_SUITE_P(All, BadInput, ::testing::ValuesIn(PlainFlavours()), FlavourName);
INSTANTIATE_TEST_SUITE_P(All, ForgedMetadata, ::testing::Values(Tcp()), FlavourName);

class BadMetadata : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(pair_, Pair::Create(Tcp(), kBytes));
    ASSERT_OK_AND_ASSIGN(metadata_, pair_.b.agent->Metadata());
    ASSERT_OK_AND_ASSIGN(Node fresh, Node::Create(OptionsFor(Tcp(), "c"), Tcp().memory, 4096));
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
  AgentOptions options = OptionsFor(Tcp(), "d");
  options.backends = {"shm", "tcp"};
  options.require_backends = {"shm"};
  ASSERT_OK_AND_ASSIGN(Node d, Node::Create(options, MemoryType::kMapped, 4096));
  // b speaks tcp alone.
  EXPECT_TRUE(Fails(d.agent->AddPeer(metadata_), StatusCode::kFailedPrecondition, {"b", "shm"}));
  EXPECT_TRUE(Fails(d.agent->Explain("b"), StatusCode::kNotFound));
}

TEST(BadOptions, Create) {
  AgentOptions options = OptionsFor(Tcp(), "");
  EXPECT_TRUE(Fails(Agent::Create(options), StatusCode::kInvalidArgument, {"name"}));
  options.name = std::string(256, 'x');
  EXPECT_TRUE(Fails(Agent::Create(options), StatusCode::kInvalidArgument, {"name"}));
  options = OptionsFor(Tcp(), "a");
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
  options = OptionsFor(Tcp(), "a");
  options.tcp_streams = 0;
  EXPECT_TRUE(Fails(Agent::Create(options), StatusCode::kInvalidArgument, {"tcp_streams"}));
  options.tcp_streams = 17;
  EXPECT_TRUE(Fails(Agent::Create(options), StatusCode::kInvalidArgument, {"tcp_streams"}));
}

// Expect that no duration is so long that the moment it ends at cannot be told.
TEST(BadOptions, Durations) {
  const AgentOptions good = OptionsFor(Tcp(), "a");
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
  options.faults.max_delay = Duration::max();
  EXPECT_TRUE(Fails(Agent::Create(options), StatusCode::kInvalidArgument, {"a year"}));
  options = good;
  options.faults.slow_rail_delay = Duration::max();
  EXPECT_TRUE(Fails(Agent::Create(options), StatusCode::kInvalidArgument, {"a year"}));
  options = good;
  options.heartbeat = options.connect_timeout = options.cancel_grace = std::chrono::hours(24);
  options.suspect_after = std::chrono::hours(24 * 365);
  EXPECT_OK(Agent::Create(options));
}

TEST(BadOptions, AddressInUse) {
  ASSERT_OK_AND_ASSIGN(Node first, Node::Create(OptionsFor(Tcp(), "a"), Tcp().memory, 4096));
  AgentOptions options = OptionsFor(Tcp(), "b");
  options.listen = first.agent->listen_address();
  ASSERT_FALSE(options.listen.empty());
  const absl::Status status = Agent::Create(options).status();
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find(ToAbsl(options.listen)), absl::string_view::npos) << status;
  EXPECT_NE(status.message().find("in use"), absl::string_view::npos) << status;
}

TEST(BadMemory, MoreThanThereIs) {
  EXPECT_TRUE(Fails(HostBuffer::Allocate(0), StatusCode::kInvalidArgument));
  EXPECT_TRUE(Fails(HostBuffer::Allocate(size_t{1} << 60), StatusCode::kResourceExhausted));
  EXPECT_TRUE(Fails(HostBuffer::Allocate(SIZE_MAX), StatusCode::kResourceExhausted));
}

// The child of a fork shares nothing with the agent's threads: each of its calls is refused.
TEST(BadFork, ChildsCallsAreRefused) {
  ASSERT_OK_AND_ASSIGN(Pair pair, Pair::Create(Tcp(), kBytes));
  const BlockSet blocks({}, pair.a.memory.address(), pair.b.memory.address());
  ASSERT_OK_AND_ASSIGN(const Transfer before, blocks.Write(*pair.a.agent, "b", Unhurried()));
  ASSERT_OK(before.Wait(kAmple));
  // In the child these would reach for the queue and the descriptor that are the parent's.
  ASSERT_OK_AND_ASSIGN(const Transfer told,
                       pair.b.agent->Notify("a", "for the parent", Unhurried()));
  ASSERT_OK(told.Wait(kAmple));
  std::atomic<uint32_t> ready{0};
  TransferOptions held_back = Unhurried(NotifyOrder::kAnyOrder);
  held_back.ready = &ready;
  ASSERT_OK_AND_ASSIGN(const Transfer held, blocks.Write(*pair.a.agent, "b", held_back));
  std::atomic<int> callbacks{0};
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto refused = [](const absl::Status& status) {
      return status.code() == StatusCode::kFailedPrecondition &&
             status.message().find("fork") != absl::string_view::npos;
    };
    int bad = 0;
    bad |= refused(blocks.Write(*pair.a.agent, "b").status()) ? 0 : 1;
    bad |= refused(pair.a.agent->Notify("b", "x").status()) ? 0 : 2;
    bad |= refused(pair.a.agent->WaitNotification(milliseconds(1)).status()) ? 0 : 4;
    bad |=
        refused(pair.a.agent->RegisterMemory(pair.a.memory.span(), Access::kNone).status()) ? 0 : 8;
    bad |= refused(pair.a.agent->Metadata().status()) ? 0 : 16;
    bad |= pair.a.agent->PollNotification().has_value() ? 32 : 0;
    bad |= refused(pair.a.agent->Quiesce({}, milliseconds(1)).status()) ? 0 : 64;
    bad |= pair.a.agent->PollPeerEvent().has_value() ? 128 : 0;
    pair.a.agent->OnNotification([](const Notification&) { _exit(1); });
    pair.a.agent->OnPeerEvent([](const PeerEvent&) { _exit(1); });
    before.OnEnd([](const Transfer&) { _exit(1); });
    held.OnEnd([](const Transfer&) { _exit(1); });
    _exit(bad);
  }
  int status = 0;
  ASSERT_TRUE(Eventually(kAmple, [&] { return waitpid(child, &status, WNOHANG) == child; }));
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << "bits of the calls that were not refused";
  // The parent's agent has not noticed: what waits for it, and the descriptor that says so.
  pollfd readable{.fd = pair.a.agent->notification_fd(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&readable, 1, 0), 1);
  EXPECT_TRUE(pair.a.agent->PollPeerEvent().has_value());
  ASSERT_OK_AND_ASSIGN(const Notification waits, pair.a.agent->WaitNotification(kAmple));
  EXPECT_EQ(waits.payload, "for the parent");
  held.OnEnd([&](const Transfer&) { ++callbacks; });
  ready.store(1, std::memory_order_release);
  EXPECT_TRUE(Eventually(kAmple, [&] { return callbacks == 1; }));
  ASSERT_OK_AND_ASSIGN(const Transfer after, blocks.Write(*pair.a.agent, "b", Unhurried()));
  EXPECT_OK(after.Wait(kAmple));
}

#if !KVXFER_ADDRESS_SANITIZER  // UBSan looks at objects through a pipe: no descriptor, no pipe
// Takes every descriptor below the limit, and gives them back when it is destroyed.
class AllDescriptors {
 public:
  AllDescriptors() {
    for (int fd = dup(STDERR_FILENO); fd >= 0; fd = dup(STDERR_FILENO)) fds_.push_back(fd);
  }
  ~AllDescriptors() {
    for (const int fd : fds_) close(fd);
  }

 private:
  std::vector<int> fds_;
};

void LimitDescriptors(rlim_t count) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = std::min(count, limit.rlim_max);
  setrlimit(RLIMIT_NOFILE, &limit);
}

// At the limit of descriptors, creating fails with the reason; connecting ends in time, and works
// once there are descriptors again.
KVXFER_CHILD(DescriptorLimit) {
  absl::StatusOr<Pair> pair = Pair::Create(Tcp(), kBytes);
  CHILD_EXPECT(pair.ok());
  const BlockSet blocks({}, pair->a.memory.address(), pair->b.memory.address());
  LimitDescriptors(256);
  std::optional<AllDescriptors> all(std::in_place);
  const absl::Status none = Agent::Create(OptionsFor(Tcp(), "c")).status();
  std::fprintf(stderr, "create: %s\n", none.ToString().c_str());
  CHILD_EXPECT(!none.ok() && !none.message().empty());
  CHILD_EXPECT(!HostBuffer::Allocate(4096).ok());
  TransferOptions brief = Unhurried();
  brief.deadline = milliseconds(300);
  absl::StatusOr<Transfer> transfer = blocks.Write(*pair->a.agent, "b", brief);
  const absl::Status end = transfer.ok() ? transfer->Wait(kAmple) : transfer.status();
  std::fprintf(stderr, "write: %s\n", end.ToString().c_str());
  CHILD_EXPECT(!end.ok());
  all.reset();
  CHILD_EXPECT(Eventually(kAmple, [&] {
    const absl::StatusOr<Transfer> again = blocks.Write(*pair->a.agent, "b", Telling("again"));
    return again.ok() && again->Wait(kAmple).ok();
  }));
  return 0;
}

TEST(BadResources, DescriptorLimit) { EXPECT_EQ(RunChild("DescriptorLimit", {}, kAmple), 0); }
#endif

#if !KVXFER_SANITIZED  // a sanitizer's shadow needs the address space
// Without address space left, allocation and registration fail or succeed, and nothing dies.
KVXFER_CHILD(MemoryLimit) {
  absl::StatusOr<Node> node = Node::Create(OptionsFor(Tcp(), "a"), Tcp().memory, kBytes);
  CHILD_EXPECT(node.ok());
  const rlimit limit{.rlim_cur = 512u << 20, .rlim_max = 512u << 20};
  CHILD_EXPECT(setrlimit(RLIMIT_AS, &limit) == 0);
  const absl::Status none = HostBuffer::Allocate(size_t{1} << 30).status();
  std::fprintf(stderr, "allocate: %s\n", none.ToString().c_str());
  CHILD_EXPECT(none.code() == StatusCode::kResourceExhausted && !none.message().empty());
  CHILD_EXPECT(!TestMemory::Allocate(MemoryType::kAttached, size_t{1} << 30).ok());
  CHILD_EXPECT(node->agent->RegisterMemory(node->memory.span(), Access::kReadWrite).ok());
  CHILD_EXPECT(HostBuffer::Allocate(4096).ok());
  return 0;
}

TEST(BadResources, MemoryLimit) { EXPECT_EQ(RunChild("MemoryLimit", {}, kAmple), 0); }
#endif

}  // namespace
}  // namespace kvxfer::testing
