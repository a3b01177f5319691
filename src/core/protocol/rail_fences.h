// The lives of one connection's rails as its initiator knows them. A rail that fails is used again
// only after the target has fenced it, so that nothing of its earlier life arrives later:
//
//   kUp          data may take it
//   kSuspected   an op failed as the ops of a failing rail do. kRailDown follows within
//                kExplainWithin of the rail's last op; otherwise the op failed alone
//   kFenceDue    it is down, and the target is to be asked for a fence
//   kFencing     the target was asked
//   kReopening   the target has fenced it, or it never was up: the backend builds it
//
// The class is told what happens (kRailDown, the target's answer, time) and says what follows from
// that: what is to be asked, whose failure was no rail's, when the connection is of no use any
// more. kTransitions is the whole of it.
//
// Thread-safety: none; used by the progress engine. No I/O, no clock: the caller passes the time.

#ifndef KVXFER_CORE_PROTOCOL_RAIL_FENCES_H_
#define KVXFER_CORE_PROTOCOL_RAIL_FENCES_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/backend.h"
#include "src/core/base/clock.h"

namespace kvxfer {

class RailFences {
 public:
  // Backends keep to it (Capabilities::rails_fail_alone).
  static constexpr Duration kExplainWithin = std::chrono::milliseconds(20);

  enum class State : uint8_t { kUp, kSuspected, kFenceDue, kFencing, kReopening };
  enum class Event : uint8_t { kOpFailed, kFailedAlone, kDown, kFenceSent, kFenced, kUp };
  struct Transition {
    State from;
    Event event;
    State to;
  };
  // What is not listed here changes nothing.
  static constexpr Transition kTransitions[] = {
      {State::kUp, Event::kOpFailed, State::kSuspected},
      {State::kSuspected, Event::kFailedAlone, State::kUp},
      {State::kUp, Event::kDown, State::kFenceDue},
      {State::kSuspected, Event::kDown, State::kFenceDue},
      {State::kReopening, Event::kDown, State::kFenceDue},  // also one that never came up
      {State::kFenceDue, Event::kFenceSent, State::kFencing},
      {State::kFencing, Event::kFenced, State::kReopening},
      {State::kReopening, Event::kUp, State::kUp},
  };

  RailFences() = default;  // not connected: there are no rails yet
  // The target has `answer_within` from the loss of a rail to fence it.
  RailFences(std::span<const RailInfo> rails, Duration answer_within, Time now);

  uint32_t size() const { return static_cast<uint32_t>(rails_.size()); }
  bool up(uint32_t rail) const { return (up_ >> rail & 1) != 0; }
  // The rails that data may take, as bits.
  uint64_t up() const { return up_; }
  bool all_up() const { return up_ == all_; }
  State state(uint32_t rail) const { return rails_[rail].state; }
  // The last failure; stays when the rail is up again.
  const absl::Status& why(uint32_t rail) const { return rails_[rail].why; }
  // Since when a rail is not up.
  Time since(uint32_t rail) const { return rails_[rail].since; }
  // If no rail is up, why; else nothing.
  std::string WhyNone() const;

  // --- what happens ---
  // The endpoint has accepted an op on a rail, which must be up, or an op has completed.
  void OnAccepted(uint32_t rail) { ++rails_[rail].ops; }
  void OnCompleted(uint32_t rail, Time now);
  // The op that completed last on `rail` failed. True: the rail may be failing, and OnDown or
  // OnTime will say. False: the op failed alone.
  bool OnFailed(uint32_t rail, const absl::Status& why, Time now);
  // False: known already, or there is no such rail.
  bool OnDown(uint32_t rail, const absl::Status& why, Time now);
  // The target was asked to fence a rail. False: NextDue did not name it.
  bool OnFenceSent(uint32_t rail) { return Apply(rail, Event::kFenceSent); }
  // The target answers; the backend may rebuild the rail. InvalidArgument: it was not asked.
  absl::Status OnFenced(uint32_t rail);
  // The backend has built a rail. False: it was up, or there is no such rail. Internal: the backend
  // was not asked to build it.
  absl::StatusOr<bool> OnUp(uint32_t rail);

  // --- what follows ---
  // A rail that the target is to be asked to fence.
  std::optional<uint32_t> NextDue() const;
  struct Expired {
    absl::InlinedVector<uint32_t, 2> cleared{};  // rails whose suspected ops failed alone
    absl::Status close{};                        // not OK: close the connection with it
  };
  Expired OnTime(Time now);
  // When OnTime has something to say at the earliest.
  Time next() const;

 private:
  struct Rail {
    State state = State::kReopening;
    Time since{};              // it is not up
    Time until = Time::max();  // of kSuspected: then the op failed alone
    uint32_t ops = 0;          // accepted, not completed
    absl::Status why{};        // the last failure
  };

  // The only place that changes a state. False: the state knows no such event.
  bool Apply(uint32_t rail, Event event);
  Time Limit(const Rail& rail) const;

  absl::InlinedVector<Rail, 2> rails_;
  Duration answer_within_{};
  uint64_t all_ = 0;
  uint64_t up_ = 0;
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_PROTOCOL_RAIL_FENCES_H_
