#include "src/agent/engine/transfer_group.h"

#include <algorithm>
#include <utility>

#include "src/core/base/strings.h"

namespace kvxfer::internal {
namespace {

// What is known of a group's notifications: the common state of its members, or else the least
// certain one.
Delivery Least(Delivery a, Delivery b) {
  const auto rank = [](Delivery delivery) {
    switch (delivery) {
      case Delivery::kUnknown:
        return 0;
      case Delivery::kPending:
        return 1;
      case Delivery::kNotDelivered:
        return 2;
      case Delivery::kDelivered:
        return 3;
      case Delivery::kNone:
        return 4;
    }
    return 0;
  };
  return rank(a) < rank(b) ? a : b;
}

}  // namespace

bool TransferGroup::OnEnd(const TransferRecord& member, const TransferRecord::End& end) {
  --active_;
  if (end.quarantined) ++quarantined_;
  end_.delivery = Least(end_.delivery, end.delivery);
  TransferStats& sum = end_.stats;
  sum.bytes += end.stats.bytes;
  sum.blocks += end.stats.blocks;
  sum.slices += end.stats.slices;
  // The members run at the same time: the group's times are the longest ones, not sums.
  sum.queued = std::max(sum.queued, end.stats.queued);
  sum.wire = std::max(sum.wire, end.stats.wire);
  sum.total = std::max(sum.total, end.stats.total);
  if (sum.path.find(end.stats.path) == std::string::npos) {
    sum.path += (sum.path.empty() ? "" : ",") + end.stats.path;
  }
  // Only the first failure decides how the group ends.
  if (end.state == TransferState::kDone || end_.state != TransferState::kDone) return false;
  end_.state = end.state;
  end_.status = Annotate(end.status, absl::StrCat("rank ", member.peer));
  return active_ > 0;
}

TransferRecord::End TransferGroup::TakeEnd() {
  end_.quarantined = quarantined_ > 0;
  return std::move(end_);
}

}  // namespace kvxfer::internal
