// Whose turn it is among backends, what becomes of events that a driver leaves behind, and whom
// each event reaches.
#include "src/agent/engine/backend_poller.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/agent/session/fake_peer.h"

namespace kvxfer::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Reports what the test gives it.
class ScriptedBackend : public FakeBackend {
 public:
  ScriptedBackend(std::string_view name, std::vector<std::string>* log)
      : FakeBackend(name, kHostOnly), log_(log) {}
  size_t Poll(std::span<Event> out, Input input) override {
    log_->push_back(std::string(name()) + (input == Input::kInMemory ? " memory" : ""));
    size_t count = 0;
    for (; count < out.size() && !events.empty(); ++count) {
      out[count] = std::move(events.front());
      events.pop_front();
    }
    return count;
  }
  bool Arm() override {
    ++armed;
    return arms;
  }

  std::deque<Event> events{};
  bool arms = true;
  int armed = 0;

 private:
  std::vector<std::string>* const log_;
};

class BackendPollerTest : public ::testing::Test,
                          public FakePeer,
                          private EndpointUser,
                          private Acceptor {
 protected:
  BackendPollerTest() {
    for (const char* name : {"a", "b", "c"}) {
      auto backend = std::make_unique<ScriptedBackend>(name, &log_);
      backends_.push_back(backend.get());
      runtime_.backends.push_back(std::move(backend));
    }
    runtime_.users[&endpoint_] = this;
  }
  void Give(size_t backend, uint64_t op) {
    Event event{.kind = EventKind::kCompletion, .endpoint = &endpoint_};
    event.id = op;
    backends_[backend]->events.push_back(std::move(event));
  }
  bool PollAll(Driven::Leaving leaving = Driven::Stays) {
    return poller_.PollAll([](size_t) { return Input::kAll; }, leaving);
  }
  std::vector<std::string> Log() { return std::exchange(log_, {}); }
  std::vector<uint64_t> Handled() { return std::exchange(handled_, {}); }

  std::vector<std::string> log_;
  std::vector<ScriptedBackend*> backends_;
  FakeEndpoint endpoint_;
  std::vector<uint64_t> handled_;
  std::vector<size_t> accepted_;
  BackendPoller poller_{&runtime_, this};

 private:
  void OnEvent(Event& event) override { handled_.push_back(event.id); }
  void OnAccepted(size_t backend, std::unique_ptr<Endpoint> /*endpoint*/) override {
    accepted_.push_back(backend);
  }
};

TEST_F(BackendPollerTest, EachIsPolledOnce) {
  EXPECT_FALSE(PollAll());
  EXPECT_THAT(Log(), ElementsAre("a", "b", "c"));
  Give(1, 7);
  EXPECT_TRUE(PollAll());
  EXPECT_THAT(Handled(), ElementsAre(7));
}

// Expect that a driver which always leaves after one event starves no backend and loses no event.
TEST_F(BackendPollerTest, TheNextDriverGoesOnWhereOneLeft) {
  Give(0, 1);
  Give(0, 2);
  Give(1, 3);
  const auto leaves = [] { return true; };
  EXPECT_TRUE(PollAll(leaves));
  EXPECT_THAT(Log(), ElementsAre("a"));
  EXPECT_THAT(Handled(), ElementsAre(1));
  EXPECT_FALSE(poller_.Arm()) << "an event is left";
  EXPECT_TRUE(PollAll(leaves));
  EXPECT_THAT(Log(), ElementsAre("b", "c", "a"));
  EXPECT_THAT(Handled(), ElementsAre(2, 3));
}

TEST_F(BackendPollerTest, EventsOfAnEndpointWithoutUserAreDropped) {
  runtime_.users.clear();
  Give(0, 1);
  EXPECT_TRUE(PollAll());
  EXPECT_THAT(Handled(), IsEmpty());
}

TEST_F(BackendPollerTest, ConnectionsOfPeersGoToWhoAcceptsThem) {
  Event event{.kind = EventKind::kAccepted};
  event.accepted = std::make_unique<FakeEndpoint>();
  backends_[2]->events.push_back(std::move(event));
  EXPECT_TRUE(PollAll());
  EXPECT_THAT(accepted_, ElementsAre(2));
}

TEST_F(BackendPollerTest, AllAreArmedEvenIfOneHasWork) {
  EXPECT_TRUE(poller_.Arm());
  backends_[0]->arms = false;
  EXPECT_FALSE(poller_.Arm());
  EXPECT_EQ(backends_[2]->armed, 2);
}

}  // namespace
}  // namespace kvxfer::testing
