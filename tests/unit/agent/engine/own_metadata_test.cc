// What peers are told of an agent, and how often that is encoded.
#include "src/agent/engine/own_metadata.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/unit/agent/session/fake_peer.h"

namespace kvxfer::testing {
namespace {

class MovingBackend : public FakeBackend {
 public:
  MovingBackend() : FakeBackend("tcp", kHostOnly), info_(FakeBackend::Describe()) {}
  const BackendInfo& Describe() const override { return info_; }
  void MoveTo(const std::string& address) { info_.address = address; }

 private:
  BackendInfo info_;
};

class OwnMetadataTest : public ::testing::Test, public FakePeer {
 protected:
  OwnMetadataTest() {
    auto backend = std::make_unique<MovingBackend>();
    backend_ = backend.get();
    runtime_.backends.push_back(std::move(backend));
    backend_->MoveTo("here");
    MakeRegions();
  }

  MovingBackend* backend_ = nullptr;
  OwnMetadata metadata_of_agent_{&runtime_};
};

TEST_F(OwnMetadataTest, SaysWhatAPeerNeeds) {
  runtime_.incarnation = Incarnation::Random();
  runtime_.revision = 3;
  const AgentMetadata told = metadata_of_agent_.Describe();
  EXPECT_EQ(told.incarnation, runtime_.incarnation);
  EXPECT_EQ(told.revision, 3u);
  EXPECT_EQ(told.last_region, 2u);
  ASSERT_EQ(told.backends.size(), 1u);
  EXPECT_EQ(told.backends[0].address, "here");
  EXPECT_EQ(*metadata_of_agent_.Served(), EncodeMetadata(told));
}

TEST_F(OwnMetadataTest, EncodedOnceUntilItChanges) {
  const auto first = metadata_of_agent_.Served();
  EXPECT_EQ(metadata_of_agent_.Served(), first);
  ++runtime_.revision;
  const auto second = metadata_of_agent_.Served();
  EXPECT_NE(second, first);
  EXPECT_EQ(metadata_of_agent_.Served(), second);
}

// An address changes in Poll, without a new revision.
TEST_F(OwnMetadataTest, AnAddressThatChangesIsServed) {
  const auto first = metadata_of_agent_.Served();
  backend_->MoveTo("there");
  const auto second = metadata_of_agent_.Served();
  EXPECT_NE(second, first);
  EXPECT_EQ(metadata_of_agent_.Describe().backends.at(0).address, "there");
}

}  // namespace
}  // namespace kvxfer::testing
