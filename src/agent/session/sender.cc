#include "src/agent/session/sender.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/core/base/strings.h"

namespace kvxfer {
namespace {

// An op's memory is where its first block is; most ops of a transfer are in one region.
std::span<const uint32_t> DistancesFor(Outbound& outbound, const BlockRange& blocks) {
  const Link& link = *outbound.link;
  if (link.choice.size() < 2 || blocks.bytes == 0) return {};
  const BlockView& view = *blocks.view;
  uint32_t local = 0;
  uint32_t remote = 0;
  if (view.pairs.empty()) {
    local = view.descriptors[blocks.first.id].local_region;
    remote = view.descriptors[blocks.first.id].remote_region;
  } else {
    local = view.pairs[blocks.first.pair].local_region;
    remote = view.pairs[blocks.first.pair].remote_region;
  }
  const Registration* const registration = view.registrations[local];
  const RemoteKey* const key = view.keys[remote];
  Outbound::Distances& known = outbound.distances;
  if (known.local == registration && known.remote == key) return known.of_rails;
  known.local = registration;
  known.remote = key;
  known.of_rails.clear();
  for (uint32_t rail = 0; rail < link.choice.size(); ++rail) {
    known.of_rails.push_back(link.endpoint->rail_distance(rail, *registration, *key));
  }
  return known.of_rails;
}

}  // namespace

// By priority, then posting.
void Sender::Start(Outbound& outbound) {
  if (std::ranges::find(sending_, &outbound) != sending_.end()) return;
  const auto later = std::ranges::find_if(sending_, [&](const Outbound* other) {
    return other->record->options.priority < outbound.record->options.priority;
  });
  sending_.insert(later, &outbound);
}

void Sender::ReleaseLayerStream(Outbound& outbound) {
  if (outbound.TakeLayerStream()) user_->OnLayerPosted(outbound.record->layer_stream);
}

void Sender::Stop(Outbound& outbound) {
  std::erase(sending_, &outbound);
  ReleaseLayerStream(outbound);
  DropPrepared(outbound);
}

void Sender::Post(Time now, size_t most) {
  waits_ready_ = false;
  points_.BeginRound(now);
  if (sending_.empty()) return;
  for (Outbound* const outbound : sending_) {
    if (outbound->link != nullptr) outbound->link->full = false;
  }
  size_t begin = 0;
  while (begin < sending_.size()) {
    const int priority = sending_[begin]->record->options.priority;
    size_t end = begin;
    while (end < sending_.size() && sending_[end]->record->options.priority == priority) ++end;
    size_t idle = 0;  // turns in a row that moved nothing
    while (idle < end - begin) {
      if (done_.size() >= most) return;
      Outbound* outbound = sending_[begin];
      const auto first = sending_.begin() + static_cast<std::ptrdiff_t>(begin);
      const bool posted = TakeTurn(*outbound, now);
      if (!outbound->sending->unposted()) {
        sending_.erase(first);
        --end;
        idle = 0;
        ReleaseLayerStream(*outbound);
        continue;
      }
      std::rotate(first, first + 1, sending_.begin() + static_cast<std::ptrdiff_t>(end));
      idle = posted ? 0 : idle + 1;
    }
    begin = end;
  }
}

// Whether the application holds it back. Where what it waits for has failed, it ends.
bool Sender::HeldBack(Outbound& outbound) {
  const internal::TransferRecord& record = *outbound.record;
  const auto* ready = record.options.ready;
  if (ready != nullptr && ready->load(std::memory_order_acquire) == 0) {
    waits_ready_ = true;
    return true;
  }
  if (record.after == nullptr) return false;
  const auto passed = points_.Passed(*record.after);
  if (passed.ok()) return !*passed;
  tracker_->End(
      *outbound.sending, TransferState::kFailed,
      Annotate(passed.status(), absl::StrCat("transfer ", record.id, " to peer ", record.peer)),
      EndCause::kStopped, Now());
  return true;
}

bool Sender::PostOn(const Outbound& outbound, const Op& op) {
  const Posted posted = outbound.link->endpoint->Post(op);
  if (!posted) return false;
  outbound.link->rails.OnAccepted(op.rail);
  if (posted.done()) done_.push_back(op.id);
  return true;
}

void Sender::TakeDone(std::vector<uint64_t>& done) {
  done.clear();
  done.swap(done_);
}

bool Sender::TakeTurn(Outbound& outbound, Time now) {
  if (HeldBack(outbound)) return false;
  SendTracker::Transfer& sending = *outbound.sending;
  if (outbound.record->blocks.total_bytes() == 0) {
    tracker_->Unhold(sending);
    return false;
  }
  // A slice of a lane that was taken back.
  if (!sending.prepared().has_value()) DropPrepared(outbound);
  if (outbound.link->full && !outbound.staged) return false;
  const bool may = sending.MayPost();
  if (may) {
    if (outbound.prepared == 0 && !Prepare(outbound)) return true;
    if (!(outbound.staged ? PostStaged(outbound) : PostPrepared(outbound))) return false;
    // Another thread may have posted it after this round began.
    if (outbound.first_post == Time{}) outbound.first_post = std::max(now, outbound.record->posted);
  }
  CloseLanes(outbound);
  return tracker_->FinishPosting(sending) || may;
}

// False: the walk to the next slice has not come there yet.
bool Sender::Prepare(Outbound& outbound) {
  const uint64_t id = runtime_->ops.Acquire(&outbound);
  OpTable::Entry& op = *runtime_->ops.Find(id);
  op.slice = outbound.sending->NextSlice();
  if (op.slice != kNoSlice && !outbound.walk.StepTo(op.slice, outbound.limits, &op.blocks)) {
    runtime_->ops.Release(id);
    return false;
  }
  outbound.sending->Prepare(outbound.walk.done());
  outbound.prepared = id;
  return true;
}

void Sender::DropPrepared(Outbound& outbound) {
  if (outbound.prepared == 0) return;
  runtime_->ops.Release(outbound.prepared);
  outbound.prepared = 0;
}

bool Sender::PostStaged(Outbound& outbound) {
  const OpTable::Entry& entry = *runtime_->ops.Find(outbound.prepared);
  if (!stager_->Post(outbound, outbound.prepared, entry.blocks)) return false;
  outbound.prepared = 0;
  outbound.sending->OnAccepted(0);
  return true;
}

// Offers the prepared op to the rails that are up, the best first.
bool Sender::PostPrepared(Outbound& outbound) {
  Link& link = *outbound.link;
  OpTable::Entry& entry = *runtime_->ops.Find(outbound.prepared);
  if (const auto bound = outbound.sending->BoundTo()) {
    if (!link.rails.up(*bound)) return false;
    const auto offered = outbound.sending->Offer(*bound, tracker_->slots());
    return offered.has_value() && PostPreparedOn(outbound, entry, *bound, *offered);
  }
  const std::span<const uint32_t> distances = DistancesFor(outbound, entry.blocks);
  uint64_t tried = 0;
  bool refused = true;  // by every rail, not for want of a slot
  while (true) {
    const bool at_home = tried == 0 && outbound.home != kNoRail && link.rails.up(outbound.home);
    const uint32_t rail =
        at_home ? outbound.home
                : link.choice.Pick(entry.blocks.bytes, link.rails.up() & ~tried, distances);
    if (rail == kNoRail) break;
    tried |= uint64_t{1} << rail;
    const auto offered = outbound.sending->Offer(rail, tracker_->slots());
    if (!offered.has_value()) {
      refused = false;
      continue;
    }
    if (PostPreparedOn(outbound, entry, rail, *offered)) return true;
  }
  link.full = refused;
  return false;
}

bool Sender::PostPreparedOn(Outbound& outbound, OpTable::Entry& entry, uint32_t rail,
                            const SendTransfer::Offered& offered) {
  Link& link = *outbound.link;
  SendTracker::Transfer& sending = *outbound.sending;
  const Op op{.kind = outbound.record->kind == TransferKind::kRead ? OpKind::kRead : OpKind::kWrite,
              .has_immediate = offered.immediate.has_value(),
              .sole = offered.sole,
              .rail = rail,
              .immediate = offered.immediate.value_or(0),
              .id = outbound.prepared,
              .transfer = outbound.record->id,
              .blocks = entry.blocks};
  entry.rail = rail;
  entry.sole = op.sole;
  if (!PostOn(outbound, op)) return false;
  if (op.sole) inline_link_ = &link;
  if (sending.slices() == 0) {
    outbound.alone =
        link.seen->idle() && outbound.record->blocks.total_bytes() <= PathMeasure::kSmallTransfer;
  }
  link.choice.OnPosted(rail, entry.blocks.bytes, runtime_->now);
  link.seen->OnPosted(entry.blocks.bytes, runtime_->now);
  outbound.prepared = 0;
  if (outbound.record->blocks.total_bytes() < runtime_->options.stripe_from) outbound.home = rail;
  sending.OnAccepted(rail);
  return true;
}

void Sender::CloseLanes(Outbound& outbound) {
  while (const auto closing = outbound.sending->NextToClose()) {
    // That of a failed rail will be discarded.
    if (!outbound.link->rails.up(closing->rail)) return;
    const uint64_t id = runtime_->ops.Acquire(&outbound);
    runtime_->ops.Find(id)->rail = closing->rail;
    const Op op{.has_immediate = true,
                .rail = closing->rail,
                .immediate = closing->immediate,
                .id = id,
                .transfer = outbound.record->id};
    if (!PostOn(outbound, op)) return runtime_->ops.Release(id);
    outbound.sending->OnClosed(closing->rail);
  }
}

}  // namespace kvxfer
