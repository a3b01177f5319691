// A process that is out of descriptors: what needs one fails as such, by name and with the remedy,
// and no peer is taken for lost.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "kvxfer/memory.h"
#include "tests/support/agents.h"
#include "tests/support/open_files.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;

class Descriptors : public ::testing::TestWithParam<const char*> {
 protected:
  AgentOptions Named(std::string name) const {
    return {.name = std::move(name), .backends = {GetParam()}};
  }
};

TEST_P(Descriptors, ThatRunOutAtAConnectionAreNoLossOfThePeer) {
  ASSERT_OK_AND_ASSIGN(const auto a, Agent::Create(Named("a")));
  ASSERT_OK_AND_ASSIGN(const auto b, Agent::Create(Named("b")));
  ASSERT_OK_AND_ASSIGN(const std::string metadata, b->Metadata());
  {
    const NoDescriptors none;
    ASSERT_OK(a->AddPeer(metadata));  // needs none
    ASSERT_OK_AND_ASSIGN(const Transfer lost, a->Notify("b", "x", Unhurried()));
    const absl::Status why = lost.Wait(kAmple);
    EXPECT_TRUE(
        Fails(why, kExhausted, {"peer b", "Too many open files", "ulimit -n", "LimitNOFILE"}));
    EXPECT_EQ(lost.Poll(), TransferState::kFailed);
  }
  // With descriptors it goes on as if nothing had been.
  EXPECT_TRUE(Eventually(kAmple, [&] {
    const auto again = a->Notify("b", "y", Unhurried());
    return again.ok() && again->Wait(kAmple).ok();
  }));
  const auto event = a->PollPeerEvent();
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(event->kind, PeerEventKind::kJoined);
}

TEST_P(Descriptors, ThatRunOutAreNamedByCreate) {
  const NoDescriptors none;
  EXPECT_TRUE(Fails(Agent::Create(Named("a")), kExhausted, {"Too many open files", "ulimit -n"}));
}

INSTANTIATE_TEST_SUITE_P(Backends, Descriptors, ::testing::Values("tcp", "shm", "faulty:tcp"),
                         [](const auto& backend) {
                           std::string name = backend.param;
                           for (char& c : name) c = c == ':' ? '_' : c;
                           return name;
                         });

TEST(DescriptorsOf, MemoryAreNamed) {
  const NoDescriptors none;
  EXPECT_TRUE(Fails(HostBuffer::Allocate(4096), kExhausted, {"Too many open files", "ulimit -n"}));
}

}  // namespace
}  // namespace kvxfer::testing
