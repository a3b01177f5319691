// One transfer of a session at its initiator: what was asked, its state, which slice goes next and
// into which lane, how many ops are in flight, and how it ends. It keeps what it was told and
// decides nothing: SendTracker moves it from state to state.
//
// Thread-safety: none; used by the driver.

#ifndef KVXFER_CORE_PROTOCOL_SEND_TRANSFER_H_
#define KVXFER_CORE_PROTOCOL_SEND_TRANSFER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "kvxfer/transfer.h"
#include "src/core/base/clock.h"
#include "src/core/protocol/lane_book.h"
#include "src/core/protocol/send_book.h"
#include "src/core/protocol/send_end.h"
#include "src/core/protocol/send_state.h"
#include "src/core/protocol/slot_supply.h"
#include "src/core/protocol/suspect_ops.h"
#include "src/core/protocol/wire_format.h"

namespace kvxfer {

// A read under a lease that the peer holds.
struct LeasedRead {
  std::string lease{};
  std::string contents{};
  uint64_t blocks_hash = 0;
  Duration wait{};  // for the grant of the lease
  uint32_t readers = 0;
};

class SendTransfer {
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
    bool staged = false;    // its ops can be abandoned when its time is up
    bool may_hang = false;  // a GPU copies, and nothing ends such an op
    // It reads what the target sends out of a buffer that it has lent, and that is used again.
    bool from_lent = false;
    void* context = nullptr;  // the caller's
  };

  // `order`: its number in the order of notifications; 0: none.
  SendTransfer(Request&& request, uint64_t order);

  const Request& request() const { return request_; }
  uint64_t id() const { return request_.id; }
  uint64_t order() const { return order_; }
  SendState state() const { return state_; }
  bool sending() const { return state_ == SendState::kSending || state_ == SendState::kAmending; }
  // Slices are left to post, now or once its lease is granted.
  bool unposted() const { return sending() || state_ == SendState::kLeasing; }
  // ABORT is not answered.
  bool asks() const { return state_ == SendState::kAborting || state_ == SendState::kUnanswered; }
  bool ending() const { return state_ >= SendState::kAborting; }
  // The application knows its end.
  bool ended() const { return state_ >= SendState::kUnanswered; }
  bool opened() const { return opened_; }    // OPEN is sent
  bool arrived() const { return arrived_; }  // the target has all of it

  // --- posting ---
  bool counted() const { return book_.counted(); }
  uint32_t ops() const { return ops_; }        // accepted and not completed
  uint64_t slices() const { return slices_; }  // accepted so far
  // Whether a slice may be posted now.
  bool MayPost() const { return sending() && suspects_.empty() && !book_.posted(); }
  // The number of the slice that Prepare takes; kNoSlice: an empty write. Requires MayPost.
  uint32_t NextSlice() const { return book_.cut_all() ? book_.Next().number : book_.cut(); }
  // `last`: if it is a new slice, it is the last.
  void Prepare(bool last) { slice_ = book_.cut_all() ? book_.Next() : book_.Cut(last); }
  // A slice is prepared and not accepted.
  const std::optional<SendBook::Slice>& prepared() const { return slice_; }
  // It goes nowhere: its lane was taken back, or the transfer ends.
  void DropPrepared() { slice_.reset(); }
  // The rail that the prepared slice has to take; nullopt: any.
  std::optional<uint32_t> BoundTo() const { return book_.BoundTo(*slice_); }
  struct Offered {
    std::optional<uint32_t> immediate{};
    bool sole = false;  // see Op::sole
  };
  // What the backend gets with the prepared slice. nullopt: there is no slot for a lane on that
  // rail; slots are asked for.
  std::optional<Offered> Offer(uint32_t rail, SlotSupply& slots);
  void OnAccepted(uint32_t rail);
  // A lane that an empty write has to close, and its acceptance.
  std::optional<SendBook::Closing> NextToClose() const;
  void OnClosed(uint32_t rail);
  // Nothing is left to post, and no lane to close.
  bool AllPosted() const;

  // --- what became of it, as the tracker says ---
  // Requires IsLegal.
  void Become(SendState to);
  void Unhold() { request_.held = false; }
  void LoseLink() { request_.link = 0; }
  // The lease held all the time.
  void OnLeaseHeld() { request_.lease = nullptr; }
  void OnOpened() { opened_ = true; }
  void OnArrived() { arrived_ = true; }
  // The target takes the bytes, and not what they are part of: the transfer will fail.
  void OnRefused(const absl::Status& why) { refused_ = why; }
  const absl::Status& refused() const { return refused_; }
  void OpsOver(uint32_t ops) { ops_ -= ops; }
  SendBook& book() { return book_; }
  const SendBook& book() const { return book_; }
  SuspectOps& suspects() { return suspects_; }
  // How it ends, if it ends otherwise than done.
  SendEnd& end() { return end_; }
  const SendEnd& end() const { return end_; }

 private:
  friend struct ProtocolModelAccess;  // the tests' search compares states

  Request request_;
  uint64_t order_;
  SendState state_ = SendState::kSending;
  SendBook book_{};
  std::optional<SendBook::Slice> slice_{};  // prepared
  uint32_t ops_ = 0;
  uint64_t slices_ = 0;
  SuspectOps suspects_{};
  absl::Status refused_{};
  bool opened_ = false;
  bool arrived_ = false;
  SendEnd end_{};
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_PROTOCOL_SEND_TRANSFER_H_
