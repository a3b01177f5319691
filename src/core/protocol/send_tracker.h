// The initiator's half of the transfers of one session, from their beginning to their end: which
// slice goes next and into which lane, what the target is told, and when and how a transfer ends.
// Pure: events come in as calls, frames go out to the session's channel, and everything else that
// is to be done comes out as a list of actions. docs/protocol.md describes the session;
// tests/unit/core/protocol/protocol_model.h runs this class against the target's half and compares
// both with a plain oracle.
//
// The caller chooses rails and moves bytes. It asks for the slice of a transfer that is next
// (NextSlice, Prepare), offers it to a rail (Offer), and says that the backend has accepted it
// (OnAccepted); a slice that was refused stays the next one. Nothing here calls back: a completion
// inside of Post comes later, as an event of its own.
//
// Every transfer is in one State:
//
//   from          may become
//   kLeasing      kSending, kSent (nothing to post), ends
//   kSending      kSent, ends
//   kSent         kSending (slices go again), kConfirming, kOpened, kGone (done), ends
//   kConfirming   kSent (the lease held), ends
//   kOpened       kAmending (slices go again), kArrived, kGone (done), ends
//   kAmending     kOpened, ends
//   kArrived      kGone (done), ends
//   (ends: otherwise than done, as kAborting or kStopping)
//   kAborting     kStopping (answered), kOrphaned (the session is lost), kUnanswered
//   kStopping     kMoving, kGone
//   kOrphaned     kStopping (the peer is back: nothing of the old session lands), kMoving, kGone
//   kUnanswered   kMoving (answered, or the session is lost), kGone
//   kMoving       kGone
//
// A transfer that ends is kAborting while the target has to answer ABORT, else kStopping. The
// application is told when that is over and no op is in flight (kGone), or at the time that EndBy
// allows, quiet or not: then the transfer goes on as kUnanswered, or as kMoving if only a GPU that
// stands still has ops of it.
//
// Thread-safety: none; used by the driver.

#ifndef KVXFER_CORE_PROTOCOL_SEND_TRACKER_H_
#define KVXFER_CORE_PROTOCOL_SEND_TRACKER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "kvxfer/transfer.h"
#include "src/core/base/clock.h"
#include "src/core/protocol/reliable_channel.h"
#include "src/core/protocol/send_book.h"
#include "src/core/protocol/slot_pool.h"
#include "src/core/protocol/wire_format.h"

namespace kvxfer {

enum class SendState : uint8_t {
  kLeasing,     // the owner of a lease is asked; nothing is read before its answer
  kSending,     // slices are left to post
  kSent,        // everything is posted; ops, or the answer to a DISCARD, are awaited
  kConfirming,  // everything is read; the owner is asked whether the lease held all the time
  kOpened,      // the target knows all lanes (OPEN, AMEND); its word is awaited
  kAmending,    // it does not know all, because slices go again
  kArrived,     // the target has all of it; ops are still in flight
  kAborting,    // ABORT is sent and not answered
  kStopping,    // the target need not be asked, or has answered; ops are awaited
  kOrphaned,    // the session was lost before the answer; ops are in flight
  kUnanswered,  // the application knows the end; ABORT is not answered
  kMoving,      // the application knows the end; ops are in flight
  kGone,        // over at both ends; see Forget
};

// Whether the table above has that transition.
bool IsLegal(SendState from, SendState to);

// A read under a lease that the peer holds.
struct LeasedRead {
  std::string lease{};
  std::string contents{};
  uint64_t blocks_hash = 0;
  Duration wait{};  // for the grant of the lease
  uint32_t readers = 0;
};

// Why a transfer ends otherwise than done; decides how long its end may take.
enum class EndCause : uint8_t {
  kStopped,  // cancelled, failed or refused: the target can be asked
  kLate,     // its deadline has passed
  kLost,     // nobody is there to be asked
};

class SendTracker {
 public:
  struct Request {
    uint64_t id = 0;
    uint64_t link = 0;                          // over which its data goes
    std::optional<LaneBook> lanes{};            // nullopt: the target does not count arrivals
    bool moves = false;                         // it has bytes to move
    bool held = false;                          // it has none, and begins with Unhold
    bool ordered = false;                       // has a number in the order of notifications
    Notice notice = Notice::kNone;              // what `notification` contains
    const std::string* notification = nullptr;  // borrowed until Forget; null: none
    const LeasedRead* lease = nullptr;          // likewise
    Time posted{};
    Time deadline{};
    bool staged = false;      // its ops can be abandoned when its time is up
    bool may_hang = false;    // a GPU copies, and nothing ends such an op
    void* context = nullptr;  // the caller's, see Transfer::context
  };

  // One transfer. Its address is constant until Forget.
  class Transfer {
   public:
    explicit Transfer(Request&& request);
    uint64_t id() const { return request_.id; }
    SendState state() const { return state_; }
    uint32_t ops() const { return ops_; }        // accepted and not completed
    uint64_t slices() const { return slices_; }  // accepted so far
    uint64_t link() const { return request_.link; }
    void* context() const { return request_.context; }
    bool counted() const { return book_.counted(); }
    bool opened() const { return opened_; }
    bool arrived() const { return arrived_; }
    Time deadline() const { return request_.deadline; }
    bool sending() const { return state_ == SendState::kSending || state_ == SendState::kAmending; }
    // Slices are left to post, now or once its lease is granted.
    bool unposted() const { return sending() || state_ == SendState::kLeasing; }
    // ABORT is not answered.
    bool asks() const { return state_ == SendState::kAborting || state_ == SendState::kUnanswered; }
    bool ending() const { return state_ >= SendState::kAborting; }
    // The application knows its end.
    bool ended() const { return state_ >= SendState::kUnanswered; }
    // A slice is prepared and not accepted.
    bool prepared() const { return slice_.has_value(); }
    uint32_t slice() const { return slice_->number; }
    const SendBook& book() const { return book_; }
    // When the application is told at the latest, and why it ends. Requires ending().
    Time ends_by() const;
    const absl::Status& why() const { return end_status_; }

   private:
    friend class SendTracker;
    friend struct ProtocolModelAccess;  // the tests' search compares states

    // An op that failed as those of a failing rail do. Without OnRailDown the transfer fails.
    struct Unexplained {
      uint32_t rail = 0;
      absl::Status status{};
    };

    Request request_;
    SendState state_ = SendState::kSending;
    SendBook book_{};
    std::optional<SendBook::Slice> slice_{};  // prepared
    uint64_t order_ = 0;
    uint32_t ops_ = 0;
    uint64_t slices_ = 0;
    std::vector<Unexplained> unexplained_{};
    absl::Status refused_{};   // the target took the bytes, and not what they are part of
    bool opened_ = false;      // OPEN is sent
    bool arrived_ = false;     // the target has all of it
    bool unreported_ = false;  // the session was lost before the target's word
    TransferState end_state_ = TransferState::kActive;
    absl::Status end_status_{};
    Time give_up_{};
    Time copies_until_ = Time::max();
  };

  // What is to be done, in this order.
  struct Action {
    enum class Kind : uint8_t {
      kStop,     // drop what is prepared of it, fence it on every connection
      kAbandon,  // it is staged and ends now: say OnAbandoned
      kSend,     // slices of it go again
      kEnd,      // tell the application
      kQuiet,    // it had ended as quarantined, and nothing of it moves bytes any more
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
  };

  // `channel` carries the frames of this session; it must outlive the tracker. `grace`: how long
  // the end of a transfer that was stopped may take.
  SendTracker(ReliableChannel* channel, Duration grace) : channel_(channel), grace_(grace) {}
  // A copy for another channel, with the same transfers at other addresses. No actions may wait.
  SendTracker(const SendTracker& other, ReliableChannel* channel);
  SendTracker(const SendTracker&) = delete;
  SendTracker& operator=(const SendTracker&) = delete;

  // --- the session ---
  bool HasCredit(const std::string* notification) const;
  void OnCredit(const CreditFrame& credit);
  // Asks for slots, if none are asked for.
  void RequestSlots();
  bool has_slots() const { return slots_.granted() > 0; }
  absl::Status OnGrant(const SlotGrantFrame& grant);
  // The session is lost: what the target was not told, or has not answered, it never will be.
  // Everything ends, with `why`. The next transfers belong to a new session.
  void OnSessionLost(const absl::Status& why, Time now);
  // A session begins anew, in which the target knows nothing. Requires that all transfers end.
  void NewSession();
  // A connection is up, or the peer is dead: nothing of an earlier session can land any more.
  void OnQuiet();

  // --- one transfer ---
  // Requires HasCredit.
  Transfer& Begin(Request&& request, Time now);
  Transfer* Find(uint64_t id);
  size_t size() const { return transfers_.size(); }
  // In the order of their ids. `visit` may end transfers; none is forgotten meanwhile.
  void ForEach(absl::FunctionRef<void(Transfer&)> visit);
  void Forget(Transfer& transfer);

  // --- posting ---
  // Whether a slice may be posted now.
  bool MayPost(const Transfer& transfer) const;
  // The number of the slice that Prepare takes; kNoSlice: an empty write. Requires MayPost.
  static uint32_t NextSlice(const Transfer& transfer);
  // `last`: if it is a new slice, it is the last.
  static void Prepare(Transfer& transfer, bool last);
  // The rail that the prepared slice has to take; nullopt: any.
  static std::optional<uint32_t> BoundTo(const Transfer& transfer);
  struct Offered {
    std::optional<uint32_t> immediate{};
    bool sole = false;  // see Op::sole
  };
  // What the backend gets with the prepared slice. nullopt: there is no slot for a lane on that
  // rail; slots are asked for.
  std::optional<Offered> Offer(Transfer& transfer, uint32_t rail);
  static void OnAccepted(Transfer& transfer, uint32_t rail);
  // A lane that an empty write has to close, and its acceptance.
  static std::optional<SendBook::Closing> NextToClose(const Transfer& transfer);
  static void OnClosed(Transfer& transfer, uint32_t rail);
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
  // It takes the bytes, and not what they are part of: the transfer will fail.
  static void OnRefused(Transfer& transfer, const absl::Status& why) { transfer.refused_ = why; }
  // On the lease, before the first byte and after the last. `refused`: OK, or why it does not hold.
  absl::Status OnLease(Transfer& transfer, const absl::Status& refused, Time now);

  // --- ends ---
  // The one rule of how long an end may take.
  Time EndBy(const Transfer& transfer, EndCause cause, Time now) const;
  // Ends it as `state` unless it is ending already; then only the time can become shorter.
  void End(Transfer& transfer, TransferState state, const absl::Status& why, Time by, Time now);
  void End(Transfer& transfer, TransferState state, const absl::Status& why, EndCause cause,
           Time now) {
    End(transfer, state, why, EndBy(transfer, cause, now), now);
  }
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
  static bool NeedsOpen(const Transfer& transfer);
  void AdvanceEnd(Transfer& transfer, Time now);
  void OnNoOps(Transfer& transfer, Time now);
  void Tell(Transfer& transfer, TransferState state, const absl::Status& status, Delivery delivery,
            bool quarantined);
  static Delivery DeliveryOf(const Transfer& transfer);
  void Orphan(Transfer& transfer, Time now);
  void OnFreed(SlotRef slot);
  absl::Status OnArrived(uint64_t id);
  absl::Status OnDiscarded(const DiscardAck& ack);
  absl::Status OnAborted(const AbortAck& ack, Time now);
  void PushOpen(Transfer& transfer);
  void PushLeaseRead(const Transfer& transfer, Time now);
  void PushFetchEnd(const Transfer& transfer, uint32_t readers);
  void SendAgain(Transfer& transfer);
  void ReturnCredit(const Transfer& transfer);

  ReliableChannel* const channel_;
  const Duration grace_;
  std::map<uint64_t, Transfer> transfers_;  // by id
  uint32_t ending_ = 0;                     // of them, and not told
  SlotPool slots_;
  bool slots_requested_ = false;
  uint64_t last_order_ = 0;
  CreditFrame credit_;  // granted, totals
  CreditFrame credit_used_;
  std::vector<Action> actions_;
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_PROTOCOL_SEND_TRACKER_H_
