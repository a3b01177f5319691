// Every misuse is a Status that names what and whom, without a crash and without any effect: after
// each test nothing has landed, nobody was told, and a good transfer still goes through.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "src/core/protocol/metadata.h"
#include "tests/support/agents.h"
#include "tests/support/blocks.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

using absl::StatusCode;
using std::chrono::milliseconds;
constexpr uint64_t kBytes = 64 * 1024;
constexpr uint64_t kHuge = uint64_t{1} << 63;

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
INSTANTIATE_TEST_SUITE_P(All, ForgedMetadata, ::testing::Values(TcpFlavour()), FlavourName);

}  // namespace
}  // namespace kvxfer::testing
