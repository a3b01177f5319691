// An end that was planned is no warning in the log of the other side; a loss is one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>

#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kvxfer/log.h"
#include "src/core/base/log_limits.h"
#include "tests/support/agents.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"
#include "tests/support/tcp_streams.h"
#include "tests/support/test_peer.h"

namespace kvxfer::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
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
  // Tests before this one may have logged all that this cause may at once.
  std::this_thread::sleep_for(LogLimits::kEvery + std::chrono::milliseconds(100));
  b->process().Signal(SIGKILL);
  EXPECT_TRUE(WaitLost(*a));
  EXPECT_THAT(warnings.SoFar(), Contains(HasSubstr("peer b lost")));
}

// An agent here and one in another process, whose streams to it end in this one's hands.
class RailsThatEnd : public ::testing::Test {
 protected:
  void SetUp() override {
    AgentOptions a{.name = "a", .backends = {"tcp"}};
    a.backend["tcp"]["streams"] = "2";
    AgentOptions b = a;
    b.name = "b";
    ASSERT_OK_AND_ASSIGN(a_, Agent::Create(a));
    ASSERT_OK_AND_ASSIGN(b_, TestPeer::Start(Where::kProcess));
    ASSERT_OK(b_->Create(b, MemoryType::kAttached, 4096));
    ASSERT_OK(Introduce(*a_, *b_));
    ASSERT_OK_AND_ASSIGN(const Transfer there, a_->Notify("b", "x", Unhurried()));
    ASSERT_OK(there.Wait(kAmple));
    ASSERT_TRUE(Eventually(kAmple, [this] { return RailsUp() == 2; }));
  }
  int RailsUp() const {
    const absl::StatusOr<Explanation> all = a_->Explain("b");
    if (!all.ok() || all->paths.size() != 1) return -1;
    int up = 0;
    for (const RailExplanation& rail : all->paths[0].each_rail) up += rail.up ? 1 : 0;
    return up;
  }

  std::unique_ptr<Agent> a_;
  std::unique_ptr<TestPeer> b_;
};

// The connection follows: its end is what there is to say.
TEST_F(RailsThatEnd, WithTheirConnectionAreNotWarnedOf) {
  // Tests before this one may have logged all that a cause may at once.
  std::this_thread::sleep_for(LogLimits::kEvery + std::chrono::milliseconds(100));
  b_->process().Signal(SIGSTOP);
  b_->process().WaitStopped();
  Warnings warnings;
  for (const StreamEnd& end : DataStreams()) shutdown(end.fd, SHUT_RDWR);
  EXPECT_TRUE(Eventually(kAmple, [this] { return RailsUp() == 0; }));
  EXPECT_THAT(warnings.SoFar(), IsEmpty());
  b_->process().Signal(SIGKILL);
  EXPECT_TRUE(WaitLost(*a_));
  EXPECT_THAT(warnings.SoFar(), ElementsAre(HasSubstr("peer b lost")));
}

TEST_F(RailsThatEnd, AloneAreWarnedOf) {
  Warnings warnings;
  const std::vector<StreamEnd> one = OneDataStream();
  ASSERT_EQ(one.size(), 1u);
  shutdown(one[0].fd, SHUT_RDWR);
  EXPECT_TRUE(Eventually(kAmple, [&] { return !warnings.SoFar().empty(); }));
  EXPECT_THAT(warnings.SoFar(), Contains(HasSubstr("of tcp failed")));
}

INSTANTIATE_TEST_SUITE_P(Backends, OrderlyClose, ::testing::Values("tcp", "shm"),
                         [](const auto& backend) { return std::string(backend.param); });

}  // namespace
}  // namespace kvxfer::testing
