// The model's initiator: what it posts, tells, gives up and sends again.
#include <algorithm>

#include "tests/unit/core/protocol/protocol_model.h"
#include "tests/unit/core/protocol/protocol_model_internal.h"

namespace kvxfer::testing {

bool World::CanPost(const Outbound& out, uint32_t rail) const {
  if (out.book.posted()) return false;
  if (out.spec.copied) return rail == 0;
  if (rails_[rail].failed) return false;
  const auto bound = out.book.BoundTo(ProtocolModelAccess::Next(out.book));
  if (bound.has_value() && *bound != rail) return false;
  return !ProtocolModelAccess::NeedsSlot(out.book, rail) || pool_.available() > 0;
}

bool World::CanOpenIdle(const Outbound& out, uint32_t rail) const {
  return idle_left_ > 0 && ProtocolModelAccess::OpensLane(out.book, rail);
}

void World::OpenLane(Outbound& out, const SendBook::Slice& slice, uint32_t rail) {
  const bool opens = ProtocolModelAccess::OpensLane(out.book, rail);
  if (!out.book.OpenLane(slice, rail, pool_, out.id)) {
    return Fail("no slot where the pool said there was one");
  }
  if (!opens) return;
  const SlotRef slot = ProtocolModelAccess::SlotOf(out.book, slice, rail);
  Require(!InFlight(slot), "a slot is used again while its last lane is in flight", slot.slot);
  out.carried.push_back({.ref = slot});
}

void World::Post(uint8_t transfer, uint32_t rail) {
  Outbound& out = out_[transfer];
  SendBook& book = out.book;
  SendBook::Slice slice = ProtocolModelAccess::Next(book);
  if (book.counted()) OpenLane(out, slice, rail);
  if (!book.cut_all()) slice = book.Cut(book.cut() + 1u == out.spec.slices);
  const auto bit = static_cast<Slices>(slice.number == kNoSlice ? 0 : 1u << slice.number);
  if (out.spec.copied) {
    book.OnPosted(slice, rail);
    truth_[transfer].received |= bit;
    return;
  }
  // An op without an immediate still belongs to its lane's slot.
  const SlotRef ref = ProtocolModelAccess::SlotOf(book, slice, rail);
  const auto immediate = book.ImmediateFor(slice, rail);
  Require(!immediate.has_value() || *immediate == EncodeImmediate(ref), "another's immediate",
          out.id);
  book.OnPosted(slice, rail);
  for (Piggybacked& lane : out.carried) {
    if (lane.ref == ref) lane.slices = static_cast<Slices>(lane.slices | bit);
  }
  PutOnRail(transfer, rail, bit == 0 ? kNone : static_cast<uint8_t>(slice.number), ref,
            immediate.has_value());
}

void World::PutOnRail(uint8_t transfer, uint32_t rail, uint8_t slice, SlotRef ref,
                      bool has_immediate) {
  rails_[rail].items.push_back({transfer, slice, has_immediate, ref});
}

void World::Close(uint8_t transfer) {
  const auto closing = out_[transfer].book.NextToClose();
  PutOnRail(transfer, closing->rail, kNone, DecodeImmediate(closing->immediate), true);
  out_[transfer].book.OnClosed(closing->rail);
}

template <typename Frame>
void World::SendToTarget(Outbound& out, FrameType type, const Frame& frame) {
  ++out.frames;
  initiator_.Push(type, Encode(frame));
}

// OPEN once everything is posted and no rail's answer is awaited; AMEND for lanes that go again,
// once all are posted.
void World::TellLanes(Outbound& out) {
  if (out.state != State::kSending) return;
  if (!out.book.posted() || out.book.NextToClose().has_value()) return;
  out.book.LetSlotsGo(pool_);
  if (out.opened) {
    const AmendFrame amend{.transfer = out.id, .lanes = out.book.TellNew()};
    if (!amend.lanes.empty()) SendToTarget(out, FrameType::kAmend, amend);
    return;
  }
  if (out.book.awaits_discarded()) return;
  out.opened = true;
  SendToTarget(out, FrameType::kOpen,
               OpenFrame{.transfer = out.id,
                         .order = out.order,
                         .notice = out.spec.notification ? Notice::kNotification : Notice::kNone,
                         .lanes = out.book.TellAll(),
                         .notification = out.spec.notification ? Payload(out.id) : ""});
}

void World::Abort(uint8_t transfer) {
  Outbound& out = out_[transfer];
  const AbortFrame abort{
      .transfer = out.id, .order = out.order, .opened = out.opened, .slots = out.book.End(pool_)};
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
    const DiscardFrame frame{.transfer = out.id, .slots = out.book.Discard(rail_index)};
    for (const SlotRef ref : frame.slots) {
      const auto lane = std::ranges::find(out.carried, ref, &Piggybacked::ref);
      if (lane == out.carried.end()) return Fail("a lane is discarded that was not opened");
      out.discarded.push_back(
          {.ref = ref, .slices = lane->slices, .rail = rail_index, .epoch = rail.epoch});
      out.carried.erase(lane);
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
      out.book.OnFreed(ref);
      std::erase_if(out.carried, [&](const Piggybacked& lane) { return lane.ref == ref; });
    }
  }
  for (const uint64_t id : frame.arrived) {
    Outbound& out = out_[IndexOf(id)];
    Require(out.opened && !out.arrived, "arrived twice or before OPEN", id);
    out.arrived = true;
    // An abort that is on its way is still to be answered.
    if (out.state == State::kSending) out.state = State::kDone;
    out.book = SendBook();
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
  const Slices received = truth_[IndexOf(out.id)].received;
  Require(!ack.complete || (lane.slices & ~received) == 0, "complete, but not all landed", out.id);
  if (out.state == State::kSending) Check(out.book.OnDiscarded(ack, pool_).status());
}

void World::OnAbortAck(const AbortAck& ack) {
  const uint8_t index = IndexOf(ack.transfer);
  Outbound& out = out_[index];
  Require(out.state == State::kAborting, "an ABORT is answered that was not sent", out.id);
  Require(ack.delivered == truth_[index].arrived, "an ABORT is answered with a lie", out.id);
  Require(!InFlight(index), "an ABORT is answered while data is in flight", out.id);
  out.state = ack.delivered ? State::kDone : State::kFailed;
  out.book = SendBook();
  out.discarded.clear();
}

}  // namespace kvxfer::testing
