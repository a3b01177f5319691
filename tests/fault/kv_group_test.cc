// A rank of a group dies, or stops, in the middle: the whole fails in time, says whose part it was,
// and ends only when nothing of it is on its way to the other ranks, whose blocks may then be used
// for other things.
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/agents.h"
#include "tests/support/kv_nodes.h"
#include "tests/support/pattern.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"
#include "tests/support/test_peer.h"

namespace kvxfer::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const KvModel kModel{.layers = 8, .heads = 4, .k_size = 128, .v_size = 128};
constexpr uint32_t kBlocks = 64;
constexpr uint32_t kRanks = 4;
constexpr size_t kVictim = 2;

// One source here, and a rank of the target in each of four processes.
struct Group {
  Node source;
  std::vector<std::string> names;
  std::vector<std::unique_ptr<TestPeer>> ranks;
};

absl::StatusOr<Group> MakeGroup(const Flavour& flavour) {
  Group group;
  const KvSlab whole{.model = kModel, .shard = {.layers = kModel.layers}, .blocks = kBlocks};
  auto source = Node::Create(OptionsFor(flavour, "source"), flavour.memory, whole.bytes());
  if (!source.ok()) return source.status();
  group.source = *std::move(source);
  absl::Status status = whole.Register(*group.source.agent, group.source.memory.address());
  for (uint32_t rank = 0; rank < kRanks && status.ok(); ++rank) {
    const KvSlab part{.model = kModel,
                      .shard = {.tp_rank = rank, .tp_size = kRanks, .layers = kModel.layers},
                      .blocks = kBlocks};
    group.names.push_back("rank-" + std::to_string(rank));
    auto peer = TestPeer::Start(Where::kProcess);
    if (!peer.ok()) return peer.status();
    status = (*peer)->Create(OptionsFor(flavour, group.names.back()), flavour.memory, part.bytes());
    if (status.ok()) status = (*peer)->RegisterKvCache(part);
    if (status.ok()) status = Introduce(*group.source.agent, **peer);
    group.ranks.push_back(*std::move(peer));
  }
  if (!status.ok()) return status;
  return group;
}

absl::StatusOr<Transfer> WriteAll(const Group& group, std::string request, Duration deadline) {
  std::vector<uint32_t> ids(kBlocks);
  std::iota(ids.begin(), ids.end(), 0);
  return group.source.agent->WriteBlocks(
      group.names,
      {.cache = CacheName("kv"), .local_ids = ids, .remote_ids = ids, .tokens = kBlocks * 16},
      {.request = RequestName(std::move(request)), .transfer = {.deadline = deadline}});
}

// The survivors' blocks are used for other things at once: no byte comes late.
void ExpectNoLateByte(const Group& group) {
  for (size_t rank = 0; rank < kRanks; ++rank) {
    if (rank == kVictim) continue;
    ASSERT_OK(group.ranks[rank]->Clear());
  }
  std::this_thread::sleep_for(milliseconds(50));
  for (size_t rank = 0; rank < kRanks; ++rank) {
    if (rank == kVictim) continue;
    EXPECT_OK(group.ranks[rank]->CheckZero());
  }
}

class KvGroupFault : public ::testing::TestWithParam<Flavour> {};

TEST_P(KvGroupFault, ARankIsKilledInTheMiddle) {
  ASSERT_OK_AND_ASSIGN(Group group, MakeGroup(GetParam()));
  Pattern(3).Fill(group.source.memory.bytes());
  // Every connection is up.
  ASSERT_OK_AND_ASSIGN(const Transfer first, WriteAll(group, "first", kAmple));
  ASSERT_OK(first.Wait(kAmple));
  std::vector<Transfer> transfers;
  for (int i = 0; i < 40; ++i) {
    ASSERT_OK_AND_ASSIGN(transfers.emplace_back(),
                         WriteAll(group, "request " + std::to_string(i), kAmple));
  }
  group.ranks[kVictim]->process().Signal(SIGKILL);
  int failed = 0;
  bool quiet = true;
  for (const Transfer& transfer : transfers) {
    const absl::Status end = transfer.Wait(kAmple);
    quiet &= !transfer.quarantined();
    if (end.ok()) continue;
    ++failed;
    EXPECT_EQ(transfer.Poll(), TransferState::kFailed);
    EXPECT_TRUE(Fails(end, absl::StatusCode::kUnavailable, {"rank-2"}));
    EXPECT_NE(transfer.delivery(), Delivery::kDelivered);
  }
  EXPECT_GT(failed, 0) << "all had ended before the kill";
  // What ended quiet left nothing on its way; what did not is quiet in the end.
  if (!quiet) {
    for (const Transfer& transfer : transfers) ASSERT_OK(transfer.WaitQuiet(kAmple));
  }
  ExpectNoLateByte(group);
}

TEST_P(KvGroupFault, ARankStops) {
  ASSERT_OK_AND_ASSIGN(Group group, MakeGroup(GetParam()));
  Pattern(3).Fill(group.source.memory.bytes());
  ASSERT_OK_AND_ASSIGN(const Transfer first, WriteAll(group, "first", kAmple));
  ASSERT_OK(first.Wait(kAmple));
  group.ranks[kVictim]->process().Signal(SIGSTOP);
  // Time enough for the other ranks, also in an emulator.
  const Duration deadline = milliseconds(kEmulated ? 4000 : kSanitized ? 1500 : 500);
  const Time began = Now();
  ASSERT_OK_AND_ASSIGN(const Transfer transfer, WriteAll(group, "second", deadline));
  const absl::Status end = transfer.Wait(kAmple);
  EXPECT_LE(Now() - began, Bound(seconds(5)));
  // Where the initiator's own CPU copies, nobody at the target is needed for that.
  if (!end.ok()) {
    EXPECT_NE(std::string(end.message()).find("rank-2"), std::string::npos) << end;
    ExpectNoLateByte(group);
  }
  group.ranks[kVictim]->process().Signal(SIGCONT);
  EXPECT_OK(transfer.WaitQuiet(kAmple));
  // What is written into its blocks from now on stays.
  ASSERT_OK(group.ranks[kVictim]->Clear());
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_OK(group.ranks[kVictim]->CheckZero());
}

INSTANTIATE_TEST_SUITE_P(All, KvGroupFault, ::testing::ValuesIn(ProcessFlavours()), FlavourName);

}  // namespace
}  // namespace kvxfer::testing
