// The initiator's half of the transfers of one session, from their beginning to their end: which
// slice goes next and into which lane, what the target is told, and when and how a transfer ends.
// Pure: events come in as calls, frames go out to the session's channel, and everything else that
// is to be done comes out as a list of actions. docs/protocol.md describes the session;
// tests/unit/core/protocol/protocol_model.h runs this class against the target's half and compares
// both with a plain oracle.
//
// The caller chooses rails and moves bytes. It asks for the slice of a transfer that is next
// (SendTransfer::NextSlice, Prepare), offers it to a rail (Offer), and says that the backend has
// accepted it (OnAccepted); a slice that was refused stays the next one. Nothing here calls back: a
// completion inside of Post comes later, as an event of its own.
//
// send_state.h has the states of a transfer, what may follow each of them, and how one ends.
//
// Thread-safety: none; used by the driver.

#ifndef KVXFER_CORE_PROTOCOL_SEND_TRACKER_H_
#define KVXFER_CORE_PROTOCOL_SEND_TRACKER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "kvxfer/transfer.h"
#include "src/core/base/clock.h"
#include "src/core/base/keeping_allocator.h"
#include "src/core/protocol/reliable_channel.h"
#include "src/core/protocol/send_credit.h"
#include "src/core/protocol/send_end.h"
#include "src/core/protocol/send_state.h"
#include "src/core/protocol/send_transfer.h"
#include "src/core/protocol/slot_supply.h"
#include "src/core/protocol/wire_format.h"

namespace kvxfer {

class SendTracker {
 public:
  // The address of a transfer is constant until Forget.
  using Transfer = SendTransfer;
  using Request = SendTransfer::Request;

  // What is to be done, in this order.
  struct Action {
    enum class Kind : uint8_t {
      kStop,     // drop what is prepared of it, fence it on every connection
      kAbandon,  // it is staged and ends now: say OnAbandoned
      kSend,     // slices of it go again
      kEnd,      // tell the application
      kQuiet,    // it had ended with bytes on their way, and nothing of it moves any more
      kOrphan,   // its session is lost: it is quiet when OnQuiet is due
      kForget,   // call Forget
    };
    Kind kind = Kind::kStop;
    Transfer* transfer = nullptr;
    // Of kEnd.
    TransferState state = TransferState::kActive;
    absl::Status status{};
    Delivery delivery = Delivery::kNone;
    bool quarantined = false;
    bool lent_in_use = false;  // the target may still send out of what it has lent: kQuiet follows
  };

  // `channel` carries the frames of this session; it must outlive the tracker. `grace`: how long
  // the end of a transfer that was stopped may take.
  SendTracker(ReliableChannel* channel, Duration grace)
      : channel_(channel), grace_(grace), slots_(channel) {}
  // A copy for another channel, with the same transfers at other addresses. No actions may wait.
  SendTracker(const SendTracker& other, ReliableChannel* channel);
  SendTracker(const SendTracker&) = delete;

  // --- the session ---
  SendCredit& credit() { return credit_; }
  const SendCredit& credit() const { return credit_; }
  // Whether a transfer with `notification` (null: with none) may begin: the target gives credit for
  // it, and not too much is on its way. What is there delays the answers to what the target
  // initiates.
  bool MayNotify(const std::string* notification) const {
    return notification == nullptr ||
           (credit_.Has(notification) && channel_->kept_bytes() < kMaxKeptBytes);
  }
  // Of frames that the target has not acknowledged, while another notification is sent.
  static constexpr size_t kMaxKeptBytes = 1024 * 1024;
  SlotSupply& slots() { return slots_; }
  // The session is lost: what the target was not told, or has not answered, it never will be.
  // Everything ends, with `why`. The next transfers belong to a new session.
  void OnSessionLost(const absl::Status& why, Time now);
  // A session begins anew, in which the target knows nothing. Requires that all transfers end.
  void NewSession();
  // A connection is up, or the peer is dead: nothing of an earlier session can land any more.
  void OnQuiet();

  // --- one transfer ---
  // Requires credit for its notification.
  Transfer& Begin(Request&& request, Time now);
  Transfer* Find(uint64_t id);
  size_t size() const { return transfers_.size(); }
  // In the order of their ids. `visit` may end transfers; none is forgotten meanwhile.
  void ForEach(absl::FunctionRef<void(Transfer&)> visit);
  void Forget(Transfer& transfer);

  // --- posting ---
  // If nothing is left to post, the target is told. True: it was so.
  bool FinishPosting(Transfer& transfer);
  // The application does not hold it back any more; it has no bytes.
  void Unhold(Transfer& transfer);

  // --- ops and rails ---
  void OnCompleted(Transfer& transfer, Time now);
  // The op failed alone.
  void OnFailed(Transfer& transfer, const absl::Status& why, Time now);
  // An op with `slice` failed as those of a failing rail do, which OnRailDown or OnRailCleared
  // explains.
  void OnSuspect(Transfer& transfer, uint32_t rail, uint32_t slice, const absl::Status& why,
                 Time now);
  // Staged ops that are over for the transfer, although they are not.
  void OnAbandoned(Transfer& transfer, uint32_t ops, Time now);
  void OnRailDown(uint64_t link, uint32_t rail);
  // The rail did not fail, so its ops failed alone.
  void OnRailCleared(uint64_t link, uint32_t rail, Time now);
  // Nothing that was posted on the rail before is on its way.
  void OnRailFenced(uint64_t link, uint32_t rail);
  // `lost` is called first, for each transfer that had the link.
  void OnLinkLost(
      uint64_t link, const absl::Status& why, Time now,
      absl::FunctionRef<void(Transfer&)> lost = [](Transfer&) {});

  // --- the target's word; an error: it broke the protocol ---
  absl::Status OnReleased(const ReleasedFrame& frame, Time now);
  // On the lease, before the first byte and after the last. `refused`: OK, or why it does not hold.
  absl::Status OnLease(Transfer& transfer, const absl::Status& refused, Time now);

  // --- ends ---
  // Ends it as `state` unless it is ending already; then only the time can become shorter.
  void End(Transfer& transfer, TransferState state, const absl::Status& why, Time by, Time now);
  // By the time that EndBy allows.
  void End(Transfer& transfer, TransferState state, const absl::Status& why, EndCause cause,
           Time now);
  // Tells ends whose time has come.
  void OnTime(Time now);
  Time NextTimer() const;

  bool has_actions() const { return !actions_.empty(); }
  // To be carried out before the next event. Exchanges the list for `done`, which it empties: so
  // steady state allocates nothing.
  void TakeActions(std::vector<Action>& done);

 private:
  friend struct ProtocolModelAccess;

  void Set(Transfer& transfer, SendState to);
  void Act(Action::Kind kind, Transfer& transfer);
  void Advance(Transfer& transfer);
  bool LeaseHeld(Transfer& transfer);
  void TellLanes(Transfer& transfer);
  void SendAgain(Transfer& transfer);
  void AdvanceEnd(Transfer& transfer, Time now);
  void Tell(Transfer& transfer, TransferState state, const absl::Status& status, Delivery delivery,
            bool quarantined, bool lent_in_use = false);
  void Orphan(Transfer& transfer, Time now);
  absl::Status OnArrived(uint64_t id);
  absl::Status OnDiscarded(const DiscardAck& ack);
  absl::Status OnAborted(const AbortAck& ack, Time now);

  ReliableChannel* const channel_;
  const Duration grace_;
  // By id.
  std::map<uint64_t, Transfer, std::less<>, KeepingAllocator<std::pair<const uint64_t, Transfer>>>
      transfers_;
  uint32_t ending_ = 0;  // of them, and not told
  SlotSupply slots_;
  uint64_t last_order_ = 0;
  SendCredit credit_;
  std::vector<Action> actions_;
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_PROTOCOL_SEND_TRACKER_H_
