// The model's initiator: what it posts, tells, gives up and sends again.
#include <algorithm>
#include <bit>

#include "tests/unit/protocol_model.h"
#include "tests/unit/protocol_model_internal.h"

namespace kvxfer::testing {

bool World::CanPost(const Outbound& out, const Attempt& attempt, uint32_t rail) const {
  if (out.spec.copied) return attempt.pending != 0 && rail == 0;
  if (rails_[rail].failed) return false;
  // A lane that goes again may have had nothing but its empty write.
  const bool empty_again = attempt.one_lane && attempt.rail == kNone;
  if (attempt.pending == 0 && !empty_again) return false;
  if (attempt.one_lane && attempt.rail != kNone && attempt.rail != rail) return false;
  return !attempt.book.NeedsSlot(rail) || attempt.reserved > 0 || pool_.available() > 0;
}

size_t World::PostingAttempt(const Outbound& out, uint32_t rail) const {
  size_t i = 0;
  while (i < out.attempts.size() && !CanPost(out, out.attempts[i], rail)) ++i;
  return i;
}

void World::OpenLane(Attempt& attempt, uint32_t rail) {
  const auto slot = attempt.reserved > 0 ? pool_.TakeReserved() : pool_.Take();
  if (attempt.reserved > 0) --attempt.reserved;
  if (!slot.has_value()) return Fail("no slot where the pool said there was one");
  Require(!InFlight(*slot), "a slot is used again while its last lane is in flight", slot->slot);
  attempt.book.OpenLane(rail, *slot);
}

void World::Post(uint8_t transfer, uint32_t rail) {
  Outbound& out = out_[transfer];
  Attempt& attempt = out.attempts[PostingAttempt(out, rail)];
  const auto slice = static_cast<uint8_t>(std::countr_zero(attempt.pending));
  const auto bit = static_cast<Slices>(attempt.pending & -attempt.pending);
  attempt.pending = static_cast<Slices>(attempt.pending & ~bit);
  if (out.spec.copied) {
    truth_[transfer].landed |= bit;
    return;
  }
  if (attempt.one_lane) attempt.rail = static_cast<uint8_t>(rail);
  if (attempt.book.NeedsSlot(rail)) OpenLane(attempt, rail);
  attempt.carried[rail] |= bit;
  PutOnRail(transfer, attempt, rail, bit == 0 ? kNone : slice, attempt.pending == 0);
}

void World::PutOnRail(uint8_t transfer, Attempt& attempt, uint32_t rail, uint8_t slice, bool last) {
  const auto immediate = attempt.book.ImmediateFor(rail, last);
  // An op without an immediate still belongs to its lane's slot.
  const SlotRef ref = DecodeImmediate(*attempt.book.ImmediateFor(rail, true));
  rails_[rail].items.push_back({transfer, slice, immediate.has_value(), ref});
  attempt.book.OnPosted(rail, last);
}

void World::Close(uint8_t transfer) {
  for (Attempt& attempt : out_[transfer].attempts) {
    const auto rail = attempt.book.NextToClose();
    if (rail.has_value()) return PutOnRail(transfer, attempt, *rail, kNone, true);
  }
}

void World::Unreserve(Attempt& attempt) {
  for (; attempt.reserved > 0; --attempt.reserved) pool_.Unreserve();
}

template <typename Frame>
void World::SendToTarget(Outbound& out, FrameType type, const Frame& frame) {
  ++out.frames;
  initiator_.Push(type, Encode(frame));
}

// OPEN once everything is posted and no rail's answer is awaited; AMEND for each lane that goes
// again, once it is posted.
void World::TellLanes(Outbound& out) {
  if (out.state != State::kSending) return;
  const auto complete = [](const Attempt& attempt) {
    const bool posted = attempt.pending == 0 && (!attempt.one_lane || attempt.rail != kNone);
    return posted && !attempt.book.NextToClose().has_value();
  };
  for (Attempt& attempt : out.attempts) {
    if (complete(attempt)) Unreserve(attempt);
  }
  if (!out.opened) {
    if (!out.discarded.empty()) return;
    if (!std::all_of(out.attempts.begin(), out.attempts.end(), complete)) return;
    OpenFrame open{.transfer = out.id,
                   .order = out.order,
                   .has_notification = out.spec.notification,
                   .lanes = {},
                   .notification = out.spec.notification ? Payload(out.id) : ""};
    for (Attempt& attempt : out.attempts) {
      attempt.told = true;
      for (const LaneFrame lane : attempt.book.Lanes()) open.lanes.push_back(lane);
    }
    out.opened = true;
    return SendToTarget(out, FrameType::kOpen, open);
  }
  for (Attempt& attempt : out.attempts) {
    if (attempt.told || !complete(attempt)) continue;
    attempt.told = true;
    SendToTarget(out, FrameType::kAmend,
                 AmendFrame{.transfer = out.id, .lanes = attempt.book.Lanes()});
  }
}

void World::Abort(uint8_t transfer) {
  Outbound& out = out_[transfer];
  AbortFrame abort{.transfer = out.id, .order = out.order, .opened = out.opened, .slots = {}};
  for (Attempt& attempt : out.attempts) {
    attempt.pending = 0;
    Unreserve(attempt);
    for (const SlotRef ref : attempt.book.Slots()) abort.slots.push_back(ref);
  }
  out.state = State::kAborting;
  SendToTarget(out, FrameType::kAbort, abort);
}

void World::FailRail(uint8_t rail_index) {
  Rail& rail = rails_[rail_index];
  rail.failed = true;
  ++rail.epoch;
  --failures_left_;
  for (Outbound& out : out_) {
    if (out.state != State::kSending) continue;
    DiscardFrame frame{.transfer = out.id, .slots = {}};
    for (size_t i = 0; i < out.attempts.size();) {
      Attempt& attempt = out.attempts[i];
      const auto discarded = attempt.book.Discard(rail_index);
      if (!discarded.has_value()) {
        ++i;
        continue;
      }
      Slices again = std::exchange(attempt.carried[rail_index], Slices{0});
      if (attempt.one_lane) again = static_cast<Slices>(again | attempt.pending);
      frame.slots.push_back(discarded->slot);
      out.discarded.push_back({.ref = discarded->slot,
                               .slices = again,
                               .named = attempt.told || attempt.one_lane,
                               .rail = rail_index,
                               .epoch = rail.epoch});
      if (attempt.one_lane) {
        Unreserve(attempt);
        out.attempts.erase(out.attempts.begin() + static_cast<ptrdiff_t>(i));
      } else {
        ++i;
      }
    }
    if (!frame.slots.empty()) SendToTarget(out, FrameType::kDiscard, frame);
  }
}

void World::AtInitiator(const ReliableChannel::Incoming& frame) {
  if (frame.type == FrameType::kSlotGrant) {
    const auto grant = Decode<SlotGrantFrame>(frame.body);
    if (Check(grant.status())) Check(pool_.AddGrant(*grant));
    return;
  }
  const auto released = Decode<ReleasedFrame>(frame.body);
  if (Check(released.status())) OnReleased(*released);
}

void World::OnReleased(const ReleasedFrame& frame) {
  for (const SlotRef ref : frame.freed) {
    if (!Check(pool_.Free(ref))) return;
    for (Outbound& out : out_) {
      for (Attempt& attempt : out.attempts) attempt.book.OnFreed(ref);
    }
  }
  for (const uint64_t id : frame.arrived) {
    Outbound& out = out_[IndexOf(id)];
    Require(out.opened && !out.arrived, "arrived twice or before OPEN", id);
    out.arrived = true;
    // An abort that is on its way is still to be answered.
    if (out.state == State::kSending) out.state = State::kDone;
    out.attempts.clear();
  }
  for (const DiscardAck& ack : frame.discarded) OnDiscardAck(ack);
  for (const AbortAck& ack : frame.aborted) OnAbortAck(ack);
}

void World::OnDiscardAck(const DiscardAck& ack) {
  Outbound& out = out_[IndexOf(ack.transfer)];
  const auto it = std::find_if(out.discarded.begin(), out.discarded.end(),
                               [&](const Discarded& lane) { return lane.ref == ack.ref; });
  if (it == out.discarded.end()) return Fail("a DISCARD is answered that was not sent");
  const Discarded lane = *it;
  out.discarded.erase(it);
  // A complete lane was freed before and its slot may be in use again.
  Require(ack.complete || !InFlight(ack.ref), "DISCARD is answered while its lane is in flight",
          out.id);
  const Slices landed = truth_[IndexOf(out.id)].landed;
  Require(!ack.complete || (lane.slices & ~landed) == 0, "complete, but not all landed", out.id);
  if (out.state != State::kSending || ack.complete) return;
  if (lane.slices == 0 && !lane.named) return;  // no OPEN waits for it
  Require(pool_.Reserve(), "DISCARD is answered, its slot is not free", out.id);
  if (out.attempts[0].pending != 0) {  // its last slice is not posted
    out.attempts[0].pending = static_cast<Slices>(out.attempts[0].pending | lane.slices);
    ++out.attempts[0].reserved;
    return;
  }
  Attempt& again =
      out.attempts.emplace_back(Attempt{.book{config_->rails, config_->rail_keeps_order}});
  again.pending = lane.slices;
  again.one_lane = true;
  again.reserved = 1;
}

void World::OnAbortAck(const AbortAck& ack) {
  const uint8_t index = IndexOf(ack.transfer);
  Outbound& out = out_[index];
  Require(out.state == State::kAborting, "an ABORT is answered that was not sent", out.id);
  Require(ack.delivered == truth_[index].arrived, "an ABORT is answered with a lie", out.id);
  Require(!InFlight(index), "an ABORT is answered while data is in flight", out.id);
  out.state = ack.delivered ? State::kDone : State::kFailed;
  out.attempts.clear();
  out.discarded.clear();
}

}  // namespace kvxfer::testing
