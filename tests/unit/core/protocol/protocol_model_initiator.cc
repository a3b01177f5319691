// The model's initiator: what drives the SendTracker, and what it is held to.
#include <algorithm>
#include <deque>
#include <mutex>

#include "tests/unit/core/protocol/protocol_model.h"
#include "tests/unit/core/protocol/protocol_model_internal.h"

namespace kvxfer::testing {
namespace {

// An end that is under way is told when TimeUp says so, and not before.
constexpr Duration kGrace = std::chrono::seconds(1);
constexpr Duration kAllowance = std::chrono::hours(1000);

}  // namespace

const std::string& Payload(uint64_t id) {
  static std::mutex mutex;
  static std::deque<std::string> payloads;
  const std::lock_guard lock(mutex);
  while (payloads.size() <= id) payloads.push_back(absl::StrCat("n", payloads.size()));
  return payloads[id];
}

void World::Begin(Outbound& out) {
  const TransferSpec& spec = out.spec;
  SendTracker::Request request{.id = out.id,
                               .link = kModelLink,
                               .moves = spec.slices > 0,
                               .ordered = spec.ordered,
                               .notice = Notice::kNotification,
                               .notification = spec.notification ? &Payload(out.id) : nullptr,
                               .posted = now_,
                               .deadline = now_ + kAllowance};
  if (!spec.copied) request.lanes.emplace(config_->rails, config_->rail_keeps_order);
  sender_->Begin(std::move(request), now_);
}

bool World::CanPost(uint8_t transfer, uint32_t rail) const {
  const SendTracker::Transfer* const sending = Sending(transfer);
  if (sending == nullptr || !sending->MayPost()) return false;
  if (out_[transfer].spec.copied) return rail == 0;
  if (rails_[rail].failed || rails_[rail].suspected) return false;
  const auto bound = sending->book().BoundTo(ProtocolModelAccess::Next(*sending));
  if (bound.has_value() && *bound != rail) return false;
  return !ProtocolModelAccess::NeedsSlot(*sending, rail) ||
         ProtocolModelAccess::Pool(*sender_).available() > 0;
}

bool World::CanOpenIdle(uint8_t transfer, uint32_t rail) const {
  return idle_left_ > 0 && ProtocolModelAccess::OpensLane(*Sending(transfer), rail);
}

std::optional<SendTransfer::Offered> World::Offer(uint8_t transfer, uint32_t rail) {
  Outbound& out = out_[transfer];
  SendTracker::Transfer& sending = *Sending(transfer);
  const bool opens = ProtocolModelAccess::OpensLane(sending, rail);
  if (!sending.prepared().has_value()) {
    sending.Prepare(sending.NextSlice() + 1 == out.spec.slices);
  }
  const auto offered = sending.Offer(rail, sender_->slots());
  if (!offered.has_value()) {
    Fail("no slot where the pool said there was one");
  } else if (opens) {
    const SlotRef slot = ProtocolModelAccess::SlotOf(sending, rail);
    Require(!InFlight(slot), "a slot is used again while its last lane is in flight", slot.slot);
    out.carried.push_back({.ref = slot});
  }
  return offered;
}

void World::Post(uint8_t transfer, uint32_t rail) {
  Outbound& out = out_[transfer];
  SendTracker::Transfer& sending = *Sending(transfer);
  const auto offered = Offer(transfer, rail);
  if (!offered.has_value()) return;
  const uint32_t number = sending.prepared()->number;
  const auto slice = number == kNoSlice ? kNone : static_cast<uint8_t>(number);
  const auto bit = static_cast<Slices>(slice == kNone ? 0 : 1u << slice);
  if (!out.spec.copied) {
    // An op without an immediate still belongs to its lane's slot.
    const SlotRef ref = ProtocolModelAccess::SlotOf(sending, rail);
    const auto immediate = offered->immediate;
    Require(!immediate.has_value() || *immediate == EncodeImmediate(ref), "another's immediate",
            out.id);
    for (Carried& lane : out.carried) {
      if (lane.ref == ref) lane.slices = static_cast<Slices>(lane.slices | bit);
    }
    PutOnRail(transfer, rail, slice, ref, immediate.has_value());
  }
  sending.OnAccepted(rail);
  out.posted.push_back({.rail = static_cast<uint8_t>(rail), .slice = slice});
  if (!config_->late_completions) Complete(transfer);
}

void World::PutOnRail(uint8_t transfer, uint32_t rail, uint8_t slice, SlotRef ref,
                      bool has_immediate) {
  rails_[rail].items.push_back({transfer, slice, has_immediate, ref});
}

void World::Close(uint8_t transfer) {
  SendTracker::Transfer& sending = *Sending(transfer);
  const auto closing = sending.NextToClose();
  PutOnRail(transfer, closing->rail, kNone, DecodeImmediate(closing->immediate), true);
  sending.OnClosed(closing->rail);
  out_[transfer].posted.push_back({.rail = static_cast<uint8_t>(closing->rail)});
  if (!config_->late_completions) Complete(transfer);
}

// What the initiator copies has landed when its op completes.
void World::Complete(uint8_t transfer) {
  Outbound& out = out_[transfer];
  const Posted op = out.posted.front();
  out.posted.erase(out.posted.begin());
  if (out.spec.copied) {
    Require(!out.ended, "copied after the end", out.id);
    truth_[transfer].received |= static_cast<Slices>(1u << op.slice);
  }
  sender_->OnCompleted(*Sending(transfer), now_);
}

void World::Suspect(uint8_t transfer) {
  Outbound& out = out_[transfer];
  const Posted op = out.posted.front();
  out.posted.erase(out.posted.begin());
  --alone_left_;
  rails_[op.rail].suspected = true;
  sender_->OnSuspect(*Sending(transfer), op.rail, op.slice == kNone ? kNoSlice : op.slice,
                     absl::UnavailableError("the rail fails"), now_);
}

void World::Explain(uint8_t rail_index) {
  rails_[rail_index].suspected = false;
  sender_->OnRailCleared(kModelLink, rail_index, now_);
}

void World::Abort(uint8_t transfer) {
  sender_->End(*Sending(transfer), TransferState::kCancelled, absl::CancelledError("cancelled"),
               EndCause::kStopped, now_);
}

void World::TimeUp() {
  --impatience_left_;
  now_ += 2 * kGrace;
  sender_->OnTime(now_);
}

// OPEN once everything is posted and no rail's answer is awaited; AMEND for lanes that go again,
// once all are posted.
void World::FinishPosting() {
  sender_->ForEach([this](SendTracker::Transfer& sending) { sender_->FinishPosting(sending); });
}

// Its ops have completed by the time that its failure is known.
void World::FailRail(uint8_t rail_index) {
  Rail& rail = rails_[rail_index];
  for (size_t t = 0; t < out_.size(); ++t) {
    if (out_[t].spec.copied) continue;
    const auto ended =
        std::erase_if(out_[t].posted, [&](const Posted& op) { return op.rail == rail_index; });
    for (size_t i = 0; i < ended; ++i)
      sender_->OnCompleted(*Sending(static_cast<uint8_t>(t)), now_);
  }
  rail.failed = true;
  rail.suspected = false;
  --failures_left_;
  sender_->OnRailDown(kModelLink, rail_index);
}

void World::RailFenced(uint8_t rail_index) {
  Require(receiver_->NextFencedRail(kModelLink).has_value(), "nobody is told", rail_index);
  receiver_->OnAnswered(kModelLink, rail_index);
  Rail& rail = rails_[rail_index];
  rail.failed = rail.fencing = rail.fenced = false;
  fenced_ = true;
  sender_->OnRailFenced(kModelLink, rail_index);
  Observe();
  fenced_ = false;
}

void World::AtInitiator(const ReliableChannel::Incoming& frame) {
  if (frame.type == FrameType::kSlotGrant) {
    const auto grant = Decode<SlotGrantFrame>(frame.body);
    if (Check(grant.status())) Check(sender_->slots().OnGrant(*grant));
    return;
  }
  const auto released = Decode<ReleasedFrame>(frame.body);
  if (!Check(released.status())) return;
  CheckReleased(*released);
  Check(sender_->OnReleased(*released, now_));
}

void World::CheckReleased(const ReleasedFrame& frame) {
  for (const SlotRef ref : frame.freed) {
    for (Outbound& out : out_) {
      std::erase_if(out.carried, [&](const Carried& lane) { return lane.ref == ref; });
    }
  }
  for (const DiscardAck& ack : frame.discarded) CheckDiscardAck(ack);
  for (const AbortAck& ack : frame.aborted) CheckAbortAck(ack);
}

void World::CheckDiscardAck(const DiscardAck& ack) {
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
}

void World::CheckAbortAck(const AbortAck& ack) {
  const uint8_t index = IndexOf(ack.transfer);
  Outbound& out = out_[index];
  Require(out.aborting && !out.answered, "an ABORT is answered that was not sent", out.id);
  Require(ack.delivered == truth_[index].arrived, "an ABORT is answered with a lie", out.id);
  Require(!InFlight(index), "an ABORT is answered while data is in flight", out.id);
  out.answered = true;
  out.discarded.clear();
}

void World::Observe() {
  for (const std::string& message : ProtocolModelAccess::Pushed(*initiator_, observed_)) {
    const auto envelope = DecodeEnvelope(AsBytes(message));
    if (!Check(envelope.status())) return;
    const auto about = [this](uint64_t id) -> Outbound& {
      Outbound& out = out_[IndexOf(id)];
      ++out.frames;
      return out;
    };
    switch (envelope->type) {
      case FrameType::kOpen:
        about(Decode<OpenFrame>(envelope->body)->transfer);
        break;
      case FrameType::kAmend:
        about(Decode<AmendFrame>(envelope->body)->transfer);
        break;
      case FrameType::kAbort:
        about(Decode<AbortFrame>(envelope->body)->transfer).aborting = true;
        break;
      case FrameType::kDiscard: {
        const auto discard = Decode<DiscardFrame>(envelope->body);
        about(discard->transfer);
        ObserveDiscard(*discard);
        break;
      }
      default:
        break;  // the target grants slots when the schedule says so
    }
  }
  observed_ = ProtocolModelAccess::LastPushed(*initiator_);
}

void World::ObserveDiscard(const DiscardFrame& frame) {
  if (!fenced_) return Fail("a lane is discarded whose rail is not fenced");
  Outbound& out = out_[IndexOf(frame.transfer)];
  for (const SlotRef ref : frame.slots) {
    const auto lane = std::ranges::find(out.carried, ref, &Carried::ref);
    if (lane == out.carried.end()) return Fail("a lane is discarded that was not opened");
    Require(!InFlight(ref), "a lane is discarded that is in flight", out.id);
    out.discarded.push_back({.ref = ref, .slices = lane->slices});
    out.carried.erase(lane);
  }
}

void World::TakeSenderActions() {
  using Kind = SendTracker::Action::Kind;
  std::vector<SendTracker::Action> actions;
  sender_->TakeActions(actions);
  for (const SendTracker::Action& action : actions) {
    const uint8_t index = IndexOf(action.transfer->id());
    Outbound& out = out_[index];
    switch (action.kind) {
      case Kind::kStop:
      case Kind::kSend:
        break;  // posting asks the tracker each time
      case Kind::kAbandon:
        Fail("nothing is staged");
        break;
      case Kind::kEnd:
        CheckEnd(action);
        break;
      case Kind::kQuiet:
        Require(out.ended, "quiet before its end", out.id);
        Require(!CanLand(index), "quiet, and data can still land", out.id);
        out.quarantined = false;
        break;
      case Kind::kOrphan:
        Require(lost_, "orphaned by a session that is not lost", out.id);
        out.orphaned = true;
        break;
      case Kind::kForget:
        Require(out.ended && out.posted.empty(), "forgotten too early", out.id);
        sender_->Forget(*action.transfer);
        break;
    }
  }
}

void World::CheckEnd(const SendTracker::Action& end) {
  const uint8_t index = IndexOf(end.transfer->id());
  Outbound& out = out_[index];
  const Truth& truth = truth_[index];
  Require(!out.ended, "an end is told twice", out.id);
  Require(out.posted.empty(), "an end is told while ops are in flight", out.id);
  out.ended = true;
  out.end = end.state;
  out.delivery = end.delivery;
  out.quarantined = end.quarantined;
  Require(end.quarantined || !CanLand(index), "not quarantined, and data can still land", out.id);
  if (end.state == TransferState::kDone) {
    const auto all = static_cast<Slices>((1u << out.spec.slices) - 1);
    Require(truth.received == all, "done before all of it landed", out.id);
    Require(!out.spec.notification || truth.arrived, "done before the target has it", out.id);
  }
  Require(end.delivery != Delivery::kDelivered || truth.arrived, "delivered, says the end", out.id);
  Require(end.delivery != Delivery::kNotDelivered || !truth.arrived, "not delivered, says the end",
          out.id);
}

}  // namespace kvxfer::testing
