// An end that was planned is no warning in the log of the other side; a loss is one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kvxfer/log.h"
#include "tests/support/agents.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"
#include "tests/support/test_peer.h"

namespace kvxfer::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Warnings and errors that are logged from now on.
class Warnings {
 public:
  Warnings() {
    SetLogSink([this](LogLevel level, std::string_view line) {
      const std::lock_guard lock(mu_);
      if (level >= LogLevel::kWarning) lines_.emplace_back(line);
    });
  }
  ~Warnings() { SetLogSink({}); }
  Warnings(const Warnings&) = delete;
  Warnings& operator=(const Warnings&) = delete;

  std::vector<std::string> SoFar() {
    EXPECT_TRUE(FlushLog(kAmple));
    const std::lock_guard lock(mu_);
    return lines_;
  }

 private:
  std::mutex mu_;
  std::vector<std::string> lines_;
};

bool WaitLost(Agent& agent) {
  return Eventually(kAmple, [&] {
    const auto event = agent.PollPeerEvent();
    return event.has_value() && event->kind == PeerEventKind::kLost;
  });
}

class OrderlyClose : public ::testing::TestWithParam<const char*> {
 protected:
  AgentOptions Named(std::string name) const {
    return {.name = std::move(name), .backends = {GetParam()}};
  }
  // Agent "b", connected both ways to `a`.
  void Connect(Agent& a, std::unique_ptr<Agent>& b) const {
    ASSERT_OK_AND_ASSIGN(b, Agent::Create(Named("b")));
    ASSERT_OK(Introduce(a, *b));
    ASSERT_OK(Introduce(*b, a));
    ASSERT_OK_AND_ASSIGN(const Transfer there, a.Notify("b", "x", Unhurried()));
    ASSERT_OK(there.Wait(kAmple));
    ASSERT_OK_AND_ASSIGN(const Transfer back, b->Notify("a", "x", Unhurried()));
    ASSERT_OK(back.Wait(kAmple));
  }
};

// Several times: which end of which stream is seen first is a matter of chance.
TEST_P(OrderlyClose, WarnsNobody) {
  ASSERT_OK_AND_ASSIGN(const auto a, Agent::Create(Named("a")));
  Warnings warnings;
  for (int i = 0; i < 5; ++i) {
    std::unique_ptr<Agent> b;
    Connect(*a, b);
    const absl::Status drained = i % 2 == 0 ? b->Drain(kAmple) : absl::OkStatus();
    ASSERT_OK(drained);
    b.reset();
    EXPECT_TRUE(WaitLost(*a));
    ASSERT_OK(a->RemovePeer("b"));
  }
  EXPECT_THAT(warnings.SoFar(), IsEmpty());
}

TEST_P(OrderlyClose, RemovingAPeerWarnsNobody) {
  ASSERT_OK_AND_ASSIGN(const auto a, Agent::Create(Named("a")));
  std::unique_ptr<Agent> b;
  Connect(*a, b);
  Warnings warnings;
  ASSERT_OK(a->RemovePeer("b"));
  ASSERT_OK(b->RemovePeer("a"));
  EXPECT_TRUE(WaitLost(*b));
  EXPECT_THAT(warnings.SoFar(), IsEmpty());
}

TEST_P(OrderlyClose, ALossStillWarns) {
  ASSERT_OK_AND_ASSIGN(const auto a, Agent::Create(Named("a")));
  ASSERT_OK_AND_ASSIGN(const auto b, TestPeer::Start(Where::kProcess));
  ASSERT_OK(b->Create(Named("b"), MemoryType::kAttached, 4096));
  ASSERT_OK(Introduce(*a, *b));
  ASSERT_OK_AND_ASSIGN(const Transfer there, a->Notify("b", "x", Unhurried()));
  ASSERT_OK(there.Wait(kAmple));
  Warnings warnings;
  b->process().Signal(SIGKILL);
  EXPECT_TRUE(WaitLost(*a));
  EXPECT_THAT(warnings.SoFar(), Contains(HasSubstr("peer b lost")));
}

INSTANTIATE_TEST_SUITE_P(Backends, OrderlyClose, ::testing::Values("tcp", "shm"),
                         [](const auto& backend) { return std::string(backend.param); });

}  // namespace
}  // namespace kvxfer::testing
