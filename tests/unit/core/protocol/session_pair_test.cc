// Two sides of a session that know each other by hellos alone, and everything that can happen to
// their connections: both dial at once, hellos cross and come late, connections are lost at either
// end before the other notices, either side ends the session at any moment, a firewall lets no
// connection pass in one direction.
//
// Expect of every state: no frame is taken twice or out of order, or in another session than the
// one in which it was sent; and of every state in which nothing more goes wrong: both sides find
// each other over the connections that can be made, and say what they have to say.

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "src/core/protocol/session.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

using State = Session::State;
constexpr Time kNow = Time{} + std::chrono::milliseconds(1);

Session::Party PartyOf(size_t side) {
  Session::Party party{.name = side == 0 ? "a" : "b"};
  party.incarnation.bytes[0] = static_cast<uint8_t>(side + 1);
  return party;
}

// A message on its way: a hello, its answer, a refusal, or a frame with the session that it is of,
// by the sender's number, and by what it is in it.
struct Message {
  enum class Kind : uint8_t { kHello, kAck, kRefuse, kFrame };
  Kind kind = Kind::kFrame;
  HelloFrame hello{};
  HelloAckFrame ack{};
  RefuseReason refuse = RefuseReason::kClosing;
  std::string frame{};
  uint64_t sent_in = 0;
  uint64_t acks = 0;  // of a hello and its answer
};

// One connection: what is on its way in it, and what each end knows of it.
struct Link {
  enum class End : uint8_t { kBegins, kUp, kClosing, kDown };
  size_t dialler = 0;
  std::array<End, 2> ends{End::kBegins, End::kBegins};  // by side
  std::array<std::deque<Message>, 2> to{};              // by the side that receives
  HelloAnswer answer{};                                 // at the dialler
};

class Pair {
 public:
  // `dials`: which sides can dial.
  explicit Pair(std::array<bool, 2> dials) : dials_(dials) {}

  enum class Act : uint8_t { kDial, kDeliver, kLose, kNotice, kSay, kEnd };
  struct Step {
    Act act;
    size_t side = 0;
    size_t link = 0;
  };

  // What can happen. `faults`: also what does harm.
  std::vector<Step> Steps(bool faults) const {
    std::vector<Step> steps;
    for (size_t side = 0; side < 2; ++side) {
      if (dials_[side] && Dialled(side) == 0 && MayDial(side)) {
        steps.push_back({Act::kDial, side, 0});
      }
      for (size_t i = 0; i < links_.size(); ++i) {
        const Link& link = links_[i];
        if (!link.to[side].empty() && Alive(link.ends[side])) {
          steps.push_back({Act::kDeliver, side, i});
        }
        // The other end is gone, or this one closes: kDown, once all that came is taken.
        const bool gone = !Alive(link.ends[1 - side]) && link.to[side].empty();
        if (link.ends[side] == Link::End::kClosing || (gone && Alive(link.ends[side]))) {
          steps.push_back({Act::kNotice, side, i});
        }
        if (faults && Alive(link.ends[side])) steps.push_back({Act::kLose, side, i});
      }
      if (faults && said_[side] < 3) steps.push_back({Act::kSay, side, 0});
      if (faults && ended_ < 2) steps.push_back({Act::kEnd, side, 0});
    }
    return steps;
  }

  void Do(const Step& step) {
    const size_t side = step.side;
    switch (step.act) {
      case Act::kDial: {
        Link& link = links_.emplace_back();
        link.dialler = side;
        Send(link, 1 - side,
             {.kind = Message::Kind::kHello,
              .hello = sides_[side].Hello(),
              .acks = sides_[side].channel().received()});
        break;
      }
      case Act::kDeliver: {
        const Message message = std::move(links_[step.link].to[side].front());
        links_[step.link].to[side].pop_front();
        Take(links_[step.link], side, message);
        break;
      }
      case Act::kLose:
        // What was on its way is lost in both directions.
        for (auto& way : links_[step.link].to) way.clear();
        Down(links_[step.link], side);
        break;
      case Act::kNotice:
        Down(links_[step.link], side);
        break;
      case Act::kSay:
        ++said_[side];
        Push(side);
        break;
      case Act::kEnd:
        ++ended_;
        End(side);
        break;
    }
    Flush();
    Forget();
  }

  // The two have a connection, mean the same session, and owe each other nothing.
  bool settled() const {
    for (size_t side = 0; side < 2; ++side) {
      if (sides_[side].state() != State::kLinked || sides_[side].channel().kept() > 0) return false;
      if (sides_[side].peer_number() != 0 &&
          sides_[side].peer_number() != sides_[1 - side].number()) {
        return false;
      }
    }
    return true;
  }

  // A name for the state, for the search.
  std::string Key() const {
    std::string key;
    for (size_t side = 0; side < 2; ++side) {
      const Session& one = sides_[side];
      absl::StrAppend(&key, static_cast<int>(one.state()), ",", one.number() - kFirst[side], ",",
                      one.peer_number() == 0 ? 0 : one.peer_number() - kFirst[1 - side] + 1, ",",
                      one.channel().kept(), ",", one.channel().received(), ",", said_[side], ",",
                      pushed_[side], ";");
    }
    absl::StrAppend(&key, ended_);
    for (const Link& link : links_) {
      absl::StrAppend(&key, "|", link.dialler, static_cast<int>(link.ends[0]),
                      static_cast<int>(link.ends[1]), link.answer.answered() ? "a" : "");
      for (const auto& way : link.to) {
        absl::StrAppend(&key, "/");
        for (const Message& message : way) {
          absl::StrAppend(&key, static_cast<int>(message.kind), ".", message.hello.session, ".",
                          message.hello.peer_session, ".", message.ack.session, ".",
                          static_cast<int>(message.refuse), ".", message.sent_in, ".", message.acks,
                          ".", message.frame.size());
          if (message.frame.empty()) continue;
          const auto envelope = DecodeEnvelope(std::as_bytes(std::span(message.frame)));
          absl::StrAppend(&key, ".", envelope->sequence, ".", envelope->ack);
        }
      }
    }
    return key;
  }

 private:
  static constexpr std::array<uint64_t, 2> kFirst{100, 200};
  static bool Alive(Link::End end) { return end == Link::End::kBegins || end == Link::End::kUp; }

  // As Peer does: one connection over a backend.
  size_t Dialled(size_t side) const {
    size_t count = 0;
    for (const Link& link : links_) {
      if (link.dialler == side && link.ends[side] != Link::End::kDown) ++count;
    }
    return count;
  }
  bool MayDial(size_t side) const { return sides_[side].state() != State::kEnding; }

  static void Send(Link& link, size_t to, Message message) {
    if (Alive(link.ends[to])) link.to[to].push_back(std::move(message));
  }

  void Push(size_t side) {
    // What is said names its session, as no real frame does.
    sides_[side].channel().Push(FrameType::kQuiesce,
                                QuiesceFrame{.id = sides_[side].number() << 8 | ++pushed_[side]});
  }

  void Take(Link& link, size_t side, const Message& message) {
    Session& one = sides_[side];
    switch (message.kind) {
      case Message::Kind::kHello:
        return OnHello(link, side, message);
      case Message::Kind::kAck: {
        if (link.ends[side] != Link::End::kBegins) return;
        const absl::Status status = one.OnHelloAck(link.answer, message.ack);
        if (absl::IsAborted(status)) return End(side);
        ASSERT_OK(status);
        link.ends[side] = Link::End::kUp;
        one.OnLinkUp();
        ASSERT_OK(one.channel().OnAck(message.acks));
        return;
      }
      case Message::Kind::kRefuse: {
        const auto refusal = one.OnRefuse({.reason = message.refuse}, true);
        link.ends[side] = Link::End::kClosing;
        if (refusal.forgotten) End(side);
        return;
      }
      case Message::Kind::kFrame:
        return OnFrame(side, message);
    }
  }

  void OnHello(Link& link, size_t side, const Message& message) {
    const HelloFrame& hello = message.hello;
    Session& one = sides_[side];
    Session::Meaning meaning = one.OnHello(hello);
    if (meaning == Session::Meaning::kPeerEnded) {
      End(side);
      meaning = one.OnHello(hello);
    }
    if (meaning == Session::Meaning::kTaken) {
      link.ends[side] = Link::End::kUp;
      one.OnLinkUp();
      ASSERT_OK(one.channel().OnAck(message.acks));
      return Send(link, 1 - side,
                  {.kind = Message::Kind::kAck,
                   .ack = {.target = PartyOf(side).incarnation, .session = one.number()},
                   .acks = one.channel().received()});
    }
    const RefuseReason reason =
        meaning == Session::Meaning::kForgotten ? RefuseReason::kSession : RefuseReason::kClosing;
    Send(link, 1 - side, {.kind = Message::Kind::kRefuse, .refuse = reason});
    link.ends[side] = Link::End::kClosing;
  }

  void OnFrame(size_t side, const Message& message) {
    Session& one = sides_[side];
    const auto envelope = DecodeEnvelope(std::as_bytes(std::span(message.frame)));
    ASSERT_OK(envelope);
    ASSERT_OK(one.channel().OnAck(envelope->ack));
    if (envelope->sequence == 0) return;
    // Expect that it was said in the session as both mean it now.
    EXPECT_EQ(message.sent_in, one.peer_number());
    ASSERT_OK(one.OnNumbered(*envelope, [&](const ReliableChannel::Incoming& frame) {
      const uint64_t id = Decode<QuiesceFrame>(frame.body)->id;
      EXPECT_EQ(id >> 8, one.peer_number());
      // Expect each once: they are numbered for the whole life of the sender.
      EXPECT_GT(id & 255, taken_[side]);
      taken_[side] = id & 255;
      return absl::OkStatus();
    }));
  }

  void Down(Link& link, size_t side) {
    const bool was_up = counted_up(link, side);
    link.ends[side] = Link::End::kDown;
    link.to[side].clear();
    if (was_up) sides_[side].OnLinkDown(kNow);
    RenewIfOver(side);
  }
  // A closing link counts until it is down, if it had been up.
  bool counted_up(const Link& link, size_t side) const {
    if (link.ends[side] == Link::End::kUp) return true;
    return link.ends[side] == Link::End::kClosing && was_up_[side].contains(&link - links_.data());
  }

  // As SharedSession does.
  void End(size_t side) {
    if (sides_[side].state() == State::kEnding) return;
    sides_[side].End(kNow);
    for (size_t i = 0; i < links_.size(); ++i) {
      Link& link = links_[i];
      if (!Alive(link.ends[side])) continue;
      // One that is being made by the other side is not of the session yet.
      if (link.ends[side] == Link::End::kBegins && link.dialler != side) continue;
      if (link.ends[side] == Link::End::kUp) was_up_[side].insert(static_cast<std::ptrdiff_t>(i));
      link.ends[side] = Link::End::kClosing;
      link.to[side].clear();
    }
    RenewIfOver(side);
  }
  void RenewIfOver(size_t side) {
    if (sides_[side].renewable()) sides_[side].Renew();
  }

  // Both sides send what there is over the first link that is up.
  void Flush() {
    for (size_t side = 0; side < 2; ++side) {
      Session& one = sides_[side];
      for (Link& link : links_) {
        if (link.ends[side] != Link::End::kUp || one.state() != State::kLinked) continue;
        while (const std::string* frame = one.channel().NextToSend()) {
          Send(link, 1 - side,
               {.kind = Message::Kind::kFrame, .frame = *frame, .sent_in = one.number()});
          one.channel().MessageSent();
        }
        if (one.channel().ack_due()) {
          Send(link, 1 - side,
               {.kind = Message::Kind::kFrame,
                .frame = one.channel().AckMessage(),
                .sent_in = one.number()});
        }
        break;
      }
    }
  }
  // Links that are down at both ends, from the back, so that the others keep their places.
  void Forget() {
    while (!links_.empty() && links_.back().ends[0] == Link::End::kDown &&
           links_.back().ends[1] == Link::End::kDown) {
      const auto last = static_cast<std::ptrdiff_t>(links_.size()) - 1;
      for (auto& up : was_up_) up.erase(last);
      links_.pop_back();
    }
  }

  std::array<bool, 2> dials_;
  std::array<Session, 2> sides_{Session(PartyOf(0), PartyOf(1), kFirst[0], kNow),
                                Session(PartyOf(1), PartyOf(0), kFirst[1], kNow)};
  std::vector<Link> links_{};
  std::array<std::set<std::ptrdiff_t>, 2> was_up_{};  // closing links that had been up
  std::array<int, 2> said_{};
  std::array<uint64_t, 2> pushed_{};
  std::array<uint64_t, 2> taken_{};
  int ended_ = 0;
};

// Nothing more goes wrong: whatever comes first is done first.
void ExpectSettles(Pair pair, std::mt19937_64& random, const std::string& path) {
  for (int step = 0; step < 500 && !::testing::Test::HasFailure(); ++step) {
    const std::vector<Pair::Step> steps = pair.Steps(false);
    if (steps.empty()) break;
    pair.Do(steps[random() % steps.size()]);
  }
  EXPECT_TRUE(pair.Steps(false).empty()) << path << ": it never comes to rest; " << pair.Key();
  EXPECT_TRUE(pair.settled()) << path << ": " << pair.Key();
}

constexpr std::array<std::array<bool, 2>, 3> kDials{{{true, true}, {true, false}, {false, true}}};

void Search(std::array<bool, 2> dials, int depth) {
  std::map<std::string, int> seen;  // how many steps were left
  std::mt19937_64 random(TestSeed());
  uint64_t states = 0;
  const auto visit = [&](const auto& self, const Pair& pair, const std::string& path,
                         int left) -> void {
    if (::testing::Test::HasFailure()) return;
    const auto [at, fresh] = seen.try_emplace(pair.Key(), left);
    if (!fresh && at->second >= left) return;
    at->second = left;
    if (fresh) {
      ++states;
      ExpectSettles(pair, random, path);
    }
    if (left == 0) return;
    for (const Pair::Step& step : pair.Steps(true)) {
      Pair next = pair;
      const std::string further =
          absl::StrCat(path, " ", static_cast<int>(step.act), step.side, step.link);
      next.Do(step);
      self(self, next, further, left - 1);
    }
  };
  visit(visit, Pair(dials), "", depth);
  std::printf("%llu states\n", static_cast<unsigned long long>(states));
}

TEST(SessionPairExhaustive, BothSidesDial) { Search({true, true}, kSanitized ? 6 : 8); }
TEST(SessionPairExhaustive, OneSideDials) { Search({false, true}, kSanitized ? 7 : 10); }

TEST(SessionPairRandom, LongLives) {
  for (int round = 0; round < Scaled(3000); ++round) {
    std::mt19937_64 random(TestSeed() * 100'000 + static_cast<uint64_t>(round));
    Pair pair(kDials[random() % kDials.size()]);
    std::string path = absl::StrCat("round ", round, ":");
    for (int i = 0; i < 80 && !::testing::Test::HasFailure(); ++i) {
      const std::vector<Pair::Step> steps = pair.Steps(true);
      const Pair::Step& step = steps[random() % steps.size()];
      absl::StrAppend(&path, " ", static_cast<int>(step.act), step.side, step.link);
      pair.Do(step);
    }
    ExpectSettles(pair, random, path);
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace kvxfer::testing
