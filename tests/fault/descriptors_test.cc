// A process that is out of descriptors: what needs one fails as such, by name and with the remedy,
// and no peer is taken for lost.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "kvxfer/memory.h"
#include "tests/support/agents.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

#if !KVXFER_ADDRESS_SANITIZER  // UBSan looks at objects through a pipe: no descriptor, no pipe

namespace kvxfer::testing {
namespace {

constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;

// No descriptor of this process can be opened while this lives.
class NoDescriptors {
 public:
  NoDescriptors() {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    // The lowest number that is free: all below are taken.
    const int lowest = open("/dev/null", O_RDONLY | O_CLOEXEC);
    EXPECT_GE(lowest, 0);
    close(lowest);
    rlimit none = before_;
    none.rlim_cur = static_cast<rlim_t>(lowest);
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  }
  ~NoDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

 private:
  rlimit before_{};
};

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

#endif  // !KVXFER_ADDRESS_SANITIZER
