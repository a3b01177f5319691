// G1 and G2: a notification comes exactly once, after every byte of its transfer is visible, and
// in the order of posting; transfers that fail or are cancelled hold nothing up.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/support/agents.h"
#include "tests/support/blocks.h"
#include "tests/support/pattern.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

constexpr uint64_t kPlaceBytes = 16 * 1024;
constexpr uint64_t kPlaces = 128;

Shape ShapeOf(uint64_t number) {
  std::mt19937_64 random(number * 31 + TestSeed());
  Shape shape;
  shape.block_bytes = 1 + random() % 1500;
  shape.ids = 1 + static_cast<uint32_t>(random() % 8);
  shape.gap = random() % 2 * 8;
  shape.paged = random() % 2 == 0;
  shape.seed = number;
  return shape;
}

std::string Payload(uint64_t number) {
  // Some are long, so that they take another way than short ones.
  return std::to_string(number) + " " + std::string(number % 97 == 0 ? 20'000 : number % 13, 'x');
}

class AgentOrder : public ::testing::TestWithParam<Flavour> {};

// What the target sees at the moment it is told.
struct Witness {
  TestMemory* memory;
  std::atomic<uint64_t> told{0};
  std::atomic<uint64_t> early{0};
  std::atomic<uint64_t> out_of_order{0};

  void See(const Notification& n) {
    const uint64_t number = std::strtoull(n.payload.c_str(), nullptr, 10);
    if (number != told.load() || n.payload != Payload(number)) ++out_of_order;
    const auto place = memory->bytes().subspan(number % kPlaces * kPlaceBytes, kPlaceBytes);
    const Shape shape = ShapeOf(number);
    if (!AllArrived(shape, Side::kRemote, number, place.first(shape.memory_bytes()))) ++early;
    // Ready for the next transfer to this place.
    FillWith(place, std::byte{0});
    told.store(told.load() + 1);
  }
};

// Posts `count` notified writes, never two at once to one place.
void PostAll(Pair& pair, uint64_t count, const Witness& witness, std::vector<Transfer>& transfers) {
  for (uint64_t number = 0; number < count; ++number) {
    ASSERT_TRUE(Eventually(kAmple, [&] { return number < witness.told.load() + kPlaces; }))
        << "only " << witness.told << " of " << number << " were told";
    const Shape shape = ShapeOf(number);
    const uint64_t place = number % kPlaces * kPlaceBytes;
    // The source is quiet once its transfer has ended, so it may be filled anew.
    if (number >= kPlaces) {
      ASSERT_OK(transfers[number - kPlaces].Wait(kAmple)) << number - kPlaces;
    }
    Pattern(number).Fill(pair.a.memory.bytes().subspan(place, shape.memory_bytes()));
    const BlockSet blocks(shape, pair.a.memory.address() + place, pair.b.memory.address() + place);
    ASSERT_OK_AND_ASSIGN(Transfer transfer,
                         blocks.Write(*pair.a.agent, "b", Telling(Payload(number))));
    transfers.push_back(std::move(transfer));
  }
}

TEST_P(AgentOrder, EveryNotificationOnceInOrderAndAfterItsBytes) {
  const uint64_t count = static_cast<uint64_t>(Scaled(GetParam().faulty() ? 10'000 : 2'000));
  ASSERT_OK_AND_ASSIGN(Pair pair, Pair::Create(GetParam(), kPlaces * kPlaceBytes));
  Witness witness{.memory = &pair.b.memory};
  pair.b.agent->OnNotification([&witness](const Notification& n) { witness.See(n); });
  std::vector<Transfer> transfers;
  transfers.reserve(count);
  PostAll(pair, count, witness, transfers);
  if (!HasFatalFailure()) {
    EXPECT_TRUE(Eventually(kAmple, [&] { return witness.told == count; }));
    for (const Transfer& transfer : transfers) EXPECT_OK(transfer.Wait(kAmple));
  }
  EXPECT_EQ(witness.early, 0u);
  EXPECT_EQ(witness.out_of_order, 0u);
  EXPECT_EQ(witness.told, count) << "lost";
  std::printf("%s: %llu of %llu notified transfers told, %llu early, %llu out of order\n",
              GetParam().name.c_str(), static_cast<unsigned long long>(witness.told.load()),
              static_cast<unsigned long long>(count),
              static_cast<unsigned long long>(witness.early.load()),
              static_cast<unsigned long long>(witness.out_of_order.load()));
  // Nothing comes twice: what was told is all there is once b is quiet.
  EXPECT_OK(pair.b.agent->Quiesce({}, kAmple));
  pair.b.agent->OnNotification(nullptr);
  EXPECT_FALSE(pair.b.agent->PollNotification().has_value());
}

struct Posted {
  Transfer transfer;
  NotifyOrder order = NotifyOrder::kPosted;
};

// One transfer of a random kind: a good one, a notification alone, in any order, one to be
// cancelled, or one whose deadline passes before its ready fence opens.
absl::StatusOr<Posted> PostRandom(Pair& pair, std::mt19937_64& random, uint64_t number,
                                  const std::atomic<uint32_t>* never) {
  Posted posted;
  TransferOptions options = Telling(std::to_string(number));
  if (random() % 4 == 0) options.order = posted.order = NotifyOrder::kAnyOrder;
  const uint64_t kind = random() % 5;
  absl::StatusOr<Transfer> transfer;
  if (kind == 3) {
    options.ready = never;
    options.deadline = std::chrono::milliseconds(1 + random() % 20);
  }
  if (kind == 1) {
    transfer = pair.a.agent->Notify("b", *options.notification, options);
  } else {
    Shape shape = ShapeOf(number);
    if (kind == 2) shape = {.block_bytes = 1024, .ids = 1 + uint32_t(random() % 64), .paged = true};
    const BlockSet blocks(shape, pair.a.memory.address(), pair.b.memory.address());
    transfer = random() % 8 == 0 ? blocks.Read(*pair.a.agent, "b", options)
                                 : blocks.Write(*pair.a.agent, "b", options);
  }
  if (!transfer.ok()) return transfer.status();
  posted.transfer = *std::move(transfer);
  if (kind == 2) posted.transfer.Cancel();
  return posted;
}

// Checks one end against what the target was told.
void CheckEnd(const Posted& posted, size_t times_notified) {
  const TransferState state = posted.transfer.Poll();
  const Delivery delivery = posted.transfer.delivery();
  SCOPED_TRACE(std::string(ToString(state)) + ", " + ToString(delivery) + ", " +
               posted.transfer.status().ToString());
  EXPECT_NE(state, TransferState::kActive);
  EXPECT_LE(times_notified, 1u);
  if (state == TransferState::kDone) {
    EXPECT_EQ(delivery, Delivery::kDelivered);
    EXPECT_EQ(times_notified, 1u);
  } else {
    EXPECT_TRUE(delivery == Delivery::kNotDelivered || delivery == Delivery::kUnknown);
    EXPECT_FALSE(posted.transfer.status().ok());
  }
  if (delivery == Delivery::kNotDelivered) {
    EXPECT_EQ(times_notified, 0u);
  }
}

TEST_P(AgentOrder, FailedAndCancelledOnesHoldNothingUp) {
  const uint64_t count = static_cast<uint64_t>(Scaled(1'000));
  ASSERT_OK_AND_ASSIGN(Pair pair, Pair::Create(GetParam(), 256 * 1024));
  std::mt19937_64 random(TestSeed());
  std::atomic<uint32_t> never{0};
  std::vector<Posted> posted;
  for (uint64_t number = 0; number < count; ++number) {
    ASSERT_OK_AND_ASSIGN(Posted one, PostRandom(pair, random, number, &never));
    posted.push_back(std::move(one));
    // Now and then let those posted so far come to their ends.
    if (number % 64 == 63) posted[number - 32].transfer.Wait(kAmple).IgnoreError();
  }
  ASSERT_OK_AND_ASSIGN(const Transfer last, pair.a.agent->Notify("b", "last", Unhurried()));
  ASSERT_OK(last.Wait(kAmple)) << "held up by one before it";

  std::map<uint64_t, size_t> told;
  uint64_t highest = 0;
  bool ended = false;
  while (!ended) {
    ASSERT_OK_AND_ASSIGN(const Notification n, pair.b.agent->WaitNotification(kAmple));
    ended = n.payload == "last";
    if (ended) break;
    const uint64_t number = std::strtoull(n.payload.c_str(), nullptr, 10);
    ++told[number];
    if (posted[number].order == NotifyOrder::kAnyOrder) continue;
    EXPECT_LE(highest, number) << "out of order";
    highest = number;
  }
  // Those in any order may come behind the last of those in order.
  for (const Posted& one : posted) one.transfer.Wait(kAmple).IgnoreError();
  EXPECT_OK(pair.b.agent->Quiesce({}, kAmple));
  while (auto n = pair.b.agent->PollNotification()) {
    const uint64_t number = std::strtoull(n->payload.c_str(), nullptr, 10);
    EXPECT_EQ(posted.at(number).order, NotifyOrder::kAnyOrder);
    ++told[number];
  }
  for (uint64_t number = 0; number < count; ++number) {
    SCOPED_TRACE(number);
    CheckEnd(posted[number], told[number]);
  }
}

// Expect that one in any order passes one that is held by its ready fence, and one in order waits.
TEST_P(AgentOrder, AnyOrderPassesPostedWaits) {
  ASSERT_OK_AND_ASSIGN(Pair pair, Pair::Create(GetParam(), 64 * 1024));
  std::atomic<uint32_t> ready{0};
  const Shape shape{.block_bytes = 512, .ids = 4};
  const BlockSet blocks(shape, pair.a.memory.address(), pair.b.memory.address());
  TransferOptions fenced = Telling("held");
  fenced.ready = &ready;
  ASSERT_OK_AND_ASSIGN(const Transfer held, blocks.Write(*pair.a.agent, "b", fenced));
  ASSERT_OK_AND_ASSIGN(const Transfer in_order, pair.a.agent->Notify("b", "in order", Unhurried()));
  ASSERT_OK_AND_ASSIGN(const Transfer passes,
                       pair.a.agent->Notify("b", "passes", Unhurried(NotifyOrder::kAnyOrder)));
  ASSERT_OK_AND_ASSIGN(const Notification first, pair.b.agent->WaitNotification(kAmple));
  EXPECT_EQ(first.payload, "passes");
  EXPECT_EQ(held.Poll(), TransferState::kActive);
  EXPECT_FALSE(pair.b.agent->PollNotification().has_value());
  ready.store(1, std::memory_order_release);
  ASSERT_OK_AND_ASSIGN(const Notification second, pair.b.agent->WaitNotification(kAmple));
  EXPECT_EQ(second.payload, "held");
  ASSERT_OK_AND_ASSIGN(const Notification third, pair.b.agent->WaitNotification(kAmple));
  EXPECT_EQ(third.payload, "in order");
  EXPECT_OK(held.Wait(kAmple));
  EXPECT_OK(in_order.Wait(kAmple));
  EXPECT_OK(passes.Wait(kAmple));
}

INSTANTIATE_TEST_SUITE_P(All, AgentOrder, ::testing::ValuesIn(AllFlavours()), FlavourName);

}  // namespace
}  // namespace kvxfer::testing
