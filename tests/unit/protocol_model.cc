#include "tests/unit/protocol_model.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <span>

#include "absl/strings/str_cat.h"

namespace kvxfer {

// The one place that looks into the classes under test: to copy and to compare states.
struct ProtocolModelAccess {
  static std::unique_ptr<SlotTable> Copy(const SlotTable& from) {
    auto to = std::make_unique<SlotTable>(from.max_ranges_, from.first_generation_);
    for (const SlotTable::Range& range : from.ranges_) {
      auto& copy = to->ranges_.emplace_back();
      copy.owner = range.owner;
      copy.next_generation = range.next_generation;
      if (range.slots == nullptr) continue;
      copy.slots = std::make_unique<SlotTable::Slot[]>(kRangeSlots);
      std::copy_n(range.slots.get(), kRangeSlots, copy.slots.get());
    }
    to->free_ = from.free_;
    to->in_use_ = from.in_use_;
    return to;
  }

  static std::unique_ptr<ArrivalTracker> Copy(const ArrivalTracker& from, SlotTable* slots) {
    auto to = std::make_unique<ArrivalTracker>(slots, from.owner_);
    to->transfers_ = from.transfers_;
    to->lane_of_slot_ = from.lane_of_slot_;
    to->ahead_ = from.ahead_;
    to->held_notifications_ = from.held_notifications_;
    to->held_bytes_ = from.held_bytes_;
    to->next_order_ = from.next_order_;
    return to;
  }

  // State is appended byte by byte; every number here is small or is cut to what can differ.
  class Writer {
   public:
    explicit Writer(std::vector<uint8_t>& bytes) : bytes_(bytes) { bytes_.clear(); }
    void Byte(uint64_t value) { bytes_.push_back(static_cast<uint8_t>(value)); }
    void Word(uint64_t value) {
      Byte(value);
      Byte(value >> 8);
    }
    void Slot(SlotRef ref) {
      Byte(ref.slot);
      Word(ref.generation);
    }
    void Text(std::string_view text) {
      Word(text.size());
      bytes_.insert(bytes_.end(), text.begin(), text.end());
    }

   private:
    std::vector<uint8_t>& bytes_;
  };

  static void Write(const LaneBook& book, Writer& out) {
    out.Byte(book.last_posted_);
    for (const LaneBook::Lane& lane : book.lanes_) {
      out.Byte((lane.open ? 1u : 0u) | (lane.closed ? 2u : 0u) | (lane.freed ? 4u : 0u));
      if (!lane.open) continue;
      out.Slot(lane.slot);
      out.Byte(lane.immediates);
    }
  }

  static void Write(const SlotPool& pool, Writer& out) {
    out.Byte(pool.free_.size());
    for (const SlotRef ref : pool.free_) out.Slot(ref);
  }

  // What a later reconnect can bring back, and what decides whether a frame is a duplicate.
  static void Write(const ReliableChannel& channel, Writer& out) {
    out.Byte(channel.kept_.size());
    out.Word(channel.last_sequence_);
    out.Word(channel.received_);
    out.Word(channel.highest_sent_);
    for (const auto& kept : channel.kept_) out.Text(kept.message.substr(kEnvelopeBytes));
    out.Byte(channel.ahead_.size());
    for (const auto& [sequence, frame] : channel.ahead_) out.Word(sequence);
  }

  static void Write(const SlotTable& table, uint32_t slots, Writer& out) {
    for (const SlotTable::Range& range : table.ranges_) {
      for (const SlotTable::Slot& slot : std::span(range.slots.get(), slots)) {
        out.Word(slot.generation);
        out.Byte(slot.arrivals);
      }
    }
  }

  static void Write(const ArrivalTracker& tracker, uint64_t first_id, size_t transfers,
                    Writer& out) {
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
      out.Byte(past.deliver);
    }
  }

  static size_t Remembered(const ArrivalTracker& tracker) {
    return tracker.transfers_.size() + tracker.lane_of_slot_.size() + tracker.ahead_.size();
  }
};

namespace testing {
namespace {

constexpr SlotTable::Owner kOwner = 7;

std::span<const std::byte> AsBytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string Payload(uint64_t id) { return absl::StrCat("n", id); }

}  // namespace

std::string ToString(Step step) {
  static constexpr const char* kNames[] = {"post",      "open-idle",    "close", "deliver",
                                           "to-target", "to-initiator", "fence", "drain",
                                           "abort",     "fail-rail",    "cut",   "grant"};
  return absl::StrCat(kNames[static_cast<size_t>(step.kind)], "(", static_cast<int>(step.a), ",",
                      static_cast<int>(step.b), ")");
}

World::World(const ModelConfig& config)
    : config_(&config),
      table_(std::make_unique<SlotTable>(1 + config.grants, config.first_generation)),
      tracker_(std::make_unique<ArrivalTracker>(table_.get(), kOwner)) {
  SlotGrantFrame grant = *table_->Grant(kOwner);
  grant.range.count = config.slots;
  Check(pool_.AddGrant(grant));
  grants_left_ = config.grants;
  Begin(config);
}

World::World(const World& other)
    : config_(other.config_),
      first_id_(other.first_id_),
      next_order_(other.next_order_),
      out_(other.out_),
      truth_(other.truth_),
      rails_(other.rails_),
      pool_(other.pool_),
      initiator_(other.initiator_),
      target_(other.target_),
      to_target_(other.to_target_),
      to_initiator_(other.to_initiator_),
      table_(ProtocolModelAccess::Copy(*other.table_)),
      tracker_(ProtocolModelAccess::Copy(*other.tracker_, table_.get())),
      failures_left_(other.failures_left_),
      cuts_left_(other.cuts_left_),
      grants_left_(other.grants_left_),
      idle_left_(other.idle_left_),
      error_(other.error_) {}

void World::Begin(const ModelConfig& config) {
  config_ = &config;
  first_id_ += out_.size();
  out_.clear();
  truth_.assign(config.transfers.size(), {});
  for (const TransferSpec& spec : config.transfers) {
    Outbound& out = out_.emplace_back();
    out.spec = spec;
    out.id = first_id_ + out_.size() - 1;
    out.order = spec.ordered ? next_order_++ : 0;
    Attempt& attempt =
        out.attempts.emplace_back(Attempt{.book{config.rails, config.rail_keeps_order}});
    attempt.pending = static_cast<Slices>((1u << spec.slices) - 1);
    TellLanes(out);
  }
  rails_ = {};  // at rest they are up and empty
  failures_left_ = config.rail_failures;
  cuts_left_ = config.cuts;
  idle_left_ = config.idle_lanes;
  Pump();
}

void World::Fail(std::string what) {
  if (error_.empty()) error_ = std::move(what);
}

bool World::Check(const absl::Status& status) {
  if (!status.ok()) Fail(status.ToString());
  return status.ok();
}

void World::Require(bool holds, const char* what, uint64_t whom) {
  if (!holds) Fail(absl::StrCat(what, " (", whom, ")"));
}

// --- steps --------------------------------------------------------------------------------------

void World::Enabled(std::vector<Step>& steps) const {
  steps.clear();
  const auto add = [&steps](StepKind kind, size_t a, size_t b) {
    steps.push_back({kind, static_cast<uint8_t>(a), static_cast<uint8_t>(b)});
  };
  bool posting = false;
  for (size_t t = 0; t < out_.size(); ++t) {
    const Outbound& out = out_[t];
    if (truth_[t].fencing) add(StepKind::kFence, t, 0);
    if (out.state != State::kSending) continue;
    if (out.spec.may_abort) add(StepKind::kAbort, t, 0);
    if (posting && !config_->interleave) continue;
    for (const Attempt& attempt : out.attempts) {
      const auto rail = attempt.book.NextToClose();
      if (rail.has_value() && !rails_[*rail].failed) add(StepKind::kClose, t, 0);
      if (rail.has_value()) break;
    }
    for (uint32_t rail = 0; rail < config_->rails; ++rail) {
      const size_t attempt = PostingAttempt(out, rail);
      if (attempt == out.attempts.size()) continue;
      posting = true;
      add(StepKind::kPost, t, rail);
      if (idle_left_ > 0 && attempt == 0 && !out.spec.copied &&
          out.attempts[0].book.NeedsSlot(rail)) {
        add(StepKind::kOpenIdle, t, rail);
      }
    }
  }
  for (size_t r = 0; r < config_->rails; ++r) {
    const Rail& rail = rails_[r];
    for (size_t i = 0; i < rail.items.size(); ++i) {
      // Items of one lane are alike; where the rail keeps order only the oldest can land.
      const auto same = [&](const Item& item) { return item.ref == rail.items[i].ref; };
      const auto here = rail.items.begin() + static_cast<ptrdiff_t>(i);
      if (std::none_of(rail.items.begin(), here, same)) add(StepKind::kDeliver, r, i);
      if (config_->rail_keeps_order) break;
    }
    if (rail.failed) add(StepKind::kDrain, r, 0);
    if (!rail.failed && failures_left_ > 0) add(StepKind::kFailRail, r, 0);
  }
  const size_t reach = config_->control_reorders ? 4 : 1;
  for (size_t i = 0; i < std::min(reach, to_target_.size()); ++i) add(StepKind::kToTarget, i, 0);
  for (size_t i = 0; i < std::min(reach, to_initiator_.size()); ++i) {
    add(StepKind::kToInitiator, i, 0);
  }
  if (cuts_left_ > 0) {
    for (size_t acks = 0; acks < 4; ++acks) add(StepKind::kCut, acks, 0);
  }
  if (grants_left_ > 0) add(StepKind::kGrant, 0, 0);
}

bool World::Apply(Step step) {
  switch (step.kind) {
    case StepKind::kPost:
      Post(step.a, step.b);
      break;
    case StepKind::kOpenIdle:
      --idle_left_;
      OpenLane(out_[step.a].attempts[0], step.b);
      break;
    case StepKind::kClose:
      Close(step.a);
      break;
    case StepKind::kDeliver:
      Deliver(step.a, step.b);
      break;
    case StepKind::kToTarget:
      Receive(true, step.a);
      break;
    case StepKind::kToInitiator:
      Receive(false, step.a);
      break;
    case StepKind::kFence:
      Fence(step.a);
      break;
    case StepKind::kDrain:
      Drain(step.a);
      break;
    case StepKind::kAbort:
      Abort(step.a);
      break;
    case StepKind::kFailRail:
      FailRail(step.a);
      break;
    case StepKind::kCut:
      Cut(step.a);
      break;
    case StepKind::kGrant:
      Grant();
      break;
  }
  for (Outbound& out : out_) TellLanes(out);
  Pump();
  CheckNothingLate();
  return error_.empty();
}

bool World::CheckAtRest() {
  for (size_t t = 0; t < out_.size(); ++t) {
    const bool ended = out_[t].state == State::kDone || out_[t].state == State::kFailed;
    Require(ended, "at rest, but a transfer has not ended", out_[t].id);
    const bool delivered = out_[t].state == State::kDone && out_[t].spec.notification;
    Require(truth_[t].delivered == delivered, "delivered or lost against its end", out_[t].id);
  }
  Require(pool_.available() == pool_.granted(), "at rest, but slots are in use",
          pool_.granted() - pool_.available());
  const size_t remembered = ProtocolModelAccess::Remembered(*tracker_);
  Require(remembered == 0, "at rest, but the target remembers", remembered);
  Require(tracker_->held_notifications() == 0 && tracker_->held_bytes() == 0,
          "at rest, but notifications are held", tracker_->held_notifications());
  return error_.empty();
}

// --- the initiator ------------------------------------------------------------------------------

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
      const auto ref = attempt.book.Discard(rail_index);
      if (!ref.has_value()) {
        ++i;
        continue;
      }
      Slices again = std::exchange(attempt.carried[rail_index], Slices{0});
      if (attempt.one_lane) again = static_cast<Slices>(again | attempt.pending);
      frame.slots.push_back(*ref);
      out.discarded.push_back({.ref = *ref,
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
    const auto grant = Decode<SlotGrantFrame>(AsBytes(frame.body));
    if (Check(grant.status())) Check(pool_.AddGrant(*grant));
    return;
  }
  const auto released = Decode<ReleasedFrame>(AsBytes(frame.body));
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
  pool_.Reserve();
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

// --- rails and control --------------------------------------------------------------------------

void World::Deliver(uint8_t rail_index, uint8_t item_index) {
  std::vector<Item>& items = rails_[rail_index].items;
  const Item item = items[item_index];
  items.erase(items.begin() + item_index);
  Truth& truth = truth_[item.transfer];
  Require(!truth.ended, "data lands after the end", out_[item.transfer].id);
  if (item.slice != kNone) truth.landed = static_cast<Slices>(truth.landed | 1u << item.slice);
  if (item.has_immediate && Check(tracker_->OnImmediate(item.ref))) TakeActions();
}

void World::Drain(uint8_t rail_index) {
  Rail& rail = rails_[rail_index];
  rail.items.clear();
  rail.failed = false;
  rail.drained = rail.epoch;
  for (size_t t = 0; t < out_.size(); ++t) LanesDrained(static_cast<uint8_t>(t));
}

void World::Cut(uint8_t acks) {
  --cuts_left_;
  if ((acks & 1) != 0) Check(target_.OnAck(initiator_.received()));
  if ((acks & 2) != 0) Check(initiator_.OnAck(target_.received()));
  to_target_.clear();
  to_initiator_.clear();
  initiator_.Rewind();
  target_.Rewind();
}

void World::Pump() {
  const auto pump = [](ReliableChannel& channel, std::vector<std::string>& wire) {
    while (const std::string* message = channel.NextToSend()) {
      wire.push_back(*message);
      channel.MessageSent();
    }
  };
  pump(initiator_, to_target_);
  pump(target_, to_initiator_);
}

void World::Receive(bool at_target, uint8_t index) {
  std::vector<std::string>& wire = at_target ? to_target_ : to_initiator_;
  const std::string message = std::move(wire[index]);
  wire.erase(wire.begin() + index);
  const auto envelope = DecodeEnvelope(AsBytes(message));
  if (!Check(envelope.status())) return;
  ReliableChannel& channel = at_target ? target_ : initiator_;
  std::vector<ReliableChannel::Incoming> frames;
  if (!Check(channel.OnAck(envelope->ack)) || !Check(channel.OnFrame(*envelope, frames))) return;
  for (const auto& frame : frames) at_target ? AtTarget(frame) : AtInitiator(frame);
}

// --- the target ---------------------------------------------------------------------------------

void World::AtTarget(const ReliableChannel::Incoming& frame) {
  const auto body = AsBytes(frame.body);
  if (frame.type == FrameType::kOpen) {
    const auto open = Decode<OpenFrame>(body);
    if (!Check(open.status())) return;
    Truth& truth = truth_[IndexOf(open->transfer)];
    truth.opened = true;
    ++truth.frames;
    Check(tracker_->OnOpen(*open));
  } else if (frame.type == FrameType::kAmend) {
    const auto amend = Decode<AmendFrame>(body);
    if (!Check(amend.status())) return;
    ++truth_[IndexOf(amend->transfer)].frames;
    Check(tracker_->OnAmend(*amend));
  } else if (frame.type == FrameType::kAbort) {
    const auto abort = Decode<AbortFrame>(body);
    if (!Check(abort.status())) return;
    Truth& truth = truth_[IndexOf(abort->transfer)];
    truth.aborted = !truth.arrived;
    ++truth.frames;
    Check(tracker_->OnAbort(*abort));
  } else {
    const auto discard = Decode<DiscardFrame>(body);
    if (Check(discard.status())) TakeDiscard(*discard);
  }
  TakeActions();
}

void World::TakeDiscard(const DiscardFrame& frame) {
  const uint8_t index = IndexOf(frame.transfer);
  ++truth_[index].frames;
  if (!Check(tracker_->OnDiscard(frame))) return;
  for (Discarded& lane : out_[index].discarded) {
    for (const SlotRef ref : frame.slots) lane.at_target |= lane.ref == ref;
  }
  TakeActions();
  LanesDrained(index);
}

// Tells the tracker once every rail with a discarded lane of the transfer is drained.
void World::LanesDrained(uint8_t transfer) {
  bool waiting = false;
  bool drained = true;
  for (const Discarded& lane : out_[transfer].discarded) {
    if (!lane.at_target || lane.answered) continue;
    waiting = true;
    drained = drained && rails_[lane.rail].drained >= lane.epoch;
  }
  if (!waiting || !drained) return;
  for (Discarded& lane : out_[transfer].discarded) lane.answered |= lane.at_target;
  if (Check(tracker_->OnLanesDrained(out_[transfer].id))) TakeActions();
}

void World::Fence(uint8_t transfer) {
  for (Rail& rail : rails_) {
    std::erase_if(rail.items, [&](const Item& item) { return item.transfer == transfer; });
  }
  truth_[transfer].fencing = false;
  if (Check(tracker_->OnFenced(out_[transfer].id))) TakeActions();
}

void World::Grant() {
  --grants_left_;
  auto grant = table_->Grant(kOwner);
  if (!grant.has_value()) return Fail("the table is full");
  grant->range.count = config_->slots;
  target_.Push(FrameType::kSlotGrant, Encode(*grant));
}

void World::TakeActions() {
  const ArrivalTracker::Actions actions = tracker_->TakeActions();
  for (const uint64_t id : actions.released.arrived) {
    const uint8_t index = IndexOf(id);
    Truth& truth = truth_[index];
    const auto all = static_cast<Slices>((1u << out_[index].spec.slices) - 1);
    Require(truth.landed == all, "arrived before all of it landed", id);
    Require(!InFlight(index), "arrived while data is in flight", id);
    Require(truth.opened && !truth.aborted && !truth.arrived, "arrived, but may not", id);
    truth.arrived = truth.ended = true;
  }
  for (const SlotRef ref : actions.released.freed) {
    Require(!InFlight(ref), "a slot is freed while its lane is in flight", ref.slot);
  }
  for (const AbortAck& ack : actions.released.aborted) {
    truth_[IndexOf(ack.transfer)].ended = true;
  }
  for (const uint64_t id : actions.fence) truth_[IndexOf(id)].fencing = true;
  for (const auto& delivered : actions.deliver) CheckDelivered(delivered);
  if (!actions.released.empty()) target_.Push(FrameType::kReleased, Encode(actions.released));
}

void World::CheckDelivered(const ArrivalTracker::Delivered& delivered) {
  const uint8_t index = IndexOf(delivered.transfer);
  const Outbound& out = out_[index];
  Truth& truth = truth_[index];
  Require(truth.arrived, "delivered before it arrived", out.id);
  Require(!truth.delivered, "delivered twice", out.id);
  Require(out.spec.notification && delivered.notification == Payload(out.id),
          "another notification than posted", out.id);
  truth.delivered = true;
  for (const Outbound& before : out_) {
    if (out.spec.ordered && before.spec.ordered && before.order < out.order) {
      Require(Past(before), "delivered before an earlier one was past", out.id);
    }
  }
}

bool World::Past(const Outbound& out) const {
  const Truth& truth = truth_[out.id - first_id_];
  return truth.aborted || (out.spec.notification ? truth.delivered : truth.arrived);
}

// What could be known at the target is known there.
void World::CheckNothingLate() {
  bool all_past = true;
  for (size_t t = 0; t < out_.size(); ++t) {
    const Outbound& out = out_[t];
    const Truth& truth = truth_[t];
    const bool all_told = out.opened && out.discarded.empty() && out.frames == truth.frames &&
                          std::all_of(out.attempts.begin(), out.attempts.end(),
                                      [](const Attempt& attempt) { return attempt.told; });
    if (all_told && !truth.aborted && !InFlight(static_cast<uint8_t>(t))) {
      Require(truth.arrived, "all of it is there, but it has not arrived", out.id);
    }
    if (truth.arrived && out.spec.notification && (all_past || !out.spec.ordered)) {
      Require(truth.delivered, "its turn has come, but it is not delivered", out.id);
    }
    if (out.spec.ordered) all_past = all_past && Past(out);
  }
}

bool World::InFlight(uint8_t transfer) const {
  return std::any_of(rails_.begin(), rails_.end(), [&](const Rail& rail) {
    return std::any_of(rail.items.begin(), rail.items.end(),
                       [&](const Item& item) { return item.transfer == transfer; });
  });
}

bool World::InFlight(SlotRef ref) const {
  return std::any_of(rails_.begin(), rails_.end(), [&](const Rail& rail) {
    return std::any_of(rail.items.begin(), rail.items.end(),
                       [&](const Item& item) { return item.ref.slot == ref.slot; });
  });
}

uint8_t World::IndexOf(uint64_t id) {
  if (id >= first_id_ && id < first_id_ + out_.size()) return static_cast<uint8_t>(id - first_id_);
  Fail(absl::StrCat("a frame names a transfer of the past: ", id));
  return 0;
}

// --- the canonical state ------------------------------------------------------------------------

Fingerprint World::Canonical(std::vector<uint8_t>& scratch) const {
  ProtocolModelAccess::Writer w(scratch);
  for (size_t t = 0; t < out_.size(); ++t) {
    const Outbound& out = out_[t];
    const Truth& truth = truth_[t];
    w.Byte(static_cast<uint8_t>(out.state) | (out.opened ? 4u : 0u) | (out.arrived ? 8u : 0u));
    w.Byte((truth.opened ? 1u : 0u) | (truth.aborted ? 2u : 0u) | (truth.fencing ? 4u : 0u) |
           (truth.arrived ? 8u : 0u) | (truth.delivered ? 16u : 0u) | (truth.ended ? 32u : 0u));
    w.Word(truth.landed);
    w.Byte(static_cast<uint64_t>(out.frames - truth.frames));
    w.Byte(out.attempts.size());
    for (const Attempt& attempt : out.attempts) {
      w.Word(attempt.pending);
      w.Word(attempt.carried[0]);
      w.Word(attempt.carried[1]);
      w.Byte((attempt.one_lane ? 1u : 0u) | (attempt.told ? 2u : 0u));
      w.Byte(attempt.rail);
      w.Byte(attempt.reserved);
      ProtocolModelAccess::Write(attempt.book, w);
    }
    w.Byte(out.discarded.size());
    for (const Discarded& lane : out.discarded) {
      w.Slot(lane.ref);
      w.Word(lane.slices);
      w.Byte((lane.named ? 1u : 0u) | (lane.at_target ? 2u : 0u) | (lane.answered ? 4u : 0u));
      w.Byte(lane.rail);
      w.Byte(lane.epoch);
    }
  }
  for (uint32_t r = 0; r < config_->rails; ++r) {
    const Rail& rail = rails_[r];
    w.Byte((rail.failed ? 1u : 0u) | (uint64_t{rail.epoch} << 1));
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
  ProtocolModelAccess::Write(pool_, w);
  ProtocolModelAccess::Write(*table_, config_->slots, w);
  ProtocolModelAccess::Write(*tracker_, first_id_, out_.size(), w);
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
    ProtocolModelAccess::Write(initiator_, w);
    ProtocolModelAccess::Write(target_, w);
  }
  w.Byte(failures_left_);
  w.Byte(cuts_left_);
  w.Byte(grants_left_);
  w.Byte(idle_left_);
  const XXH128_hash_t hash = XXH3_128bits(scratch.data(), scratch.size());
  return {.low = hash.low64, .high = hash.high64};
}

}  // namespace testing
}  // namespace kvxfer
