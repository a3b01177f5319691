// Copies of GPUs through the mapping of a region: neither side is down before they have ended.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>

#include "tests/unit/backends/shm/pair_util.h"
#include "tests/unit/backends/shm/peer_util.h"

namespace kvxfer::shm_test {
namespace {

constexpr Duration kWhile = std::chrono::milliseconds(50);

bool AllDown(Connected& pair) {
  return Drive({&pair.initiator, &pair.target},
               [&] { return !pair.initiator.down.empty() && !pair.target.down.empty(); });
}
bool AnyDown(Connected& pair) {
  return Drive(
      {&pair.initiator, &pair.target},
      [&] { return !pair.initiator.down.empty() || !pair.target.down.empty(); }, kWhile);
}

TEST(ShmHold, AMemfdIsHandedOutAsItIsMapped) {
  ImportedPair pair(true, 4096);
  const MappedRegion mapped = pair.key->Mapped();
  ASSERT_NE(mapped.data, nullptr);
  std::memset(mapped.data, 7, 4096);
  EXPECT_EQ(pair.remote.data()[4095], std::byte{7});
  pair.key.reset();
  EXPECT_EQ(mapped.data[0], std::byte{7}) << "it outlives the key";
  const ImportedPair attached(false, 4096);
  EXPECT_EQ(attached.key->Mapped().data, nullptr);
}

TEST(ShmHold, OfAMemfdThatMayNotBeWrittenNothingIsHandedOut) {
  Connected pair;
  const Memory memory(true, 4096);
  Side::Region region = pair.target.Register(memory.span);
  region.remote.access = Access::kRemoteRead;
  auto key = pair.out->Import(region.remote, region.key);
  ASSERT_TRUE(key.ok()) << key.status();
  EXPECT_EQ((*key)->Mapped().data, nullptr);
}

TEST(ShmHold, WhoeverClosesWaitsForTheCopies) {
  for (const bool here : {true, false}) {
    Connected pair;
    auto hold = pair.out->HoldOpen();
    ASSERT_NE(hold, nullptr);
    (here ? pair.out : pair.in)->Shutdown(absl::CancelledError("enough"));
    EXPECT_FALSE(AnyDown(pair)) << here;
    EXPECT_EQ(pair.out->HoldOpen(), nullptr) << "it closes";
    hold.reset();
    EXPECT_TRUE(AllDown(pair)) << here;
    EXPECT_TRUE(Says(pair.initiator.down.at(pair.out), "enough"));
    EXPECT_TRUE(Says(pair.target.down.at(pair.in), "enough"));
  }
}

TEST(ShmHold, CopiesThatHaveEndedHoldNothing) {
  Connected pair;
  for (int i = 0; i < 3; ++i) EXPECT_NE(pair.out->HoldOpen(), nullptr);
  pair.out->Shutdown(absl::CancelledError("enough"));
  EXPECT_TRUE(AllDown(pair));
}

TEST(ShmHold, NobodyIsHeldByTheOtherSide) {
  Connected pair;
  EXPECT_EQ(pair.in->HoldOpen(), nullptr);
  Connected silent(false);
  EXPECT_EQ(silent.out->HoldOpen(), nullptr) << "it is not authorised";
}

// This side is down then, and only the end of its process tells the other side.
TEST(ShmHold, CopiesInDoubtMayGoOnUntilTheProcessEnds) {
  Connected pair;
  auto hold = pair.out->HoldOpen();
  ASSERT_NE(hold, nullptr);
  hold->doubt = true;
  EXPECT_EQ(pair.out->HoldOpen(), nullptr) << "none begins beside it";
  hold.reset();
  pair.out->Shutdown(absl::CancelledError("a broken context"));
  EXPECT_TRUE(Drive({&pair.initiator, &pair.target}, [&] { return !pair.initiator.down.empty(); }));
  EXPECT_FALSE(Drive(
      {&pair.initiator, &pair.target}, [&] { return !pair.target.down.empty(); }, kWhile));
}

// A copy that begins before the other side knows of it could outlive this process unnoticed.
TEST(ShmHold, NoneIsGivenBeforeTheOtherSideIsTold) {
  Connected pair(true, ControlCarrier::kTcp);  // messages go through the socket
  // More than the socket holds: nobody reads.
  const std::string large(200 * 1024, 'x');
  int sent = 0;
  while (sent < 100 && Send(pair.out, large)) ++sent;
  ASSERT_LT(sent, 100);
  EXPECT_EQ(pair.out->HoldOpen(), nullptr);
  ASSERT_TRUE(Drive({&pair.initiator, &pair.target},
                    [&] { return pair.target.messages.size() == static_cast<size_t>(sent); }));
  EXPECT_TRUE(
      Drive({&pair.initiator, &pair.target}, [&] { return pair.out->HoldOpen() != nullptr; }));
}

// An agent that ends may leave its connections to their destructors, after its last copy.
TEST(ShmHold, ADestroyedEndpointSaysThatItsCopiesHaveEnded) {
  Connected pair;
  pair.out->HoldOpen();
  pair.initiator.endpoints.clear();
  EXPECT_TRUE(Drive({&pair.target}, [&] { return !pair.target.down.empty(); }));
}

// The parent is the target.
void HoldForEver(int commands) {
  Dialled pair;
  if (!pair.Connect(Child::HearFrom(commands)).ok()) _exit(2);
  const auto hold = pair.out->HoldOpen();
  if (hold == nullptr) _exit(3);
  Child::Tell(commands, "held");
  while (pair.side.down.empty()) pair.side.Poll();
}

TEST(ShmHold, AKilledProcessHoldsNothing) {
  Child child(HoldForEver);
  Side side;
  const HostBuffer memory = *HostBuffer::Allocate(4096);
  const Side::Region regions[2] = {side.Register(memory.span()), side.Register(memory.span())};
  Child::Tell(child.fd(), Describe(side, regions));
  ASSERT_TRUE(Drive({&side}, [&] { return !side.endpoints.empty(); }));
  side.endpoints.front()->Authorize();
  ASSERT_TRUE(Send(side.endpoints.front().get(), "hello"));
  ASSERT_EQ(child.Hear(), "held");
  side.Poll();
  child.Kill(SIGKILL);
  ASSERT_TRUE(Drive({&side}, [&] { return !side.down.empty(); }));
  EXPECT_TRUE(Says(side.down.begin()->second, "exited")) << side.down.begin()->second;
}

}  // namespace
}  // namespace kvxfer::shm_test
