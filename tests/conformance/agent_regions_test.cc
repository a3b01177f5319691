// More regions than one message lists: they are told of in pages when a connection begins.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <string>
#include <vector>

#include "src/core/protocol/metadata.h"
#include "src/core/protocol/wire_format.h"
#include "tests/support/agents.h"
#include "tests/support/blocks.h"
#include "tests/support/scale.h"
#include "tests/support/scripted_peer.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

using std::chrono::milliseconds;

constexpr size_t kMany = 40'000;     // every second one is more than a page
constexpr size_t kRegionBytes = 64;  // of each

class AgentRegions : public ::testing::TestWithParam<Flavour> {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(pair_, Pair::Create(GetParam(), OptionsFor(GetParam(), "a"),
                                             OptionsFor(GetParam(), "b"), 64 * 1024));
    ASSERT_OK_AND_ASSIGN(memory_, TestMemory::Allocate(GetParam().memory, kMany * kRegionBytes));
  }
  // Of `pair_.b`, one after the other in memory_.
  void Register(size_t count) {
    for (size_t i = 0; i < count; ++i) {
      const MemorySpan span{.data = reinterpret_cast<void*>(AddressOf(i)), .bytes = kRegionBytes};
      ASSERT_OK_AND_ASSIGN(const RegionId region,
                           pair_.b.agent->RegisterMemory(span, Access::kReadWrite));
      regions_.push_back(region);
    }
  }
  uint64_t AddressOf(size_t i) const { return memory_.address() + i * kRegionBytes; }
  // How a write of `pair_.a` to the region ended, and whether its bytes are there.
  absl::Status Write(size_t i) {
    Pattern(i).Fill(pair_.a.memory.bytes().first(kRegionBytes));
    const Descriptor local{pair_.a.memory.address(), kRegionBytes};
    const Descriptor remote{AddressOf(i), kRegionBytes};
    const auto write = pair_.a.agent->Write(
        "b", DescriptorBlocks{.local = std::span(&local, 1), .remote = std::span(&remote, 1)},
        Unhurried());
    return write.ok() ? write->Wait(kAmple) : write.status();
  }
  bool Untouched(size_t i) const {
    return FirstNonZero(memory_.bytes().subspan(i * kRegionBytes, kRegionBytes)) == kNoMismatch;
  }

  Pair pair_;
  TestMemory memory_;
  std::vector<RegionId> regions_;
};

// Expect that the regions of a peer are told as they were registered, that a write needs nothing
// more, and that what grants nothing is not offered.
TEST_P(AgentRegions, OfAPeerAreListed) {
  Register(3);
  const MemorySpan kept{.data = reinterpret_cast<void*>(AddressOf(3)), .bytes = kRegionBytes};
  const MemorySpan read{.data = reinterpret_cast<void*>(AddressOf(4)), .bytes = kRegionBytes};
  ASSERT_OK(pair_.b.agent->RegisterMemory(kept, Access::kNone).status());
  ASSERT_OK_AND_ASSIGN(const RegionId readable,
                       pair_.b.agent->RegisterMemory(read, Access::kRemoteRead));
  ASSERT_OK(pair_.b.agent->DeregisterMemory(regions_[1], kAmple));
  ASSERT_OK_AND_ASSIGN(const std::string peer, Introduce(*pair_.a.agent, *pair_.b.agent));
  ASSERT_OK_AND_ASSIGN(const std::vector<PeerRegion> all, pair_.a.agent->Regions(peer));

  std::vector<PeerRegion> expected = {{.id = pair_.b.region,
                                       .address = pair_.b.memory.address(),
                                       .bytes = 64 * 1024,
                                       .access = Access::kReadWrite},
                                      {.id = regions_[0],
                                       .address = AddressOf(0),
                                       .bytes = kRegionBytes,
                                       .access = Access::kReadWrite},
                                      {.id = regions_[2],
                                       .address = AddressOf(2),
                                       .bytes = kRegionBytes,
                                       .access = Access::kReadWrite},
                                      {.id = readable,
                                       .address = AddressOf(4),
                                       .bytes = kRegionBytes,
                                       .access = Access::kRemoteRead}};
  std::ranges::sort(expected, {}, &PeerRegion::address);
  EXPECT_EQ(all, expected);

  const auto there = std::ranges::find(all, regions_[2], &PeerRegion::id);
  ASSERT_NE(there, all.end());
  Pattern(2).Fill(pair_.a.memory.bytes().first(kRegionBytes));
  const Descriptor local{pair_.a.memory.address(), there->bytes};
  const Descriptor remote{there->address, there->bytes};
  ASSERT_OK_AND_ASSIGN(
      const Transfer write,
      pair_.a.agent->Write(
          peer, DescriptorBlocks{.local = std::span(&local, 1), .remote = std::span(&remote, 1)},
          Unhurried()));
  ASSERT_OK(write.Wait(kAmple));
  EXPECT_EQ(Pattern(2).Mismatch(memory_.bytes().subspan(2 * kRegionBytes, kRegionBytes)),
            kNoMismatch);
}

TEST_P(AgentRegions, OfAStrangerAreNot) {
  EXPECT_TRUE(
      Fails(pair_.a.agent->Regions("c").status(), absl::StatusCode::kNotFound, {"no peer c"}));
  ASSERT_OK(pair_.a.agent->RemovePeer("b"));
  EXPECT_TRUE(Fails(pair_.a.agent->Regions("b").status(), absl::StatusCode::kNotFound));
}

// Expect that who connects with old metadata learns of each region that is gone by then, and that
// what goes later is told as well.
TEST_P(AgentRegions, MoreThanAPageThatComeAndGo) {
  Register(kMany);
  ASSERT_OK_AND_ASSIGN(const std::string before, pair_.b.agent->Metadata());
  for (size_t i = 0; i < kMany; i += 2) {
    ASSERT_OK(pair_.b.agent->DeregisterMemory(regions_[i], kAmple));
  }
  ASSERT_OK(pair_.a.agent->RemovePeer("b"));
  ASSERT_OK(pair_.a.agent->AddPeer(before));
  for (const size_t live : {size_t{1}, kMany / 2 + 1, kMany - 1}) EXPECT_OK(Write(live)) << live;
  for (const size_t gone : {size_t{0}, kMany / 2, kMany - 2}) {
    EXPECT_TRUE(Fails(Write(gone), absl::StatusCode::kFailedPrecondition, {"deregistered"}));
    EXPECT_TRUE(Untouched(gone)) << gone;
  }
  ASSERT_OK(pair_.b.agent->DeregisterMemory(regions_[kMany - 3], kAmple));
  EXPECT_FALSE(Write(kMany - 3).ok());
  EXPECT_TRUE(Untouched(kMany - 3));
  EXPECT_OK(Write(kMany - 1));
}

TEST_P(AgentRegions, AListIsRegisteredAndForgottenAsAWhole) {
  std::vector<MemorySpan> spans;
  for (size_t i = 0; i < 1000; ++i) {
    spans.push_back({.data = reinterpret_cast<void*>(AddressOf(i)), .bytes = kRegionBytes});
  }
  ASSERT_OK_AND_ASSIGN(const std::string before, pair_.b.agent->Metadata());
  spans.push_back({});
  EXPECT_TRUE(Fails(pair_.b.agent->RegisterMemory(spans, Access::kReadWrite),
                    absl::StatusCode::kInvalidArgument, {"null"}));
  ASSERT_OK_AND_ASSIGN(const std::string after, pair_.b.agent->Metadata());
  EXPECT_EQ(DecodeMetadata(after)->regions.size(), DecodeMetadata(before)->regions.size());
  spans.pop_back();
  ASSERT_OK_AND_ASSIGN(regions_, pair_.b.agent->RegisterMemory(spans, Access::kReadWrite));
  EXPECT_EQ(regions_.size(), spans.size());
  ASSERT_OK(Introduce(*pair_.a.agent, *pair_.b.agent));
  EXPECT_OK(Write(999));

  const std::vector<RegionId> twice{regions_[0], regions_[1], regions_[0]};
  EXPECT_TRUE(Fails(pair_.b.agent->DeregisterMemory(twice, kAmple),
                    absl::StatusCode::kInvalidArgument, {"twice"}));
  const std::vector<RegionId> unknown{regions_[0], RegionId{123'456}};
  EXPECT_TRUE(Fails(pair_.b.agent->DeregisterMemory(unknown, kAmple), absl::StatusCode::kNotFound,
                    {"123456"}));
  EXPECT_OK(Write(0));
  ASSERT_OK(pair_.b.agent->DeregisterMemory(std::span(regions_).first(999), kAmple));
  EXPECT_FALSE(Write(998).ok());
  EXPECT_OK(Write(999));
  EXPECT_OK(pair_.b.agent->DeregisterMemory(std::span<const RegionId>(), kAmple));
}

// In a callback nothing may be waited for, and the list is registered as a whole or not at all.
TEST_P(AgentRegions, AListThatIsRefusedInACallbackLeavesNothing) {
  std::vector<MemorySpan> spans;
  for (size_t i = 0; i < 600; ++i) {
    spans.push_back({.data = reinterpret_cast<void*>(AddressOf(i)), .bytes = kRegionBytes});
  }
  std::vector<MemorySpan> null = spans;
  null[580] = {};
  // Seen to be wrong by the driver of the GPU, or for want of one, when the others are registered.
  spans.push_back({.data = reinterpret_cast<void*>(AddressOf(600)),
                   .bytes = kRegionBytes,
                   .kind = MemoryKind::kCuda});
  ASSERT_OK(Introduce(*pair_.a.agent, *pair_.b.agent));
  ASSERT_OK_AND_ASSIGN(const std::string before, pair_.b.agent->Metadata());
  std::promise<std::vector<absl::Status>> refused;
  pair_.b.agent->OnNotification([&](const Notification&) {
    refused.set_value({pair_.b.agent->RegisterMemory(null, Access::kReadWrite).status(),
                       pair_.b.agent->RegisterMemory(spans, Access::kReadWrite).status()});
  });
  ASSERT_OK(pair_.a.agent->Notify("b", "register", Unhurried()));
  const std::vector<absl::Status> said = refused.get_future().get();
  EXPECT_TRUE(Fails(said[0], absl::StatusCode::kInvalidArgument, {"null"}));
  EXPECT_FALSE(said[1].ok());
  ASSERT_OK_AND_ASSIGN(const std::string after, pair_.b.agent->Metadata());
  EXPECT_EQ(DecodeMetadata(after)->regions.size(), DecodeMetadata(before)->regions.size());
  spans.pop_back();
  ASSERT_OK_AND_ASSIGN(regions_, pair_.b.agent->RegisterMemory(spans, Access::kReadWrite));
  ASSERT_OK(Introduce(*pair_.a.agent, *pair_.b.agent));
  EXPECT_OK(Write(599));
}

// What is in use stays, and is said; the others are gone.
TEST_P(AgentRegions, OfAListThoseInUseStay) {
  Register(3);
  std::vector<RegionId> regions = regions_;
  regions.push_back(pair_.b.region);
  const std::atomic<uint32_t> never{0};
  TransferOptions options = Unhurried();
  options.ready = &never;
  ASSERT_OK(Introduce(*pair_.b.agent, *pair_.a.agent));
  ASSERT_OK_AND_ASSIGN(const Transfer waits,
                       BlockSet({}, pair_.b.memory.address(), pair_.a.memory.address())
                           .Write(*pair_.b.agent, "a", options));
  std::vector<RegionId> in_use;
  EXPECT_TRUE(Fails(pair_.b.agent->DeregisterMemory(regions, milliseconds(1), &in_use), kTimedOut,
                    {"stays registered"}));
  EXPECT_EQ(in_use, std::vector{pair_.b.region});
  EXPECT_TRUE(
      Fails(pair_.b.agent->DeregisterMemory(regions_[0], kAmple), absl::StatusCode::kNotFound));
  waits.Cancel();
  EXPECT_OK(pair_.b.agent->DeregisterMemory(in_use, kAmple));
}

TEST_P(AgentRegions, OneQuiesceNamesSoManyAtMost) {
  QuiesceScope scope;
  scope.regions.assign(kMaxListedRegions + 1, pair_.b.region);
  EXPECT_TRUE(Fails(pair_.b.agent->Quiesce(scope, kAmple), absl::StatusCode::kInvalidArgument,
                    {"one call names at most 30000", "mean all"}));
}

std::vector<Flavour> Few() {
  std::vector<Flavour> few;
  for (const Flavour& flavour : PlainFlavours()) {
    if (flavour.backend == "loopback" || flavour.backend == "tcp") few.push_back(flavour);
  }
  return few;
}
INSTANTIATE_TEST_SUITE_P(All, AgentRegions, ::testing::ValuesIn(Few()), FlavourName);

}  // namespace
}  // namespace kvxfer::testing
