// The model's states: how they are copied and how they are compared.
#include <xxhash.h>

#include <algorithm>
#include <span>
#include <utility>

#include "tests/unit/core/protocol/protocol_model.h"
#include "tests/unit/core/protocol/protocol_model_internal.h"

namespace kvxfer {

std::unique_ptr<SlotTable> ProtocolModelAccess::Copy(const SlotTable& from) {
  auto to = std::make_unique<SlotTable>(from.max_ranges_, from.first_generation_);
  for (const SlotTable::Range& range : from.ranges_) {
    auto& copy = to->ranges_.emplace_back();
    copy.session_id = range.session_id;
    copy.next_generation = range.next_generation;
    if (range.slots == nullptr) continue;
    copy.slots = std::make_unique<SlotTable::Slot[]>(kRangeSlots);
    std::copy_n(range.slots.get(), kRangeSlots, copy.slots.get());
  }
  to->free_ = from.free_;
  to->in_use_ = from.in_use_;
  return to;
}

std::unique_ptr<TargetSession> ProtocolModelAccess::Copy(const TargetSession& from,
                                                         SlotTable* slots) {
  auto to = std::make_unique<TargetSession>(slots, from.tracker_.session_id_, from.limits_);
  to->tracker_.transfers_ = from.tracker_.transfers_;
  to->tracker_.lane_of_slot_ = from.tracker_.lane_of_slot_;
  to->tracker_.ahead_ = from.tracker_.ahead_;
  to->tracker_.held_notifications_ = from.tracker_.held_notifications_;
  to->tracker_.held_bytes_ = from.tracker_.held_bytes_;
  to->tracker_.next_order_ = from.tracker_.next_order_;
  to->tracker_.given_out_ = from.tracker_.given_out_;
  to->links_ = from.links_;
  to->fencing_ = from.fencing_;
  to->rails_failed_ = from.rails_failed_;
  to->credit_ = from.credit_;
  return to;
}

void ProtocolModelAccess::Write(const SliceSet& slices, testing::StateWriter& out) {
  uint64_t bits = 0;
  for (uint32_t slice = slices.Next(0); slice < 16; slice = slices.Next(slice + 1)) {
    bits |= uint64_t{1} << slice;
  }
  out.Word(bits);
}

void ProtocolModelAccess::Write(const Lane& lane, testing::StateWriter& out) {
  out.Byte((lane.open ? 1u : 0u) | (lane.closed ? 2u : 0u) | (lane.freed ? 4u : 0u));
  if (!lane.open) return;
  out.Slot(lane.slot);
  out.Byte(lane.immediates);
  Write(lane.slices, out);
}

void ProtocolModelAccess::Write(const LaneBook& book, testing::StateWriter& out) {
  out.Byte(book.last_posted_);
  for (const Lane& lane : book.lanes_) Write(lane, out);
}

void ProtocolModelAccess::Write(const SendBook& book, testing::StateWriter& out) {
  out.Byte((book.cut_all_ ? 1u : 0u) | (book.named_ ? 2u : 0u));
  out.Byte(book.cut_);
  out.Byte(book.reserved_);
  if (book.first_.has_value()) Write(*book.first_, out);
  SliceQueue again = book.again_;
  Write(again.slices(), out);
  out.Byte(book.lanes_.size());
  for (SendBook::LaneAgain lane : book.lanes_) {
    Write(lane.lane, out);
    Write(lane.slices.slices(), out);
    out.Byte(lane.rail.value_or(7));
    out.Byte(lane.told);
  }
  out.Byte(book.discarded_.size());
  for (const SendBook::Discarded& lane : book.discarded_) {
    out.Slot(lane.slot);
    Write(lane.slices, out);
    out.Byte(lane.named);
  }
}

SendBook::Slice ProtocolModelAccess::Next(const SendTracker::Transfer& transfer) {
  if (transfer.prepared().has_value()) return *transfer.prepared();
  const SendBook& book = transfer.book();
  return book.cut_all() ? book.Next() : SendBook::Slice{.number = book.cut()};
}

bool ProtocolModelAccess::OpensLane(const SendTracker::Transfer& transfer, uint32_t rail) {
  const SendBook& book = transfer.book();
  if (!book.counted()) return false;
  const SendBook::Slice next = Next(transfer);
  if (next.book != SendBook::kFirst) return !book.lanes_[next.book].lane.open;
  return book.first_->NeedsSlot(rail);
}

bool ProtocolModelAccess::NeedsSlot(const SendTracker::Transfer& transfer, uint32_t rail) {
  return OpensLane(transfer, rail) && Next(transfer).book == SendBook::kFirst &&
         transfer.book().reserved_ == 0;
}

SlotRef ProtocolModelAccess::SlotOf(const SendTracker::Transfer& transfer, uint32_t rail) {
  const SendBook& book = transfer.book();
  const SendBook::Slice slice = Next(transfer);
  if (slice.book != SendBook::kFirst) return book.lanes_[slice.book].lane.slot;
  return book.first_->lanes_[rail].slot;
}

bool ProtocolModelAccess::AllReported(const SendBook& book) {
  return book.posted() && !book.NextToClose().has_value() &&
         std::ranges::all_of(book.lanes_, &SendBook::LaneAgain::told);
}

std::vector<std::string> ProtocolModelAccess::Pushed(const ReliableChannel& channel,
                                                     uint64_t after) {
  std::vector<std::string> messages;
  for (const auto& kept : channel.kept_) {
    if (kept.sequence > after) messages.push_back(kept.message);
  }
  return messages;
}

void ProtocolModelAccess::Write(const SendTracker& tracker, testing::StateWriter& out) {
  out.Byte(tracker.slots_.requested());
  out.Byte(tracker.transfers_.size());
  for (const auto& [id, transfer] : tracker.transfers_) {
    out.Word(id);
    out.Byte(static_cast<uint64_t>(transfer.state()));
    out.Byte((transfer.opened() ? 1u : 0u) | (transfer.arrived() ? 2u : 0u) |
             (transfer.prepared().has_value() ? 4u : 0u) |
             (transfer.end().answer_lost() ? 8u : 0u));
    out.Byte(transfer.ops());
    for (const auto& failed : transfer.suspects_.ops_) out.Byte(failed.rail);
    if (transfer.ending()) {
      out.Byte(static_cast<uint64_t>(transfer.end().state()));
      continue;  // what it had posted does not matter any more
    }
    Write(transfer.book(), out);
  }
  Write(tracker.slots_.pool(), out);
}

void ProtocolModelAccess::Write(const SlotPool& pool, testing::StateWriter& out) {
  out.Byte(pool.free_.size());
  for (const SlotRef ref : pool.free_) out.Slot(ref);
}

// What a later reconnect can bring back, and what decides whether a frame is a duplicate.
void ProtocolModelAccess::Write(const ReliableChannel& channel, testing::StateWriter& out) {
  out.Byte(channel.kept_.size());
  out.Word(channel.last_sequence_);
  out.Word(channel.received_);
  out.Word(channel.highest_sent_);
  for (const auto& kept : channel.kept_) out.Text(kept.message.substr(kEnvelopeBytes));
  out.Byte(channel.ahead_.size());
  for (const auto& [sequence, frame] : channel.ahead_) out.Word(sequence);
}

void ProtocolModelAccess::Write(const SlotTable& table, uint32_t slots, testing::StateWriter& out) {
  for (const SlotTable::Range& range : table.ranges_) {
    for (const SlotTable::Slot& slot : std::span(range.slots.get(), slots)) {
      out.Word(slot.generation);
      out.Byte(slot.arrivals);
    }
  }
}

void ProtocolModelAccess::Write(const TargetSession& session, uint64_t first_id, size_t transfers,
                                testing::StateWriter& out) {
  Write(session.tracker_, first_id, transfers, out);
  out.Byte(session.rails_failed_);
  for (const auto& [number, link] : session.links_) {
    for (const auto state : link.rails) out.Byte(static_cast<uint8_t>(state));
    out.Byte(link.waiting.size());
    for (const uint64_t transfer : link.waiting) out.Byte(transfer - first_id);
  }
  out.Byte(session.fencing_.size());
  for (const auto& [transfer, links] : session.fencing_) out.Byte(transfer - first_id);
}

void ProtocolModelAccess::Write(const ArrivalTracker& tracker, uint64_t first_id, size_t transfers,
                                testing::StateWriter& out) {
  for (uint64_t id = first_id; id < first_id + transfers; ++id) {
    const auto it = tracker.transfers_.find(id);
    out.Byte(it == tracker.transfers_.end());
    if (it == tracker.transfers_.end()) continue;
    const ArrivalTracker::Inbound& inbound = it->second;
    out.Byte(static_cast<uint8_t>(inbound.phase));
    out.Byte(inbound.missing);
    out.Byte(inbound.lanes.size());
    for (const ArrivalTracker::Lane& lane : inbound.lanes) {
      out.Slot(lane.ref);
      out.Byte(lane.expected);
      out.Byte((lane.exact ? 1u : 0u) | (lane.draining ? 2u : 0u));
    }
  }
  out.Word(tracker.next_order_);
  for (const auto& [order, past] : tracker.ahead_) {
    out.Word(order);
    out.Word(past.last);
    out.Byte(past.deliver());
  }
}

size_t ProtocolModelAccess::Remembered(const TargetSession& session) {
  size_t waiting = 0;
  for (const auto& [number, link] : session.links_) waiting += link.waiting.size();
  const ArrivalTracker& tracker = session.tracker_;
  return tracker.transfers_.size() + tracker.lane_of_slot_.size() + tracker.ahead_.size() +
         tracker.held_notifications() + tracker.held_bytes() + session.fencing_.size() + waiting;
}

namespace testing {

World::World(const World& other)
    : config_(other.config_),
      first_id_(other.first_id_),
      next_order_(other.next_order_),
      out_(other.out_),
      truth_(other.truth_),
      rails_(other.rails_),
      now_(other.now_),
      initiator_(std::make_unique<ReliableChannel>(*other.initiator_)),
      sender_(std::make_unique<SendTracker>(*other.sender_, initiator_.get())),
      observed_(other.observed_),
      target_(other.target_),
      to_target_(other.to_target_),
      to_initiator_(other.to_initiator_),
      table_(ProtocolModelAccess::Copy(*other.table_)),
      receiver_(ProtocolModelAccess::Copy(*other.receiver_, table_.get())),
      failures_left_(other.failures_left_),
      alone_left_(other.alone_left_),
      impatience_left_(other.impatience_left_),
      cuts_left_(other.cuts_left_),
      grants_left_(other.grants_left_),
      losses_left_(other.losses_left_),
      lost_(other.lost_),
      idle_left_(other.idle_left_),
      error_(other.error_) {}

void World::WriteTransfers(StateWriter& w) const {
  for (size_t t = 0; t < out_.size(); ++t) {
    const Outbound& out = out_[t];
    const Truth& truth = truth_[t];
    w.Byte((out.aborting ? 1u : 0u) | (out.answered ? 2u : 0u) | (out.ended ? 4u : 0u) |
           (out.quarantined ? 8u : 0u) | (out.orphaned ? 16u : 0u));
    w.Byte(static_cast<uint64_t>(out.delivery));
    w.Byte((truth.opened ? 1u : 0u) | (truth.aborted ? 2u : 0u) | (truth.fencing ? 4u : 0u) |
           (truth.arrived ? 8u : 0u) | (truth.delivered ? 16u : 0u) | (truth.ended ? 32u : 0u));
    w.Word(truth.received);
    w.Byte(static_cast<uint64_t>(out.frames - truth.frames));
    w.Byte(out.posted.size());
    for (const Posted& op : out.posted) {
      w.Byte(op.rail);
      w.Byte(op.slice);
    }
    w.Byte(out.carried.size());
    for (const Carried& lane : out.carried) {
      w.Slot(lane.ref);
      w.Word(lane.slices);
    }
    w.Byte(out.discarded.size());
    for (const Discarded& lane : out.discarded) {
      w.Slot(lane.ref);
      w.Word(lane.slices);
    }
  }
}

void World::WriteRails(StateWriter& w) const {
  for (uint32_t r = 0; r < config_->rails; ++r) {
    const Rail& rail = rails_[r];
    w.Byte((rail.failed ? 1u : 0u) | (rail.suspected ? 2u : 0u) | (rail.fencing ? 4u : 0u) |
           (rail.fenced ? 8u : 0u));
    std::vector<Item> items = rail.items;
    if (!config_->rail_keeps_order) {
      std::sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
        return std::pair(EncodeImmediate(a.ref), a.slice) <
               std::pair(EncodeImmediate(b.ref), b.slice);
      });
    }
    w.Byte(items.size());
    for (const Item& item : items) {
      w.Byte(item.transfer);
      w.Byte(item.slice);
      w.Byte(item.has_immediate);
      w.Slot(item.ref);
    }
  }
}

Fingerprint World::Canonical(std::vector<uint8_t>& scratch) const {
  StateWriter w(scratch);
  WriteTransfers(w);
  WriteRails(w);
  ProtocolModelAccess::Write(*sender_, w);
  ProtocolModelAccess::Write(*table_, config_->slots, w);
  ProtocolModelAccess::Write(*receiver_, first_id_, out_.size(), w);
  // Sequence numbers and acks matter only where a connection may still be cut.
  const bool numbers = cuts_left_ > 0 || config_->control_reorders;
  for (const auto* wire : {&to_target_, &to_initiator_}) {
    w.Byte(wire->size());
    for (const std::string& message : *wire) {
      w.Byte(static_cast<uint8_t>(message[0]));
      w.Text(std::string_view(message).substr(numbers ? 8 : kEnvelopeBytes));
    }
  }
  if (numbers) {
    ProtocolModelAccess::Write(*initiator_, w);
    ProtocolModelAccess::Write(target_, w);
  }
  w.Byte(failures_left_);
  w.Byte(alone_left_);
  w.Byte(impatience_left_);
  w.Byte(cuts_left_);
  w.Byte(grants_left_);
  w.Byte(losses_left_);
  w.Byte(lost_);
  w.Byte(idle_left_);
  const XXH128_hash_t hash = XXH3_128bits(scratch.data(), scratch.size());
  return {.low = hash.low64, .high = hash.high64};
}

}  // namespace testing
}  // namespace kvxfer
