// The initiator's side of one transfer's data: which slice goes next and into which lane, what goes
// again once a rail has failed, and what the target is told of it.
//
// A slice is cut once and posted to any rail; it is numbered in the order of cutting. Where the
// target counts, the slices of one rail are a lane of the first book, and its last slice closes it.
// A rail that fails takes its lanes back (Discard). What they carried goes again once the target
// has let go of them (OnDiscarded): in the first book while that is open; after that as one new
// lane for each discarded one, which AMEND tells of, on whichever rail takes it. A slot is kept
// back for it (SlotPool::Reserve). Where nobody counts, slices only go again (Again).
//
// One slice is under way at a time: after Cut, or Next, it is offered to rails until OnPosted.
//
// Thread-safety: none; owned by the progress engine. A plain value; no I/O.

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
  // The first book; any other is one lane that goes again.
  static constexpr size_t kFirst = SIZE_MAX;

  // What is posted next, and where it is counted.
  struct Slice {
    size_t book = kFirst;
    uint32_t number = kNoSlice;  // kNoSlice: an empty write stands for a lane that carries nothing
  };

  // Of a transfer that moves no bytes.
  SendBook() = default;
  // `lanes`: nothing where the target does not count.
  explicit SendBook(std::optional<LaneBook> lanes) : first_(std::move(lanes)), cut_all_(false) {}

  bool counted() const { return first_.has_value(); }

  // --- what is to be posted ---
  // Nothing is left; lanes may still have to be closed.
  bool posted() const { return first_posted() && NextLane() == kFirst; }
  // The next slice, which has number cut(), has been cut; `last`: it is the transfer's last one.
  Slice Cut(bool last);
  uint32_t cut() const { return cut_; }
  bool cut_all() const { return cut_all_; }
  // The next one that goes again; only where all are cut and not posted().
  Slice Next() const;

  // The rail that `slice` has to take, for its lane has begun there; nothing: any.
  std::optional<uint32_t> BoundTo(const Slice& slice) const;
  // Gives it a lane on `rail`, with a slot for `holder`. False: there is no slot.
  bool OpenLane(const Slice& slice, uint32_t rail, SlotPool& pool, uint64_t holder);
  bool IsLast(const Slice& slice) const;
  // The immediate that it carries on `rail`, if any.
  std::optional<uint32_t> ImmediateFor(const Slice& slice, uint32_t rail) const;
  void OnPosted(const Slice& slice, uint32_t rail);

  // A rail whose lane must be closed by an empty write with that immediate, or nothing.
  struct Closing {
    uint32_t rail = 0;
    uint32_t immediate = 0;
  };
  std::optional<Closing> NextToClose() const;
  void OnClosed(uint32_t rail);

  // --- what failed ---
  // Slice `number` goes again, of a transfer that nobody counts.
  void Again(uint32_t number);
  // The rail failed: takes its lanes back. Their slots, to be named in DISCARD. A slice of a lane
  // that goes again must not be under way.
  std::vector<SlotRef> Discard(uint32_t rail);
  // The target has let go of a lane; its slot was freed just before. True: something goes again
  // for it. InvalidArgument: it was not asked, or its slot is not free.
  absl::StatusOr<bool> OnDiscarded(const DiscardAck& ack, SlotPool& pool);
  // The target freed the slot of a lane: nothing of that lane is on the way, it needs no DISCARD.
  void OnFreed(SlotRef slot);

  // --- what is told ---
  // A discarded lane that the target has not let go of.
  bool awaits_discarded() const { return !discarded_.empty(); }
  // Every lane, for OPEN; once posted(), nothing is to be closed and nothing discarded awaited.
  std::vector<LaneFrame> TellAll();
  // Those that were posted and not told yet, for AMEND.
  std::vector<LaneFrame> TellNew();
  // Slots kept back for the first book that it did not need; once first_posted().
  void LetSlotsGo(SlotPool& pool);
  // The transfer ends otherwise than done: gives back what was kept for it. The slots of every
  // lane that may be on its way, for ABORT.
  std::vector<SlotRef> End(SlotPool& pool);

 private:
  friend struct ProtocolModelAccess;  // the tests' search compares states

  struct LaneAgain {
    Lane lane{};  // has its slot from when it was first offered to a rail
    SliceQueue slices{};
    std::optional<uint32_t> rail{};  // from its first slice on
    bool told = false;
  };
  struct Discarded {
    SlotRef slot{};
    SliceSet slices{};
    bool named = false;  // by OPEN or AMEND, which wait for a lane instead
  };

  bool first_posted() const { return cut_all_ && !fresh_ && again_.Front(cut_) == kNoSlice; }
  size_t NextLane() const;

  std::optional<LaneBook> first_;
  uint32_t cut_ = 0;  // slices so far
  bool cut_all_ = true;
  bool fresh_ = false;  // the last one that was cut is under way
  bool told_first_ = false;
  SliceQueue again_;       // in the first book, or where nobody counts
  uint32_t reserved_ = 0;  // slots kept back for the first book
  std::vector<LaneAgain> lanes_;
  std::vector<Discarded> discarded_;  // DISCARD sent, not answered
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_PROTOCOL_SEND_BOOK_H_
