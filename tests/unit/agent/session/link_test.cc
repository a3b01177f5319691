// The keys that a link has of a peer's regions.

#include "src/agent/session/link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <set>
#include <unordered_set>

#include "tests/unit/agent/session/fake_peer.h"

namespace kvxfer::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class LinkTest : public ::testing::Test, public FakePeer {
 protected:
  LinkTest() {
    Both("cuda_ipc");
    MakeRegions({"cuda_ipc"});
    regions_.Learn(metadata_);
    made_.endpoint->imports_as = absl::OkStatus();
  }
  absl::StatusOr<const RemoteKey*> KeyOf(RegionId id) {
    return made_.link->KeyOf(regions_, id, *runtime_.backends[0]);
  }

  FakeLink made_;
};

TEST_F(LinkTest, AKeyIsMadeOnceOfWhatTheMetadataSays) {
  ASSERT_OK_AND_ASSIGN(const RemoteKey* const cuda, KeyOf(kCudaRegion));
  EXPECT_EQ(made_.endpoint->imported, "key");
  ASSERT_OK_AND_ASSIGN(const RemoteKey* const again, KeyOf(kCudaRegion));
  EXPECT_EQ(cuda, again);
  EXPECT_EQ(made_.endpoint->imports, 1);
  ASSERT_OK(KeyOf(kHostRegion));
  EXPECT_EQ(made_.endpoint->imported, "");
  EXPECT_EQ(made_.endpoint->imports, 2);
}

TEST_F(LinkTest, OfARegionThatIsGoneNoKeyIsMadeOrGiven) {
  ASSERT_OK(KeyOf(kHostRegion));
  regions_.Revoke(static_cast<uint32_t>(kHostRegion));
  EXPECT_TRUE(Fails(KeyOf(kHostRegion), absl::StatusCode::kFailedPrecondition,
                    {"region 1 of peer decode-0", "deregistered"}));
  EXPECT_EQ(made_.endpoint->imports, 1);
}

TEST_F(LinkTest, KeysOfDeadRegionsAreClosedOnceNobodyUsesThem) {
  ASSERT_OK_AND_ASSIGN(const RemoteKey* const host, KeyOf(kHostRegion));
  ASSERT_OK(KeyOf(kCudaRegion));
  made_.link->DropDeadKeys(regions_, {});
  EXPECT_THAT(made_.endpoint->open, ElementsAre(kHostRegion, kCudaRegion));
  for (const RegionId id : {kHostRegion, kCudaRegion}) regions_.Revoke(static_cast<uint32_t>(id));
  made_.link->DropDeadKeys(regions_, {host});
  EXPECT_THAT(made_.endpoint->open, ElementsAre(kHostRegion));
  made_.link->DropDeadKeys(regions_, {});
  EXPECT_THAT(made_.endpoint->open, IsEmpty());
}

TEST_F(LinkTest, KeysOfNamedRegionsAreClosed) {
  ASSERT_OK(KeyOf(kHostRegion));
  ASSERT_OK(KeyOf(kCudaRegion));
  made_.link->DropKeys(std::array<uint32_t, 2>{1, 9});
  EXPECT_THAT(made_.endpoint->open, ElementsAre(kCudaRegion));
}

TEST_F(LinkTest, GpuMemoryThatTheBackendCannotReachIsBeyond) {
  EXPECT_OK(made_.link->WhyBeyond());
  made_.endpoint->imports_as = absl::FailedPreconditionError("no P2P");
  EXPECT_TRUE(Fails(KeyOf(kCudaRegion), absl::StatusCode::kFailedPrecondition,
                    {"region 2 of peer decode-0", "no P2P"}));
  EXPECT_FALSE(made_.link->WhyBeyond().ok());
  EXPECT_FALSE(made_.link->WhyBeyond(kCudaRegion).ok());
  EXPECT_OK(made_.link->WhyBeyond(kHostRegion));
  made_.link->ForgetBeyond();
  EXPECT_OK(made_.link->WhyBeyond());
}

TEST_F(LinkTest, WhatIsNotYetHereOrWrongIsNotBeyond) {
  for (const auto& why : {absl::UnavailableError("later"), absl::InvalidArgumentError("damaged")}) {
    made_.endpoint->imports_as = why;
    EXPECT_FALSE(KeyOf(kCudaRegion).ok());
    EXPECT_OK(made_.link->WhyBeyond());
  }
  // Nor is host memory, which nothing is staged for.
  made_.endpoint->imports_as = absl::FailedPreconditionError("gone");
  EXPECT_FALSE(KeyOf(kHostRegion).ok());
  EXPECT_OK(made_.link->WhyBeyond());
}

}  // namespace
}  // namespace kvxfer::testing
