// Regions that other threads register while the driver works, at verbs.

#include <cerrno>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "tests/conformance/verbs_device.h"

namespace kvxfer::testing {
namespace {

class VerbsRegions : public VerbsDevice {
 protected:
  // On a thread of its own. Null after a reported failure.
  static std::unique_ptr<Registration> RegisterAside(Party& party, std::span<std::byte> memory) {
    absl::StatusOr<std::unique_ptr<Registration>> made;
    std::thread([&] { made = Register(party, memory, 1); }).join();
    EXPECT_OK(made);
    return made.ok() ? *std::move(made) : nullptr;
  }
  static absl::StatusOr<std::unique_ptr<Registration>> Register(Party& party,
                                                                std::span<std::byte> memory,
                                                                uint32_t rkey) {
    return party.backend().Register({.rkey = rkey,
                                     .span = {.data = memory.data(), .bytes = memory.size()},
                                     .access = Access::kReadWrite});
  }
  kvxfer::Run RunFrom(std::span<const std::byte> memory, const Registration& registration) {
    return {.local = reinterpret_cast<uint64_t>(memory.data()),
            .remote = remote_->address(),
            .bytes = kOp,
            .registration = &registration,
            .key = key_};
  }
};

INSTANTIATE_TEST_SUITE_P(InMemory, VerbsRegions, ::testing::Values(VerbsDeviceFlavour()),
                         FlavourName);

TEST_P(VerbsRegions, ThreadsRegisterWhileTransfersGoOn) {
  constexpr uint32_t kEach = 200;
  Use(Devices(2, 2));
  ASSERT_NO_FATAL_FAILURE(Start(64 * kOp));
  Party& party = pair_->initiator();
  std::vector<std::byte> memory(kOp, std::byte{7});
  std::mutex mutex;
  std::vector<std::unique_ptr<Registration>> made;
  std::vector<std::jthread> threads;
  for (uint32_t thread = 0; thread < 2; ++thread) {
    threads.emplace_back([&, thread] {
      for (uint32_t i = 1; i <= kEach; ++i) {
        auto registration = Register(party, memory, thread * kEach + i);
        ASSERT_OK(registration);
        const std::lock_guard lock(mutex);
        made.push_back(*std::move(registration));
      }
    });
  }
  for (size_t used = 0; used < 2 * kEach;) {
    std::vector<std::unique_ptr<Registration>> some;
    {
      const std::lock_guard lock(mutex);
      some.swap(made);
    }
    std::vector<Op> ops;
    for (const auto& registration : some) {
      const auto rail = static_cast<uint32_t>(used++ % 2);
      ops.push_back(
          out().Make(OpKind::kWrite, 1, {RunFrom(memory, *registration)}, std::nullopt, rail));
    }
    ASSERT_TRUE(pair_->PostAll(ops));
    ASSERT_TRUE(Ended());
    // The last ones are still there when the backend goes.
    if (used == 2 * kEach) made = std::move(some);
  }
  threads.clear();
  EXPECT_EQ(out().failed(), 0u);
  pair_->Turn();
}

// No request may name a key that a device does not have.
TEST_P(VerbsRegions, NothingIsPostedToADeviceThatLacksANewOne) {
  Use(Devices(2, 2));
  ASSERT_NO_FATAL_FAILURE(Start(64 * kOp));
  std::vector<std::byte> memory(kOp);
  fabric_->FailCall(Call::kRegMr, 2, ENOMEM);
  const auto registration = RegisterAside(pair_->initiator(), memory);
  ASSERT_NE(registration, nullptr);
  // Nobody has polled meanwhile.
  std::vector<Op> ops;
  for (const uint32_t rail : {1u, 0u}) {
    ops.push_back(
        out().Make(OpKind::kWrite, 1, {RunFrom(memory, *registration)}, std::nullopt, rail));
  }
  EXPECT_EQ(out().Post(std::span(ops).first(1)), 0u);
  EXPECT_EQ(out().Post(std::span(ops).last(1)), 1u);
  ASSERT_TRUE(DownIs(1));
  EXPECT_EQ(out().rails_down.back(), 1u);
  ASSERT_TRUE(Ended());
  EXPECT_EQ(out().failed(), 0u);
}

TEST_P(VerbsRegions, OneThatTheDriverHasNotSeenOutlivesItsBackend) {
  Use(Devices(1, 1));
  std::vector<std::byte> memory(kOp);
  ASSERT_OK_AND_ASSIGN(std::unique_ptr<Party> party, Party::Make(GetParam(), "initiator"));
  auto registration = RegisterAside(*party, memory);
  ASSERT_NE(registration, nullptr);
  party.reset();
  EXPECT_EQ(fabric_->live_objects(), 0u);
  registration.reset();
}

// A run without a registration or a key is refused, wherever it stands in the op.
TEST_P(VerbsRegions, AnOpThatNamesNoRegionIsRefused) {
  Use(Devices(1, 1));
  ASSERT_NO_FATAL_FAILURE(Start(64 * kOp));
  const uint64_t requests = fabric_->requests();
  std::vector<Op> ops;
  for (const bool local : {true, false}) {
    for (const size_t which : {0u, 2u}) {
      std::vector<kvxfer::Run> runs = {RunAt(0, kOp), RunAt(2 * kOp, kOp), RunAt(4 * kOp, kOp)};
      if (local) {
        runs[which].registration = nullptr;
      } else {
        runs[which].key = nullptr;
      }
      ops.push_back(out().Make(OpKind::kWrite, 1, runs, 1));
    }
  }
  ASSERT_TRUE(pair_->PostAll(ops));
  ASSERT_TRUE(Ended());
  for (const Op& op : ops) {
    EXPECT_TRUE(
        Fails(out().ended[op.id], absl::StatusCode::kInvalidArgument, {"names no rail, transfer"}));
  }
  EXPECT_EQ(fabric_->requests(), requests);
  ASSERT_NO_FATAL_FAILURE(ExpectAllRailsWork());
}

}  // namespace
}  // namespace kvxfer::testing
