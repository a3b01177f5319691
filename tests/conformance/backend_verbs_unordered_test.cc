// Verbs over devices that keep no order, as SRD does: writes land, and completions come, in any.
// What is counted is every write's immediate.

#include <algorithm>

#include "tests/conformance/verbs_device.h"
#include "tests/support/agents.h"
#include "tests/support/blocks.h"
#include "tests/support/pattern.h"

namespace kvxfer::testing {
namespace {

using std::chrono::milliseconds;

class VerbsUnordered : public VerbsDevice {
 protected:
  void Devise() {
    Use(Devices(2, 2));
    fabric_->Reorder(TestSeed());
  }
};

INSTANTIATE_TEST_SUITE_P(InMemory, VerbsUnordered, ::testing::Values(VerbsDeviceFlavour()),
                         FlavourName);

TEST_P(VerbsUnordered, EachWriteIsThereWhenItsImmediateIs) {
  Devise();
  ASSERT_NO_FATAL_FAILURE(Start(512 * kOp));
  EXPECT_FALSE(caps().rail_keeps_order);
  EXPECT_EQ(caps().max_op_pieces, 1u);
  Pattern(3).Fill(local_->bytes());
  pair_->target().on_immediate = [&](TestLink&, uint32_t immediate) {
    const uint64_t at = immediate * kOp;
    EXPECT_EQ(Pattern(3).Mismatch(remote_->bytes().subspan(at, kOp), at), kNoMismatch) << immediate;
  };
  fabric_->Hold(true);
  const std::vector<Op> ops = Stream(OpKind::kWrite, 7, 512, kOp);
  const size_t posted = out().Post(ops);
  fabric_->Hold(false);
  ASSERT_TRUE(pair_->PostAll(std::span(ops).subspan(posted)));
  ASSERT_TRUE(Ended());
  ASSERT_TRUE(Arrived(ops.size()));
  EXPECT_EQ(out().failed(), 0u);
  std::vector<uint32_t> immediates = in().immediates;
  EXPECT_FALSE(std::ranges::is_sorted(immediates)) << "nothing was reordered";
  std::ranges::sort(immediates);
  for (uint32_t i = 0; i < ops.size(); ++i) ASSERT_EQ(immediates[i], i);
}

TEST_P(VerbsUnordered, FencesAndRailsEndAsWithOrder) {
  Devise();
  ASSERT_NO_FATAL_FAILURE(Start(512 * kOp));
  const std::vector<Op> ops = Stream(OpKind::kWrite, 7, 256, kOp);
  ASSERT_TRUE(pair_->PostAll(ops));
  out().Fence(7);
  in().Fence(7);
  ASSERT_TRUE(pair_->Until([&] { return in().fenced.contains(7) && out().fenced.contains(7); }));
  EXPECT_EQ(in().immediates.size(), ops.size());
  for (size_t lost = 0; lost < 8; ++lost) {
    fabric_->Hold(true);
    const std::vector<Op> more = Stream(OpKind::kWrite, 8 + lost, 64, kOp);
    const size_t posted = out().Post(more);
    fabric_->Hold(false);
    fabric_->SetPort(lost % 2 == 0 ? "t0" : "i0", 1, false);
    ASSERT_TRUE(DownIs(lost + 1));
    ASSERT_TRUE(Ended());
    EXPECT_GT(posted, 0u);
    fabric_->SetPort(lost % 2 == 0 ? "t0" : "i0", 1, true);
    ASSERT_NO_FATAL_FAILURE(FenceAndReopen(0));
    ASSERT_TRUE(pair_->Until([&] { return out().rail_up(0); }));
  }
  ExpectAllRailsWork();
}

// None told early, none lost, none twice, and in order; rails fail meanwhile.
TEST_P(VerbsUnordered, AThousandNotifiedTransfers) {
  constexpr uint64_t kAreas = 16;
  constexpr uint64_t kAreaBytes = 320 * 1024;
  Devise();
  AgentOptions of_target = OptionsFor(GetParam(), "target");
  AgentOptions of_initiator = OptionsFor(GetParam(), "initiator");
  of_initiator.stripe_from = 16 * 1024;
  ASSERT_OK_AND_ASSIGN(
      kvxfer::testing::Pair pair,
      kvxfer::testing::Pair::Create(GetParam(), of_initiator, of_target, kAreas * kAreaBytes));
  const auto area = [&](Node& node, uint64_t number) {
    return node.memory.bytes().subspan(number % kAreas * kAreaBytes, kAreaBytes);
  };
  const auto shape = [](uint64_t number) {
    const Shape shapes[] = {{.block_bytes = 3000, .ids = 40, .gap = 72},
                            {.block_bytes = 64 * 1024, .ids = 4},
                            {.block_bytes = 17, .ids = 1}};
    return shapes[number % std::size(shapes)];
  };
  const auto rounds = static_cast<uint64_t>(Scaled(1008)) / kAreas;
  for (uint64_t round = 0; round < rounds; ++round) {
    if (round % 8 == 7) fabric_->LoseAcks(1);
    std::vector<Transfer> transfers;
    for (uint64_t i = round * kAreas; i < (round + 1) * kAreas; ++i) {
      Pattern(i).Fill(area(pair.a, i));
      const BlockSet blocks(shape(i), reinterpret_cast<uintptr_t>(area(pair.a, i).data()),
                            reinterpret_cast<uintptr_t>(area(pair.b, i).data()));
      ASSERT_OK_AND_ASSIGN(Transfer write,
                           blocks.Write(*pair.a.agent, "target", Telling(std::to_string(i))));
      transfers.push_back(std::move(write));
    }
    for (uint64_t i = round * kAreas; i < (round + 1) * kAreas; ++i) {
      ASSERT_OK_AND_ASSIGN(const Notification told, pair.b.agent->WaitNotification(kAmple));
      ASSERT_EQ(told.payload, std::to_string(i));
      ASSERT_TRUE(AllArrived(shape(i), Side::kRemote, i, area(pair.b, i)));
    }
    for (const Transfer& write : transfers) ASSERT_OK(write.Wait(kAmple));
    FillWith(pair.b.memory.bytes(), std::byte{0});
  }
  EXPECT_FALSE(pair.b.agent->PollNotification().has_value());
  fabric_->LoseAcks(0);
}

}  // namespace
}  // namespace kvxfer::testing
