// The end of one transfer that ends otherwise than done: as what, why, and until when it has to be
// over.
//
// Thread-safety: none. A plain value; time is a parameter.

#ifndef KVXFER_CORE_PROTOCOL_SEND_END_H_
#define KVXFER_CORE_PROTOCOL_SEND_END_H_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "kvxfer/transfer.h"
#include "src/core/base/clock.h"

namespace kvxfer {

// Why a transfer ends otherwise than done; decides how long its end may take.
enum class EndCause : uint8_t {
  kStopped,  // cancelled, failed or refused: the target can be asked
  kLate,     // its deadline has passed
  kLost,     // nobody is there to be asked
};

// The one rule of how long an end may take. `grace`: for a transfer that was stopped.
Time EndBy(EndCause cause, Time posted, Time deadline, Duration grace, Time now);

// How much longer than its end a transfer waits for ops that a NIC or the kernel holds. Backends
// take them back from a rail that does not move: within 0.5 s (verbs), 80 ms (libfabric). What a
// device does not give back after this long is not waited for.
inline constexpr Duration kOpsReturnWithin = std::chrono::seconds(5);

class SendEnd {
 public:
  void Begin(TransferState state, const absl::Status& why, Time by) {
    state_ = state;
    why_ = why;
    by_ = by;
  }
  // It has to end once more: the time can only become shorter.
  void Shorten(Time by) { by_ = std::min(by_, by); }
  // Ops of it are in flight, which may read its source: they are waited for until then.
  void WaitForOps(Time until) { ops_until_ = std::min(ops_until_, until); }
  // The target had delivered it before it learned of the end. `refused`: OK, or why the target did
  // not take what the bytes are part of.
  void BecomeDelivered(const absl::Status& refused) {
    state_ = refused.ok() ? TransferState::kDone : TransferState::kFailed;
    why_ = refused;
  }
  // The session was lost before the target's answer.
  void LoseAnswer() { answer_lost_ = true; }

  TransferState state() const { return state_; }
  const absl::Status& why() const { return why_; }
  bool answer_lost() const { return answer_lost_; }
  bool late(Time now) const { return now >= by_; }
  bool ops_in_time(Time now) const { return now < ops_until_; }
  // When the application is told at the latest. `ops`: of the transfer, that are in flight.
  Time by(uint32_t ops) const {
    const bool waits = ops > 0 && ops_until_ != Time::max();
    return waits ? ops_until_ : by_;
  }

 private:
  TransferState state_ = TransferState::kActive;
  absl::Status why_{};
  Time by_{};
  Time ops_until_ = Time::max();
  bool answer_lost_ = false;
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_PROTOCOL_SEND_END_H_
