// A model test of who drives progress: every interleaving of submitters, waiting drivers, the
// background thread and arriving I/O on small cases. The threads are modelled after
// progress_loop.cc, one lock-protected step at a time; DriveState is the real one.
//
// Expect in every reachable state: at most one thread inside. Expect where nothing can move any
// more: every command run, every event handled, every driver that waited gone: no lost wake-up.

#include "src/agent/engine/drive_state.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <compare>
#include <cstdio>
#include <set>
#include <string>
#include <vector>

namespace kvxfer {
namespace {

constexpr int kMaxThreads = 3;

enum class At : uint8_t {
  kStart,
  kPushed,    // submitter: command queued, not yet at the seat
  kKicks,     // submitter that hands work over: about to wake the sleeper, without the lock
  kInside,    // has the seat, awake: drains, handles events
  kChecked,   // drained and found nothing to do: about to sleep
  kAsleep,    // in epoll
  kReturned,  // waits for its borrowed seat
  kParked,    // driver that waits for the seat or for its event
  kStandBy,   // background: its timer may fire at any moment
  kLongWait,  // background: waits to be woken
  kGone,
};

struct Thread {
  At at = At::kStart;
  bool driving = false;  // driver: handed the seat
  bool done = false;     // driver: what it waits for has happened
  bool told = false;     // driver: its condition variable was notified
  auto operator<=>(const Thread&) const = default;
};

struct Model {
  DriveState state;
  std::array<Thread, kMaxThreads> submitters{};
  std::array<Thread, kMaxThreads> drivers{};
  Thread background{.at = At::kStandBy};
  int queued = 0;                         // commands not yet run
  bool kick = false;                      // the eventfd is readable
  std::array<uint8_t, kMaxThreads> io{};  // events: 0 to come, 1 readable, 2 handled
  bool background_notified = false;
  auto operator<=>(const Model&) const = default;
};

struct Size {
  int submitters;
  int drivers;
  bool hands = false;  // the last submitter hands its work over
};

class Explorer {
 public:
  explicit Explorer(Size size) : size_(size) {}

  void Run() {
    Visit(Model{});
    while (!todo_.empty()) {
      const Model model = todo_.back();
      todo_.pop_back();
      Expand(model);
    }
  }
  size_t states() const { return seen_.size(); }

 private:
  void Visit(const Model& model) {
    if (seen_.insert(model).second) todo_.push_back(model);
  }

  // A changed copy is a step; what changes nothing is none.
  template <typename F>
  void Step(const Model& from, F&& change) {
    Model to = from;
    change(to);
    if (to == from) return;
    moved_ = true;
    Visit(to);
  }

  void Expand(const Model& model) {
    CheckOneInside(model);
    moved_ = false;
    for (int i = 0; i < size_.submitters; ++i) {
      Step(model, [&](Model& m) { Submitter(m, static_cast<size_t>(i)); });
    }
    for (int i = 0; i < size_.drivers; ++i) {
      const auto d = static_cast<size_t>(i);
      Step(model, [&](Model& m) { Driver(m, d); });
    }
    for (size_t d = 0; d < Events(); ++d) {
      Step(model, [&](Model& m) { m.io[d] = std::max<uint8_t>(m.io[d], 1); });
    }
    Step(model, [&](Model& m) { Background(m); });
    if (!moved_) CheckEnd(model);
  }

  // One for each driver, and one that nobody waits for.
  size_t Events() const {
    return std::min<size_t>(static_cast<size_t>(size_.drivers) + 1, kMaxThreads);
  }

  void Follow(Model& m, const DriveState::Step& step) {
    m.kick |= step.kick;
    m.background_notified |= step.wake_background;
    if (step.unpark != 0) m.drivers[step.unpark - 1].driving = true;
  }

  // What an owner does in a round: runs commands, handles readable events, tells who waited.
  void Work(Model& m) {
    m.queued = 0;
    for (size_t d = 0; d < kMaxThreads; ++d) {
      if (m.io[d] != 1) continue;
      m.io[d] = 2;
      if (d >= static_cast<size_t>(size_.drivers)) continue;
      m.drivers[d].done = true;
      m.drivers[d].told = true;
      if (m.drivers[d].at == At::kAsleep) m.kick = true;
    }
  }
  bool Readable(const Model& m) const {
    for (uint8_t io : m.io) {
      if (io == 1) return true;
    }
    return m.kick;
  }

  // Whoever looks takes the kick, unless it is for somebody who sleeps.
  void TakeKick(Model& m) {
    m.kick = m.kick && (m.state.background_leaving() || m.state.sleeping());
  }

  // The first only posts; the others make a round, as Progress does. Who hands work over only posts
  // too, if it drives at all.
  void Submitter(Model& m, size_t i) {
    Thread& t = m.submitters[i];
    const bool hands = size_.hands && i + 1 == static_cast<size_t>(size_.submitters);
    switch (t.at) {
      case At::kStart:
        ++m.queued;
        t.at = At::kPushed;
        return;
      case At::kPushed: {
        const DriveState::Step step = hands ? m.state.HandWork() : m.state.Submit();
        t.at = step.entered ? At::kInside : step.kick ? At::kKicks : At::kGone;
        return;
      }
      case At::kKicks:
        m.kick = true;
        t.at = At::kGone;
        return;
      case At::kInside:
        m.queued = 0;
        if (i > 0 && !hands) {
          TakeKick(m);
          Work(m);
        }
        t.at = At::kChecked;
        return;
      case At::kChecked: {
        const DriveState::Step step = m.state.LeaveSubmit(false);
        Follow(m, step);
        t.at = step.again ? At::kInside : At::kGone;
        return;
      }
      default:
        return;
    }
  }

  void Driver(Model& m, size_t d) {
    Thread& t = m.drivers[d];
    const auto id = static_cast<DriveState::DriverId>(d + 1);
    switch (t.at) {
      case At::kStart: {
        const DriveState::Step step = m.state.EnterDriver(id);
        Follow(m, step);
        t.driving = step.entered;
        t.at = t.driving ? At::kInside : At::kParked;
        return;
      }
      case At::kParked:
        if (t.driving) {
          t.at = At::kInside;
        } else if (t.done && t.told) {
          t.at = m.state.Unpark(id).entered ? At::kInside : At::kGone;
        }
        return;
      case At::kInside:
        Work(m);
        t.told = false;
        if (!t.done) {
          t.at = At::kChecked;
          return;
        }
        Leave(m, t, m.state.LeaveDriver());
        return;
      default:
        Sleeper(m, t, false);
    }
  }

  void Leave(Model& m, Thread& t, const DriveState::Step& step) {
    Follow(m, step);
    if (step.again) {
      m.queued = 0;
    } else {
      t.at = At::kGone;
    }
  }

  void Sleeper(Model& m, Thread& t, bool background) {
    switch (t.at) {
      case At::kChecked:
        t.at = !t.told && m.state.BeginSleep() ? At::kAsleep : At::kInside;
        return;
      case At::kAsleep:
        if (!Readable(m)) return;
        Wake(m, t, background);
        return;
      case At::kReturned:
        Wake(m, t, background);
        return;
      default:
        return;
    }
  }

  void Wake(Model& m, Thread& t, bool background) {
    switch (m.state.EndSleep(background)) {
      case DriveState::Wakened::kLost:
        t.at = At::kStandBy;
        return;
      case DriveState::Wakened::kBorrowed:
        t.at = At::kReturned;
        return;
      case DriveState::Wakened::kOwner:
        TakeKick(m);
        t.at = At::kInside;
        return;
    }
  }

  void Background(Model& m) {
    Thread& t = m.background;
    switch (t.at) {
      case At::kStandBy:
        if (m.state.BackgroundTake().entered) {
          t.at = At::kInside;
        } else if (m.state.BackgroundStandBy()) {
          m.background_notified = false;
          t.at = At::kLongWait;
        }
        return;
      case At::kLongWait:
        if (!m.background_notified) return;
        m.background_notified = false;
        t.at = At::kStandBy;
        return;
      case At::kInside: {
        Work(m);
        const DriveState::Step step = m.state.HandOver();
        Follow(m, step);
        t.at = step.unpark != 0 ? At::kStandBy : At::kChecked;
        return;
      }
      default:
        Sleeper(m, t, true);
    }
  }

  void CheckOneInside(const Model& m) {
    int inside = 0;
    const auto count = [&](const Thread& t) {
      inside += t.at == At::kInside || t.at == At::kChecked;
    };
    for (const Thread& t : m.submitters) count(t);
    for (const Thread& t : m.drivers) count(t);
    count(m.background);
    ASSERT_LE(inside, 1);
  }

  void CheckEnd(const Model& m) {
    ASSERT_EQ(m.queued, 0) << "a command was never run";
    for (size_t d = 0; d < Events(); ++d) {
      ASSERT_EQ(m.io[d], 2) << "an event was never handled";
    }
    // Timers need somebody who looks: asleep without the seat, nobody would.
    ASSERT_FALSE(m.state.empty()) << "nobody has the seat at rest";
    for (int i = 0; i < size_.submitters; ++i) {
      ASSERT_EQ(m.submitters[static_cast<size_t>(i)].at, At::kGone);
    }
    for (int i = 0; i < size_.drivers; ++i) {
      ASSERT_EQ(m.drivers[static_cast<size_t>(i)].at, At::kGone) << "a driver was not woken";
    }
    ++ends_;
  }

 public:
  size_t ends_ = 0;

 private:
  const Size size_;
  std::set<Model> seen_;
  std::vector<Model> todo_;
  bool moved_ = false;
};

class DriveStateModel : public ::testing::TestWithParam<Size> {};

TEST_P(DriveStateModel, NoLostWakeUpAndOneInside) {
  Explorer explorer(GetParam());
  explorer.Run();
  std::printf("%d submitters, %d drivers: %zu states, %zu ends\n", GetParam().submitters,
              GetParam().drivers, explorer.states(), explorer.ends_);
  EXPECT_GT(explorer.ends_, 0u);
}

INSTANTIATE_TEST_SUITE_P(Small, DriveStateModel,
                         ::testing::Values(Size{0, 1}, Size{1, 0}, Size{1, 1}, Size{2, 0},
                                           Size{2, 1}, Size{1, 2}, Size{3, 1}, Size{2, 2},
                                           Size{0, 3}, Size{1, 3}, Size{1, 0, true},
                                           Size{1, 1, true}, Size{2, 1, true}, Size{1, 2, true},
                                           Size{3, 1, true}, Size{2, 2, true}, Size{1, 3, true}),
                         [](const auto& info) {
                           return std::to_string(info.param.submitters) + "Submitters" +
                                  std::to_string(info.param.drivers) + "Drivers" +
                                  (info.param.hands ? "WorkIsHandedOver" : "");
                         });

}  // namespace
}  // namespace kvxfer
