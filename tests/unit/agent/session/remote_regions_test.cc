// A peer's regions: what its metadata says, less what it has deregistered.

#include "src/agent/session/remote_regions.h"

#include <gtest/gtest.h>

#include <vector>

#include "src/agent/staging/staging.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

AgentMetadata Metadata(uint32_t last) {
  AgentMetadata metadata{.name = "decode-0"};
  for (uint32_t id = 1; id <= last; ++id) {
    metadata.regions.push_back(
        {.region = {.id = RegionId{id}, .base = id * uint64_t{0x10000}, .bytes = 0x1000}});
  }
  return metadata;
}

std::vector<uint32_t> Usable(const RemoteRegions& regions, uint32_t last) {
  std::vector<uint32_t> ids;
  for (uint32_t id = 1; id <= last; ++id) {
    if (regions.Usable(RegionId{id})) ids.push_back(id);
  }
  return ids;
}

TEST(RemoteRegionsTest, KnowsWhatTheMetadataLists) {
  const AgentMetadata metadata = Metadata(2);
  RemoteRegions regions;
  regions.Learn(metadata);
  EXPECT_EQ(regions.Find(RegionId{2}), &metadata.regions[1]);
  EXPECT_EQ(regions.Find(RegionId{3}), nullptr);
  ASSERT_OK_AND_ASSIGN(const auto* live, regions.Live(RegionId{1}));
  EXPECT_EQ(live, &metadata.regions[0]);
  EXPECT_EQ(regions.table()->regions().size(), 2u);
  EXPECT_EQ(regions.staging_buffers(), 0u);
}

TEST(RemoteRegionsTest, ARevokedRegionStaysRevokedInLaterMetadata) {
  const AgentMetadata first = Metadata(2);
  RemoteRegions regions;
  regions.Learn(first);
  regions.Revoke(2);
  regions.Revoke(3);
  EXPECT_TRUE(Fails(regions.Live(RegionId{2}), absl::StatusCode::kFailedPrecondition,
                    {"region 2 of peer decode-0 was deregistered there", "take its metadata"}));
  // Expect that it is still known, for what is asked of it by its kind.
  EXPECT_NE(regions.Find(RegionId{2}), nullptr);
  const AgentMetadata second = Metadata(4);
  regions.Learn(second);
  EXPECT_EQ(Usable(regions, 5), (std::vector<uint32_t>{1, 4}));
  EXPECT_EQ(regions.table()->regions().size(), 2u);
}

TEST(RemoteRegionsTest, RegionsThatThePeerDoesNotListAreGone) {
  const AgentMetadata metadata = Metadata(9);
  RemoteRegions regions;
  regions.Learn(metadata);
  regions.OnPage(
      {.first = 1, .last = 6, .live = {{.first = 2, .last = 3}, {.first = 5, .last = 5}}});
  EXPECT_EQ(Usable(regions, 9), (std::vector<uint32_t>{2, 3, 5, 7, 8, 9}));
  regions.OnPage({.first = 7, .last = 8});
  EXPECT_EQ(Usable(regions, 9), (std::vector<uint32_t>{2, 3, 5, 9}));
  // The last id that there is.
  regions.OnPage({.first = 9, .last = UINT32_MAX, .live = {{.first = 9, .last = UINT32_MAX}}});
  EXPECT_EQ(Usable(regions, 9), (std::vector<uint32_t>{2, 3, 5, 9}));
}

TEST(RemoteRegionsTest, APeerMayNotInventRegions) {
  RemoteRegions regions;
  for (uint32_t run = 0; run < 2 * kMaxRegions; ++run) regions.Revoke(1 + 2 * run);
  EXPECT_OK(regions.CheckRevoked());
  regions.Revoke(UINT32_MAX);
  EXPECT_TRUE(Fails(regions.CheckRevoked(), absl::StatusCode::kResourceExhausted,
                    {"more regions are gone than were"}));
}

TEST(RemoteRegionsTest, ThePeersStagingMemoryIsARegionOfIt) {
  AgentMetadata metadata = Metadata(1);
  metadata.regions[0].staging = true;
  metadata.regions[0].region.bytes = 3 * Staging::kBufferBytes + 1;
  RemoteRegions regions;
  regions.Learn(metadata);
  EXPECT_EQ(regions.staging_base(), 0x10000u);
  EXPECT_EQ(regions.staging_buffers(), 3u);
}

}  // namespace
}  // namespace kvxfer::testing
