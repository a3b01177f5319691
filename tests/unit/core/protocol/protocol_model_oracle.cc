// The model's oracle: what must hold after every step and at rest.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/unit/core/protocol/protocol_model.h"
#include "tests/unit/core/protocol/protocol_model_internal.h"

namespace kvxfer::testing {

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

bool World::CheckAtRest() {
  for (size_t t = 0; t < out_.size(); ++t) {
    const Outbound& out = out_[t];
    Require(out.ended, "at rest, but a transfer has not ended", out.id);
    Require(!out.quarantined, "at rest, but quarantined", out.id);
    if (!out.spec.notification) continue;
    // The end was told in time, perhaps before the target's word.
    const bool unknown = out.delivery == Delivery::kUnknown;
    const bool delivered = out.delivery == Delivery::kDelivered;
    Require(unknown || truth_[t].delivered == delivered, "delivered or lost against its end",
            out.id);
  }
  Require(sender_->size() == 0, "at rest, but the initiator remembers", sender_->size());
  const SlotPool& pool = ProtocolModelAccess::Pool(*sender_);
  Require(pool.available() == pool.granted(), "at rest, but slots are in use",
          pool.granted() - pool.available());
  const size_t remembered = ProtocolModelAccess::Remembered(*receiver_);
  Require(remembered == 0, "at rest, but the target remembers", remembered);
  return error_.empty();
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
  // What went down with a rail goes again once the initiator knows that the rail is fenced.
  const bool failed = std::ranges::any_of(rails_, &Rail::failed);
  for (size_t t = 0; t < out_.size(); ++t) {
    const Outbound& out = out_[t];
    const Truth& truth = truth_[t];
    const SendTracker::Transfer* const sending = Sending(static_cast<uint8_t>(t));
    const bool all_reported = sending != nullptr && sending->opened() && out.discarded.empty() &&
                              !failed && out.frames == truth.frames &&
                              ProtocolModelAccess::AllReported(sending->book());
    if (all_reported && !truth.aborted && !InFlight(static_cast<uint8_t>(t))) {
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

// Of what the initiator copies its ops alone land.
bool World::CanLand(uint8_t transfer) const {
  return InFlight(transfer) || !out_[transfer].posted.empty();
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

}  // namespace kvxfer::testing
