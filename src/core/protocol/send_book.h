// The initiator's record of the data of one transfer: which slice goes next and into which lane,
// what goes again after a rail has failed, and which lanes OPEN and AMEND name.
//
// Each slice is cut once, numbered in the order of cutting, and posted to any rail. Where the
// target counts arrivals, the slices on one rail form a lane of the first book, and the transfer's
// last slice closes the book. When a rail fails, its lanes are taken back (Discard). Their slices
// go again once the target has released the lanes (OnDiscarded): in the first book while that is
// open; after that, as one new lane for each discarded lane, on whichever rail accepts it, named by
// AMEND. A slot is reserved for each of them (SlotPool::Reserve). Where the target does not count,
// slices are just posted again (Again).
//
// One slice is in progress at a time: after Cut or Next it is offered to rails until OnPosted.
//
// Thread-safety: none; used by the progress engine. A plain value; no I/O.

#ifndef KVXFER_CORE_PROTOCOL_SEND_BOOK_H_
#define KVXFER_CORE_PROTOCOL_SEND_BOOK_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "src/core/plan/slice_set.h"
#include "src/core/protocol/lane_book.h"
#include "src/core/protocol/slot_pool.h"
#include "src/core/protocol/wire_format.h"

namespace kvxfer {

class SendBook {
 public:
  // The first book. Any other value is the index of a lane that goes again.
  static constexpr size_t kFirst = SIZE_MAX;

  // The next slice to post, and the book that counts it.
  struct Slice {
    size_t book = kFirst;
    uint32_t number = kNoSlice;  // kNoSlice: an empty write for a lane without slices
  };

  // For a transfer that moves no bytes.
  SendBook() = default;
  // `lanes`: nullopt if the target does not count arrivals.
  explicit SendBook(std::optional<LaneBook> lanes) : first_(std::move(lanes)), cut_all_(false) {}

  bool counted() const { return first_.has_value(); }

  // --- posting ---
  // True if no slice is left; lanes may still have to be closed.
  bool posted() const { return first_posted() && NextLane() == kFirst; }
  // The caller has cut the next slice, number cut(). `last`: it is the transfer's last slice.
  Slice Cut(bool last);
  uint32_t cut() const { return cut_; }
  bool cut_all() const { return cut_all_; }
  // The next slice to send again. Requires that all slices are cut and !posted().
  Slice Next() const;

  // The rail that `slice` must take because its lane has begun there; nullopt: any rail.
  std::optional<uint32_t> BoundTo(const Slice& slice) const;
  // Opens a lane for `slice` on `rail`, with a slot for `holder`. False: no slot is available.
  bool OpenLane(const Slice& slice, uint32_t rail, SlotPool& pool, uint64_t holder);
  bool IsLast(const Slice& slice) const;
  // The immediate of `slice` on `rail`, if it carries one.
  std::optional<uint32_t> ImmediateFor(const Slice& slice, uint32_t rail) const;
  void OnPosted(const Slice& slice, uint32_t rail);

  // A rail whose lane must be closed by an empty write with this immediate.
  struct Closing {
    uint32_t rail = 0;
    uint32_t immediate = 0;
  };
  std::optional<Closing> NextToClose() const;
  void OnClosed(uint32_t rail);

  // --- failures ---
  // Slice `number` goes again. Only for transfers that the target does not count.
  void Again(uint32_t number);
  // The rail failed: takes its lanes back and returns their slots, to be named in DISCARD. No slice
  // of a lane that goes again may be in progress.
  std::vector<SlotRef> Discard(uint32_t rail);
  // The target has released a discarded lane; its slot was freed just before. True: something goes
  // again for it. InvalidArgument: no DISCARD asked for it, or its slot is not free.
  absl::StatusOr<bool> OnDiscarded(const DiscardAck& ack, SlotPool& pool);
  // The target freed a lane's slot: nothing of that lane is in flight, and it needs no DISCARD.
  void OnFreed(SlotRef slot);

  // --- reporting to the target ---
  // True while a DISCARD is unanswered.
  bool awaits_discarded() const { return !discarded_.empty(); }
  // All lanes, for OPEN. Requires posted(), nothing to close, and no unanswered DISCARD.
  std::vector<LaneFrame> TellAll();
  // The lanes that were posted and not reported yet, for AMEND.
  std::vector<LaneFrame> TellNew();
  // Returns the slots that were reserved for the first book and not needed. Requires that all of
  // the first book is posted.
  void LetSlotsGo(SlotPool& pool);
  // The transfer ends without being done: returns what was reserved for it, and the slots of all
  // lanes that may be in flight, for ABORT.
  std::vector<SlotRef> End(SlotPool& pool);

 private:
  friend struct ProtocolModelAccess;  // the tests' search compares states

  struct LaneAgain {
    Lane lane{};  // gets its slot when first offered to a rail
    SliceQueue slices{};
    std::optional<uint32_t> rail{};  // set with its first slice
    bool told = false;
  };
  struct Discarded {
    SlotRef slot{};
    SliceSet slices{};
    bool named = false;  // by OPEN or AMEND; the target then waits for a replacement
  };

  bool first_posted() const { return cut_all_ && !fresh_ && again_.Front(cut_) == kNoSlice; }
  size_t NextLane() const;

  std::optional<LaneBook> first_;
  uint32_t cut_ = 0;  // number of slices cut so far
  bool cut_all_ = true;
  bool fresh_ = false;  // the slice cut last is in progress
  bool named_ = false;
  SliceQueue again_;       // in the first book, or if the target does not count
  uint32_t reserved_ = 0;  // slots reserved for the first book
  std::vector<LaneAgain> lanes_;
  std::vector<Discarded> discarded_;  // DISCARD sent, not answered
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_PROTOCOL_SEND_BOOK_H_
