// The model's rails, its control connection and its target.
#include "tests/unit/core/protocol/protocol_model.h"
#include "tests/unit/core/protocol/protocol_model_internal.h"

namespace kvxfer::testing {

void World::Deliver(uint8_t rail_index, uint8_t item_index) {
  std::vector<Item>& items = rails_[rail_index].items;
  const Item item = items[item_index];
  items.erase(items.begin() + item_index);
  Truth& truth = truth_[item.transfer];
  Require(!truth.ended, "data lands after the end", out_[item.transfer].id);
  if (item.slice != kNone) truth.received = static_cast<Slices>(truth.received | 1u << item.slice);
  if (item.has_immediate && Check(receiver_->OnImmediate(EncodeImmediate(item.ref)))) TakeActions();
}

void World::AskFence(uint8_t rail_index) {
  if (Check(receiver_->OnFenceRail(kModelLink, rail_index, config_->rails))) TakeActions();
}

// Nothing that was posted on the rail before can become visible any more.
void World::Drain(uint8_t rail_index) {
  rails_[rail_index].items.clear();
  rails_[rail_index].fenced = true;
  if (Check(receiver_->OnRailFenced(kModelLink, rail_index))) TakeActions();
}

void World::Cut(uint8_t acks) {
  --cuts_left_;
  if ((acks & 1) != 0) Check(target_.OnAck(initiator_->received()));
  if ((acks & 2) != 0) Check(initiator_->OnAck(target_.received()));
  to_target_.clear();
  to_initiator_.clear();
  initiator_->Rewind();
  target_.Rewind();
}

void World::Pump() {
  const auto pump = [](ReliableChannel& channel, std::vector<std::string>& wire) {
    while (const std::string* message = channel.NextToSend()) {
      wire.push_back(*message);
      channel.MessageSent();
    }
  };
  pump(*initiator_, to_target_);
  pump(target_, to_initiator_);
}

void World::Receive(bool at_target, uint8_t index) {
  std::vector<std::string>& wire = at_target ? to_target_ : to_initiator_;
  const std::string message = std::move(wire[index]);
  wire.erase(wire.begin() + index);
  const auto envelope = DecodeEnvelope(AsBytes(message));
  if (!Check(envelope.status())) return;
  ReliableChannel& channel = at_target ? target_ : *initiator_;
  if (!Check(channel.OnAck(envelope->ack))) return;
  Check(channel.OnFrame(*envelope, [&](const auto& frame) {
    at_target ? AtTarget(frame) : AtInitiator(frame);
    return absl::OkStatus();
  }));
}

void World::AtTarget(const ReliableChannel::Incoming& frame) {
  Require(TargetSession::Takes(frame.type), "a frame that is not about a transfer", 0);
  if (frame.type == FrameType::kOpen) {
    Truth& truth = truth_[IndexOf(Decode<OpenFrame>(frame.body)->transfer)];
    truth.opened = true;
    ++truth.frames;
  } else if (frame.type == FrameType::kAmend) {
    ++truth_[IndexOf(Decode<AmendFrame>(frame.body)->transfer)].frames;
  } else if (frame.type == FrameType::kAbort) {
    Truth& truth = truth_[IndexOf(Decode<AbortFrame>(frame.body)->transfer)];
    truth.aborted = !truth.arrived;
    ++truth.frames;
  } else {
    ++truth_[IndexOf(Decode<DiscardFrame>(frame.body)->transfer)].frames;
  }
  if (Check(receiver_->OnFrame(frame)) && Check(receiver_->CheckLimits())) TakeActions();
}

// What is left on a rail that is being fenced by itself may still land.
void World::Fence(uint8_t transfer) {
  for (Rail& rail : rails_) {
    if (rail.fencing && !rail.fenced) continue;
    std::erase_if(rail.items, [&](const Item& item) { return item.transfer == transfer; });
  }
  truth_[transfer].fencing = false;
  if (Check(receiver_->OnFenced(kModelLink, out_[transfer].id))) TakeActions();
}

void World::Grant() {
  --grants_left_;
  auto grant = table_->Grant(kModelOwner);
  if (!grant.has_value()) return Fail("the table is full");
  grant->range.count = config_->slots;
  target_.Push(FrameType::kSlotGrant, Encode(*grant));
}

// The initiator gives the session up. At the target its connections may live on for a while.
void World::Lose() {
  --losses_left_;
  lost_ = true;
  to_target_.clear();
  to_initiator_.clear();
  sender_->OnSessionLost(absl::UnavailableError("lost"), now_);
  sender_->NewSession();
}

// The target takes a new session once every connection of the one before is down at its side. It
// gives out what was whole, and the initiator learns that nothing can land any more.
void World::Rejoin() {
  lost_ = false;
  for (Rail& rail : rails_) rail = {};
  if (Check(receiver_->OnLinkDown(kModelLink))) TakeActions();
  for (const auto& delivered : receiver_->GiveOut()) {
    Truth& truth = truth_[IndexOf(delivered.transfer)];
    Require(truth.arrived && !truth.delivered, "given out, but may not be", delivered.transfer);
    truth.delivered = true;
  }
  for (Truth& truth : truth_) {
    truth.aborted = !truth.arrived;
    truth.fencing = false;
    truth.ended = true;
  }
  for (Outbound& out : out_) {
    out.carried.clear();
    out.discarded.clear();
    Require(!out.quarantined || out.orphaned, "quarantined for ever", out.id);
    if (Sending(static_cast<uint8_t>(out.id - first_id_)) == nullptr) out.quarantined = false;
  }
  BeginSession();
  sender_->OnQuiet();
}

void World::TakeActions() {
  TargetSession::Actions actions;
  while (error_.empty() && receiver_->has_actions()) {
    if (Check(receiver_->TakeActions(actions))) Take(actions);
  }
}

void World::Take(const TargetSession::Actions& actions) {
  for (const uint64_t id : actions.tracked.released.arrived) {
    const uint8_t index = IndexOf(id);
    Truth& truth = truth_[index];
    const auto all = static_cast<Slices>((1u << out_[index].spec.slices) - 1);
    Require(truth.received == all, "arrived before all of it landed", id);
    Require(!InFlight(index), "arrived while data is in flight", id);
    Require(truth.opened && !truth.aborted && !truth.arrived, "arrived, but may not", id);
    truth.arrived = truth.ended = true;
  }
  for (const SlotRef ref : actions.tracked.released.freed) {
    Require(!InFlight(ref), "a slot is freed while its lane is in flight", ref.slot);
  }
  for (const AbortAck& ack : actions.tracked.released.aborted) {
    truth_[IndexOf(ack.transfer)].ended = true;
  }
  for (const TargetSession::Fence& fence : actions.fences) {
    Require(fence.link == kModelLink, "a link that is not there is to be fenced", fence.link);
    if (fence.scope.rail == FenceScope::kEveryRail) {
      truth_[IndexOf(fence.scope.transfer)].fencing = true;
    } else {
      rails_[fence.scope.rail].fencing = true;
    }
  }
  for (const auto& delivered : actions.tracked.deliver) CheckDelivered(delivered);
  if (!actions.tracked.released.empty())
    target_.Push(FrameType::kReleased, Encode(actions.tracked.released));
}

}  // namespace kvxfer::testing
