// G4 under cancellation: once the target is quiet no byte of a cancelled transfer changes, the
// source is not read after the end, and other transfers do not notice.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/agents.h"
#include "tests/support/blocks.h"
#include "tests/support/pattern.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
constexpr uint64_t kPlaces = 8;  // so many transfers later a place is looked at again

class Cancel : public ::testing::TestWithParam<Flavour> {};

// Does not give the processor away when the moment is near: that is the point.
void SpinUntil(Time moment) {
  std::this_thread::sleep_until(moment - microseconds(200));
  while (Now() < moment) {
  }
}

Duration Median(std::vector<Duration> all) {
  std::ranges::nth_element(all, all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2));
  return all[all.size() / 2];
}

// Within how many microseconds to cancel: what such a write takes when left alone.
absl::StatusOr<uint64_t> CancelWithin(Pair& pair, const BlockSet& blocks) {
  std::vector<Duration> alone;
  for (int i = 0; i < 9; ++i) {
    const Time start = Now();
    absl::StatusOr<Transfer> transfer = blocks.Write(*pair.a.agent, "b", Unhurried());
    if (!transfer.ok()) return transfer.status();
    if (absl::Status end = transfer->Wait(kAmple); !end.ok()) return end;
    alone.push_back(Now() - start);
  }
  return std::max<uint64_t>(10, static_cast<uint64_t>(Median(alone) / microseconds(1)));
}

void CancelAtAnyMoment(const Flavour& flavour, int rounds) {
  // 2 MiB: more than is on its way at once (over ucx 1 MiB, which no cancel overtakes), and more
  // than is copied in Write (over shm).
  const Shape shape{.block_bytes = 4096, .ids = 512, .layers = 1, .gap = 0, .paged = true};
  const uint64_t part = shape.memory_bytes();
  // Time enough for the target's answer: without it nobody knows what was delivered.
  AgentOptions a = OptionsFor(flavour, "a");
  a.cancel_grace = kAmple;
  ASSERT_OK_AND_ASSIGN(Pair pair,
                       Pair::Create(flavour, a, OptionsFor(flavour, "b"), part * kPlaces));
  ASSERT_OK_AND_ASSIGN(
      const uint64_t within,
      CancelWithin(pair, BlockSet(shape, pair.a.memory.address(), pair.b.memory.address())));
  std::mt19937_64 random(TestSeed());
  std::vector<uint64_t> quiet_digest(kPlaces, 0);
  int cancelled = 0;
  int partly = 0;
  for (int round = 0; round < rounds + static_cast<int>(kPlaces); ++round) {
    const uint64_t place = static_cast<uint64_t>(round) % kPlaces * part;
    const auto source = pair.a.memory.bytes().subspan(place, part);
    const auto target = pair.b.memory.bytes().subspan(place, part);
    if (round >= static_cast<int>(kPlaces)) {
      ASSERT_EQ(Digest(target), quiet_digest[place / part]) << "changed after quiet, " << round;
    }
    if (round >= rounds) continue;
    FillWith(target, std::byte{0});
    Pattern(static_cast<uint64_t>(round)).Fill(source);
    const BlockSet blocks(shape, pair.a.memory.address() + place, pair.b.memory.address() + place);
    const Time start = Now();
    ASSERT_OK_AND_ASSIGN(const Transfer transfer,
                         blocks.Write(*pair.a.agent, "b", Telling(std::to_string(round))));
    SpinUntil(start + microseconds(random() % within));
    transfer.Cancel();
    const absl::Status end = transfer.Wait(kAmple);
    // Ended: the source is this side's again.
    FillWith(source, kPoison);
    ASSERT_TRUE(end.ok() || end.code() == absl::StatusCode::kCancelled) << end;
    ASSERT_OK_AND_ASSIGN(const QuiesceResult quiet,
                         pair.b.agent->Quiesce({.peer = "a", .regions = {}}, kAmple));
    ASSERT_TRUE(quiet.quiet) << quiet.pending;
    quiet_digest[place / part] = Digest(target);
    ASSERT_FALSE(Contains(target, kPoison)) << "the source was read after the end, round " << round;
    const std::optional<Notification> told = pair.b.agent->PollNotification();
    if (end.ok()) {
      ASSERT_TRUE(AllArrived(shape, Side::kRemote, static_cast<uint64_t>(round), target));
      ASSERT_TRUE(told.has_value()) << "done and not told";
    } else {
      ++cancelled;
      partly += FirstNonZero(target) != kNoMismatch ? 1 : 0;
      ASSERT_FALSE(told.has_value()) << "cancelled and told";
      ASSERT_EQ(transfer.delivery(), Delivery::kNotDelivered);
      ASSERT_OK(transfer.WaitQuiet(kAmple));
    }
  }
  std::printf("%s: %d rounds within %llu us, %d cancelled, %d of them partly landed\n",
              flavour.name.c_str(), rounds, static_cast<unsigned long long>(within), cancelled,
              partly);
  // Few rounds may all be too late, where a transfer takes microseconds.
  if (!kSlow) {
    EXPECT_GT(cancelled, 0);
  }
}

TEST_P(Cancel, NoByteChangesOnceTheTargetIsQuiet) {
  CancelAtAnyMoment(GetParam(), kSlow || kQuick ? 100 : 400);
}

TEST_P(Cancel, SoakNoByteChangesOnceTheTargetIsQuiet) {
  CancelAtAnyMoment(GetParam(), Scaled(10'000));
}

// The same for reads: once the read has ended, its local memory does not change any more.
TEST_P(Cancel, CancelledReadLeavesTheLocalMemoryAlone) {
  const Shape shape{.block_bytes = 4096, .ids = 64, .layers = 1, .gap = 0, .paged = true};
  const uint64_t part = shape.memory_bytes();
  const int rounds = Scaled(200);
  ASSERT_OK_AND_ASSIGN(Pair pair, Pair::Create(GetParam(), part * kPlaces));
  Pattern(7).Fill(pair.b.memory.bytes());
  ASSERT_OK_AND_ASSIGN(
      const uint64_t within,
      CancelWithin(pair, BlockSet(shape, pair.a.memory.address(), pair.b.memory.address())));
  std::mt19937_64 random(TestSeed() + 1);
  std::vector<uint64_t> digest(kPlaces, 0);
  for (int round = 0; round < rounds; ++round) {
    const uint64_t place = static_cast<uint64_t>(round) % kPlaces * part;
    const auto local = pair.a.memory.bytes().subspan(place, part);
    if (round >= static_cast<int>(kPlaces)) {
      ASSERT_EQ(Digest(local), digest[place / part]) << "changed after the end, " << round;
    }
    FillWith(local, std::byte{0});
    const BlockSet blocks(shape, pair.a.memory.address() + place, pair.b.memory.address() + place);
    const Time start = Now();
    ASSERT_OK_AND_ASSIGN(const Transfer transfer, blocks.Read(*pair.a.agent, "b", Unhurried()));
    SpinUntil(start + microseconds(random() % within));
    transfer.Cancel();
    const absl::Status end = transfer.Wait(kAmple);
    ASSERT_TRUE(end.ok() || end.code() == absl::StatusCode::kCancelled) << end;
    ASSERT_OK(transfer.WaitQuiet(kAmple));
    digest[place / part] = Digest(local);
  }
}

// Time from posting to done of a small write beside a large one, which is cancelled or not.
absl::StatusOr<Duration> SmallBesideLarge(Pair& pair, bool cancel) {
  const Shape large{.block_bytes = 64 * 1024, .ids = 128};
  const Shape small{.block_bytes = 4096, .ids = 4};
  const uint64_t apart = large.memory_bytes();
  const BlockSet much(large, pair.a.memory.address(), pair.b.memory.address());
  const BlockSet little(small, pair.a.memory.address() + apart, pair.b.memory.address() + apart);
  absl::StatusOr<Transfer> beside =
      much.Write(*pair.a.agent, "b", Unhurried(NotifyOrder::kAnyOrder));
  if (!beside.ok()) return beside.status();
  const Time start = Now();
  absl::StatusOr<Transfer> transfer =
      little.Write(*pair.a.agent, "b", Unhurried(NotifyOrder::kAnyOrder));
  if (!transfer.ok()) return transfer.status();
  if (cancel) beside->Cancel();
  if (absl::Status end = transfer->Wait(kAmple); !end.ok()) return end;
  const Duration took = Now() - start;
  if (!cancel) {
    if (absl::Status end = beside->Wait(kAmple); !end.ok()) return end;
  }
  beside->Wait(kAmple).IgnoreError();
  return took;
}

TEST_P(Cancel, OthersOfThatPeerDoNotNotice) {
  ASSERT_OK_AND_ASSIGN(Pair pair, Pair::Create(GetParam(), 12 * kMiB));
  std::vector<Duration> alone;
  std::vector<Duration> beside_cancelled;
  for (int i = 0; i < Scaled(50); ++i) {
    ASSERT_OK_AND_ASSIGN(const Duration plain, SmallBesideLarge(pair, false));
    ASSERT_OK_AND_ASSIGN(const Duration cancelled, SmallBesideLarge(pair, true));
    alone.push_back(plain);
    beside_cancelled.push_back(cancelled);
  }
  const Duration delay = Median(beside_cancelled) - Median(alone);
  std::printf("%s: median %.3f ms beside a large transfer, %.3f ms beside a cancelled one\n",
              GetParam().name.c_str(), Milliseconds(Median(alone)),
              Milliseconds(Median(beside_cancelled)));
  EXPECT_LE(delay, Bound(milliseconds(10)));
}

// Expect that one that the target refuses, between two good ones, holds neither up and tells
// nobody.
TEST_P(Cancel, AFailedOneBetweenTwoGoodOnes) {
  const Shape shape{.block_bytes = 4096, .ids = 16};
  ASSERT_OK_AND_ASSIGN(Pair pair, Pair::Create(GetParam(), shape.memory_bytes()));
  Pattern(1).Fill(pair.a.memory.bytes());
  ASSERT_OK_AND_ASSIGN(TestMemory gone,
                       TestMemory::Allocate(GetParam().memory, shape.memory_bytes()));
  ASSERT_OK_AND_ASSIGN(const RegionId region,
                       pair.b.agent->RegisterMemory(gone.span(), Access::kRemoteWrite));
  ASSERT_OK(Introduce(*pair.a.agent, *pair.b.agent));
  ASSERT_OK(pair.b.agent->DeregisterMemory(region, kAmple));
  const BlockSet good(shape, pair.a.memory.address(), pair.b.memory.address());
  const BlockSet bad(shape, pair.a.memory.address(), gone.address());
  for (int round = 0; round < Scaled(20); ++round) {
    ASSERT_OK_AND_ASSIGN(const Transfer first, good.Write(*pair.a.agent, "b", Telling("first")));
    // Refused at once where the initiator knows already, else by the target.
    const absl::StatusOr<Transfer> second = bad.Write(*pair.a.agent, "b", Telling("second"));
    ASSERT_OK_AND_ASSIGN(const Transfer third, good.Write(*pair.a.agent, "b", Telling("third")));
    ASSERT_OK(third.Wait(kAmple));
    ASSERT_OK(first.Wait(kAmple));
    const absl::Status refused = second.ok() ? second->Wait(kAmple) : second.status();
    EXPECT_FALSE(refused.ok());
    EXPECT_NE(refused.code(), absl::StatusCode::kDeadlineExceeded) << refused;
    for (const char* payload : {"first", "third"}) {
      ASSERT_OK_AND_ASSIGN(const Notification n, pair.b.agent->WaitNotification(kAmple));
      EXPECT_EQ(n.payload, payload);
    }
  }
  EXPECT_FALSE(pair.b.agent->PollNotification().has_value());
  EXPECT_EQ(FirstNonZero(gone.bytes()), kNoMismatch);
  EXPECT_TRUE(AllArrived(shape, Side::kRemote, 1, pair.b.memory.bytes()));
}

INSTANTIATE_TEST_SUITE_P(All, Cancel, ::testing::ValuesIn(AllFlavours()), FlavourName);

}  // namespace
}  // namespace kvxfer::testing
