// The connecting side's state of one rail: its lives, the pair of places that each life tries, and
// when the next one is tried. A backend does the work of each step, and reports how it went.
//
// States of a life, of which a backend uses those that it needs, in this order: kMaking (this end
// is made) → kOffered (the peer makes its end) → kConnecting (the two ends are connected) →
// kProbing (the peer has to show that data arrives) → kUp → kDraining (what was posted ends). Every
// state may go to kDown. From there a rail goes to kWaiting for its next life: by Retry if its
// attempt has failed, and by Reopen, which the agent asks for, if it was up.
//
// Pairs: a pair that is to blame is not tried again until every other pair was. Then the rail is
// exhausted, and the next attempt starts over with the best pair. A rail that was up keeps its
// pair.
//
// Back-off: the pause before an attempt doubles with each failed attempt in a row. It is short
// enough for a rail that was up that a restored path does not stay unused for long. A rail that
// comes up again and again and carries nothing is treated like one that never came up.
//
// Thread-safety: none. Pure: the time is passed in.
//
// Example:
//   RailLife life(pair, other_pair);
//   life.Attempt();
//   life.Step(RailLife::State::kOffered, Now(), std::chrono::seconds(2));
//   if (life.Due(Now())) {
//     life.End(absl::UnavailableError("no answer"));
//     life.Retry(Now(), RailLife::Blame::kPair);
//   }

#ifndef KVXFER_TRANSPORT_RAIL_LIFE_H_
#define KVXFER_TRANSPORT_RAIL_LIFE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "src/core/base/clock.h"
#include "src/transport/rail_pairs.h"

namespace kvxfer {

inline constexpr Duration kFirstRailBackoff = std::chrono::milliseconds(20);
inline constexpr Duration kMaxRailBackoff = std::chrono::milliseconds(500);
// For a rail that was never up: the two ends may have no path between them.
inline constexpr Duration kHopelessRailBackoff = std::chrono::seconds(5);

// The pause after `failures` consecutive failed attempts; 0: after the rail itself went down.
Duration RailBackoff(uint32_t failures, bool was_up);

class RailLife {
 public:
  enum class State : uint8_t {
    kWaiting,
    kMaking,
    kOffered,
    kConnecting,
    kProbing,
    kUp,
    kDraining,
    kDown
  };
  // Why an attempt failed. kPair: perhaps another pair works. kThisHost: this host's own lack.
  // kPassing: the same, but it may be over soon, so a few failures do not make the rail exhausted.
  enum class Blame : uint8_t { kPair, kThisHost, kPassing };
  // What a life has carried of its ops. kUnheard: nothing at all, of too little data to prove
  // anything, unless it happens twice in a row. kNothing: nothing, of enough data.
  enum class Carried : uint8_t { kUnknown, kUnheard, kNothing, kData };
  // The best pair that is not in `bad`; nullopt: there is none.
  using ChoosePair = std::function<std::optional<RailPair>(std::span<const RailPair> bad)>;

  // Without `choose` there is one pair.
  explicit RailLife(RailPair planned = {}, ChoosePair choose = nullptr)
      : planned_(planned), choose_(std::move(choose)), pair_(planned) {}

  State state() const { return state_; }
  bool up() const { return state_ == State::kUp; }
  bool probing() const { return state_ == State::kProbing; }
  bool draining() const { return state_ == State::kDraining; }
  bool attempting() const { return state_ > State::kWaiting && state_ < State::kUp; }
  // Counted from 1; 0: none was attempted.
  uint32_t number() const { return number_; }
  // Whether a frame about life `number` expects the state that this rail is in.
  bool Is(State state, uint32_t number) const { return state_ == state && number_ == number; }
  const RailPair& pair() const { return pair_; }
  // Pairs that were tried in vain in this round; kept if a replacement came up.
  const std::vector<RailPair>& bad_pairs() const { return bad_; }
  // It has been up, or has tried every pair.
  bool settled() const { return was_up_ || exhausted_; }
  // It has tried every pair and was never up. An endpoint of such rails is of no use.
  bool hopeless() const { return exhausted_ && !was_up_; }
  // Why it is not up; OK if nothing has failed.
  const absl::Status& why() const { return why_; }
  // " (not in use: why)"; empty if it is up.
  std::string NotInUse() const;
  // When the current step began.
  Time began() const { return began_; }
  // How long the peer last took to answer over the present pair; 0: it never did.
  Duration round_trip() const { return round_trip_; }
  // When the current step, or the pause before the next attempt, is over.
  std::optional<Time> deadline() const { return deadline_; }
  // True: the deadline has passed. It is then over.
  bool Due(Time now);

  // kWaiting → kMaking, in the next life.
  void Attempt();
  // To a later state of the attempt, which has to be over within `limit`.
  void Step(State next, Time now, std::optional<Duration> limit = std::nullopt);
  // The peer has answered the current step.
  void Answered(Time now);
  // → kUp.
  void Up();
  // kUp → kDraining.
  void Drain(absl::Status why, Time until);
  // While up or draining: its deadline is the backend's own.
  void set_deadline(std::optional<Time> deadline) { deadline_ = deadline; }
  // While draining: a better reason.
  void set_why(absl::Status why) { why_ = std::move(why); }
  // → kDown. `carried` counts if the rail was up.
  void End(absl::Status why, Carried carried = Carried::kUnknown);
  // kDown → kWaiting, after an attempt that failed. True: another pair is tried at once.
  bool Retry(Time now, Blame blame);
  // kDown → kWaiting, after the agent has finished with the last life. False: it is not down.
  bool Reopen(Time now);
  // A waiting rail is worth an attempt now.
  void Hurry(Time now);

 private:
  std::optional<RailPair> Choose() const { return choose_ ? choose_(bad_) : std::nullopt; }
  void Count(Carried carried);

  const RailPair planned_;
  const ChoosePair choose_;
  RailPair pair_;
  std::vector<RailPair> bad_;
  State state_ = State::kWaiting;
  uint32_t number_ = 0;
  bool was_up_ = false;
  bool exhausted_ = false;
  bool round_over_ = false;  // every pair is in bad_: the next attempt starts over with the best
  uint32_t failures_ = 0;    // failed attempts in a row
  uint32_t in_vain_ = 0;     // lives in a row that carried nothing of their ops
  bool unheard_ = false;     // the last life was kUnheard
  absl::Status why_;
  Time began_{};
  Duration round_trip_{};
  std::optional<Time> deadline_;
};

}  // namespace kvxfer

#endif  // KVXFER_TRANSPORT_RAIL_LIFE_H_
