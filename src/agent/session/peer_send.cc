// From the queue to OPEN: admitting transfers, cutting slices, posting them on rails, control out.
#include <algorithm>

#include "src/agent/session/peer.h"
#include "src/core/base/strings.h"
#include "src/core/protocol/slot_table.h"

namespace kvxfer {
namespace {

// What is larger goes by itself: carrying copies.
constexpr size_t kMaxPiggybackBytes = 8 * 1024;

const std::string* NotificationOf(const internal::TransferRecord& record) {
  const auto& notification = record.options.notification;
  return notification.has_value() ? &*notification : nullptr;
}

}  // namespace

// Transfers leave the queue in the order of posting, whatever their priority: order numbers are
// given out here, and priority only says whose data goes first.
void Peer::Admit(Time now) {
  waits_key_ = false;
  while (!queue_.idle() && active_.size() < runtime_->options.max_active_transfers) {
    const TransferPtr record = queue_.front();
    auto link = paths_.LinkFor(*record, now);
    if (link.ok() && *link == nullptr) return;
    if (link.ok() && !tracker_.HasCredit(NotificationOf(*record))) return;
    absl::Status status = link.ok() ? Begin(record, *link) : link.status();
    if (link.ok() && absl::IsUnavailable(status)) {
      waits_key_ = true;
      return;
    }
    if (link.ok() && !status.ok() && !PathSet::WhyBeyond(**link, *record).ok())
      continue;  // another way
    queue_.Pop();
    if (status.ok()) continue;
    if (record->layer_stream != 0) queue_.NextOf(record->layer_stream);
    FailQueued(record, TransferState::kFailed, std::move(status));
  }
}

// Unavailable: the peer's word on one of the regions is still on its way; try again.
absl::Status Peer::Begin(const TransferPtr& record, Link* link) {
  Outbound& added = NewOutbound();
  const TransferOptions& options = record->options;
  added.record = record;
  added.link = link;
  added.holds_layer_stream = record->layer_stream != 0;
  if (record->kind != TransferKind::kNotify) {
    if (auto status = ResolveRegions(added); !status.ok()) {
      Erase(added);
      return status;
    }
  }
  link->ping_at = std::min(link->ping_at, runtime_->now + runtime_->options.heartbeat);
  SendTracker::Request request{
      .id = record->id,
      .link = link->number,
      .moves = record->blocks.total_bytes() > 0,
      .held = record->blocks.total_bytes() == 0 && record->after != nullptr,
      .ordered = options.notification.has_value() && options.order == NotifyOrder::kPosted,
      .notice = record->notice,
      .notification = NotificationOf(*record),
      .lease = record->fetch.has_value() ? &*record->fetch : nullptr,
      .posted = record->posted,
      .deadline = record->deadline,
      .staged = added.staged,
      .may_hang = record->cuda && !added.staged && CopiesItself(*link),
      .context = &added};
  if (request.moves) request.lanes = PrepareData(added);
  const bool posts = request.moves || request.held;
  added.sending = &tracker_.Begin(std::move(request), runtime_->now);
  if (posts) {
    StartSending(added);
  } else {
    ReleaseLayerStream(added);
  }
  return absl::OkStatus();
}

// How its bytes are cut into slices. Returns the lanes, where the target counts arrivals.
std::optional<LaneBook> Peer::PrepareData(Outbound& outbound) {
  const internal::TransferRecord& record = *outbound.record;
  const Link& link = *outbound.link;
  Capabilities capabilities = runtime_->backends[link.backend]->capabilities();
  if (outbound.staged) {
    capabilities.arrival = Arrival::kCopied;
    capabilities.max_op_bytes = Staging::kBufferBytes;
    capabilities.max_op_pieces = Stager::kMaxPieces;
    paths_.TellStaged(record, link);
  }
  outbound.blocks = record.blocks.View(outbound.registrations, outbound.keys);
  outbound.walk = SliceWalk(&outbound.blocks);
  outbound.limits = {.max_bytes = SliceBytes(record.blocks.total_bytes(), link.choice.size(),
                                             capabilities.max_op_bytes),
                     .max_pieces = capabilities.max_op_pieces,
                     .merged = capabilities.max_op_pieces <= kFewPieces};
  const bool counted =
      record.kind == TransferKind::kWrite && capabilities.arrival == Arrival::kImmediate;
  if (!counted) return std::nullopt;
  return LaneBook(link.choice.size(), capabilities.rail_keeps_order);
}

// Looks up, once a transfer, what each of its regions is called by the backend at both ends.
absl::Status Peer::ResolveRegions(Outbound& outbound) {
  const auto& record = *outbound.record;
  const size_t backend = outbound.link->backend;
  if (record.incarnation != metadata_.incarnation) {
    return absl::FailedPreconditionError(
        absl::StrCat("peer ", metadata_.name, " was replaced by a new incarnation"));
  }
  outbound.registrations.resize(record.local->regions().size());
  outbound.keys.resize(record.remote->regions().size());
  outbound.staged = paths_.Stages(*outbound.link, record);
  if (outbound.staged) {
    for (uint32_t index : record.blocks.local_regions()) {
      outbound.registrations[index] = StagedLocal(record, index);
    }
    for (uint32_t index : record.blocks.remote_regions()) {
      auto key = StagedRemote(record.remote->regions()[index]);
      if (!key.ok()) return key.status();
      outbound.keys[index] = *key;
    }
    return absl::OkStatus();
  }
  for (uint32_t index : record.blocks.local_regions()) {
    const RegionId id = record.local->regions()[index].id;
    outbound.registrations[index] = runtime_->memory.Find(id, backend);
    if (outbound.registrations[index] == nullptr) {
      return absl::FailedPreconditionError(absl::StrCat(
          "local region ", static_cast<uint32_t>(id), " is not registered with backend ",
          ToAbsl(runtime_->backends[backend]->name())));
    }
  }
  for (uint32_t index : record.blocks.remote_regions()) {
    auto key = KeyOf(*outbound.link, record.remote->regions()[index].id);
    if (!key.ok()) return key.status();
    outbound.keys[index] = *key;
  }
  return absl::OkStatus();
}

// A transfer may have been posted before its region was revoked, and begin after: no key is made
// for it, for DropKeys may have been here.
absl::StatusOr<const RemoteKey*> Peer::KeyOf(Link& link, RegionId id) {
  const auto known = regions_.Live(id);
  if (!known.ok()) return known.status();
  if (const auto it = link.keys.find(id); it != link.keys.end()) return it->second.get();
  const AgentMetadata::Region& region = **known;
  const auto extra = region.keys.find(std::string(runtime_->backends[link.backend]->name()));
  auto key = link.endpoint->Import(region.region,
                                   extra == region.keys.end() ? std::string_view() : extra->second);
  if (!key.ok()) {
    absl::Status why = Annotate(key.status(), absl::StrCat("region ", static_cast<uint32_t>(id),
                                                           " of peer ", metadata_.name));
    // Not yet here, or wrong metadata, are no reason to go another way.
    const bool beyond = region.region.kind == MemoryKind::kCuda && !absl::IsUnavailable(why) &&
                        !absl::IsInvalidArgument(why);
    if (beyond) link.beyond.emplace(id, why);
    return why;
  }
  return link.keys.emplace(id, *std::move(key)).first->second.get();
}

// Closes the keys of regions that are no more, once no transfer uses them: where memory is mapped,
// the key is the mapping, and keeps the pages of a region that its owner has freed.
void Peer::DropDeadKeys() {
  std::unordered_set<const RemoteKey*> used;
  for (const Outbound& outbound : active_) {
    used.insert(outbound.keys.begin(), outbound.keys.end());
  }
  const auto dead = [&](RegionId id, const RemoteKey* key) {
    return !regions_.Usable(id) && !used.contains(key);
  };
  paths_.ForEachLink([&](Link& link) {
    std::erase_if(link.keys,
                  [&](const auto& entry) { return dead(entry.first, entry.second.get()); });
  });
  std::erase_if(staged_keys_,
                [&](const auto& entry) { return dead(RegionId{entry.first}, &entry.second); });
}

// Of regions that no transfer uses.
void Peer::DropKeys(std::span<const uint32_t> regions) {
  for (const uint32_t region : regions) {
    paths_.ForEachLink([region](Link& link) { link.keys.erase(RegionId{region}); });
    staged_keys_.erase(region);
  }
}

// Transfers of one priority take turns, a slice each, so that a large one does not hold up a small
// one; a lower priority gets what the higher ones cannot use.
void Peer::SendData(Time now) {
  waits_ready_ = false;
  points_.BeginRound(now);
  if (sending_.empty()) return;
  paths_.ForEachLink([](Link& link) { link.full = false; });
  size_t begin = 0;
  while (begin < sending_.size()) {
    const int priority = sending_[begin]->record->options.priority;
    size_t end = begin;
    while (end < sending_.size() && sending_[end]->record->options.priority == priority) ++end;
    size_t idle = 0;  // turns in a row that moved nothing
    while (idle < end - begin) {
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
bool Peer::HeldBack(Outbound& outbound) {
  const internal::TransferRecord& record = *outbound.record;
  const auto* ready = record.options.ready;
  if (ready != nullptr && ready->load(std::memory_order_acquire) == 0) {
    waits_ready_ = true;
    return true;
  }
  if (record.after == nullptr) return false;
  const auto passed = points_.Passed(*record.after);
  if (passed.ok()) return !*passed;
  tracker_.End(
      *outbound.sending, TransferState::kFailed,
      Annotate(passed.status(), absl::StrCat("transfer ", record.id, " to peer ", metadata_.name)),
      EndCause::kStopped, Now());
  return true;
}

bool Peer::TakeTurn(Outbound& outbound, Time now) {
  if (HeldBack(outbound)) return false;
  SendTracker::Transfer& sending = *outbound.sending;
  if (outbound.record->blocks.total_bytes() == 0) {
    tracker_.Unhold(sending);
    return false;
  }
  // A slice of a lane that was taken back.
  if (!sending.prepared()) DropPrepared(outbound);
  if (outbound.link->full && !outbound.staged) return false;
  const bool may = tracker_.MayPost(sending);
  if (may) {
    if (outbound.prepared == 0 && !Prepare(outbound)) return true;
    if (!(outbound.staged ? PostStaged(outbound) : PostPrepared(outbound))) return false;
    // Another thread may have posted it after this round began.
    if (outbound.first_post == Time{}) outbound.first_post = std::max(now, outbound.record->posted);
  }
  CloseLanes(outbound);
  return tracker_.FinishPosting(sending) || may;
}

// By priority, then posting.
void Peer::StartSending(Outbound& outbound) {
  if (std::ranges::find(sending_, &outbound) != sending_.end()) return;
  const auto later = std::ranges::find_if(sending_, [&](const Outbound* other) {
    return other->record->options.priority < outbound.record->options.priority;
  });
  sending_.insert(later, &outbound);
}

void Peer::ReleaseLayerStream(Outbound& outbound) {
  if (!std::exchange(outbound.holds_layer_stream, false)) return;
  layer_stream_moved_ |= queue_.NextOf(outbound.record->layer_stream);
}

// False: the walk to the next slice has not come there yet.
bool Peer::Prepare(Outbound& outbound) {
  const uint64_t id = runtime_->ops.Acquire(&outbound);
  OpTable::Entry& op = *runtime_->ops.Find(id);
  op.slice = SendTracker::NextSlice(*outbound.sending);
  if (op.slice != kNoSlice && !outbound.walk.StepTo(op.slice, outbound.limits, &op.blocks)) {
    runtime_->ops.Release(id);
    return false;
  }
  SendTracker::Prepare(*outbound.sending, outbound.walk.done());
  outbound.prepared = id;
  return true;
}

// An op's memory is where its first block is; most ops of a transfer are in one region.
std::span<const uint32_t> Peer::DistancesFor(Outbound& outbound, const BlockRange& blocks) {
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

// Offers the prepared op to the rails that are up, the best first.
bool Peer::PostPrepared(Outbound& outbound) {
  Link& link = *outbound.link;
  OpTable::Entry& entry = *runtime_->ops.Find(outbound.prepared);
  if (const auto bound = SendTracker::BoundTo(*outbound.sending)) {
    if (!link.rails.up(*bound)) return false;
    const auto offered = tracker_.Offer(*outbound.sending, *bound);
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
    const auto offered = tracker_.Offer(*outbound.sending, rail);
    if (!offered.has_value()) {
      refused = false;
      continue;
    }
    if (PostPreparedOn(outbound, entry, rail, *offered)) return true;
  }
  link.full = refused;
  return false;
}

bool Peer::PostPreparedOn(Outbound& outbound, OpTable::Entry& entry, uint32_t rail,
                          const SendTracker::Offered& offered) {
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
  inline_data_ |= op.sole;
  if (sending.slices() == 0) {
    outbound.alone =
        link.seen->idle() && outbound.record->blocks.total_bytes() <= PathMeasure::kSmallTransfer;
  }
  link.choice.OnPosted(rail, entry.blocks.bytes, runtime_->now);
  link.seen->OnPosted(entry.blocks.bytes, runtime_->now);
  if (!sending.counted() && link.choice.in_flight(rail) <= kInlineCopyBytes &&
      runtime_->backends[link.backend]->capabilities().arrival == Arrival::kCopied) {
    ++runtime_->copied;
  }
  outbound.prepared = 0;
  if (outbound.record->blocks.total_bytes() < runtime_->options.stripe_from) outbound.home = rail;
  SendTracker::OnAccepted(sending, rail);
  return true;
}

void Peer::CloseLanes(Outbound& outbound) {
  while (const auto closing = SendTracker::NextToClose(*outbound.sending)) {
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
    SendTracker::OnClosed(*outbound.sending, closing->rail);
  }
}

bool Peer::PostOn(Outbound& outbound, const Op& op) {
  if (!outbound.link->endpoint->Post(op)) return false;
  outbound.link->rails.OnAccepted(op.rail);
  return true;
}

// Where the peer writes to this agent too, the next frame goes together with what the peer waits to
// be told: an acknowledgement by itself costs both sides a system call, and the peer perhaps a
// wake-up. They take the connection over which the peer spoke last, so that a conversation stays on
// one (tcp then acknowledges with its answers), but for frames whose data goes over `link`.
// False: no room.
bool Peer::SendPiggybacked(Link& link) {
  ReliableChannel& channel = session_.channel();
  const std::string* mine = channel.NextToSend();
  if (mine == nullptr || mine->size() > kMaxPiggybackBytes) return true;
  const ReverseSession::Piggyback piggyback =
      runtime_->reverse_session->PiggybackTo(metadata_.incarnation);
  if (piggyback.channel == nullptr) return true;
  const std::string* theirs = piggyback.channel->NextToSend();
  if (theirs->size() > kMaxPiggybackBytes) return true;
  const bool back = piggyback.endpoint != nullptr && !inline_data_ && piggyback.heard > link.heard;
  const std::string message =
      back ? EncodePiggyback(piggyback.channel->received(), session_.number(), *mine, *theirs)
           : EncodePiggyback(channel.received(), piggyback.session, *theirs, *mine);
  Endpoint& endpoint = back ? *piggyback.endpoint : *link.endpoint;
  // What waits for the other connection's room may still go over this one.
  if (!endpoint.Send(std::as_bytes(std::span(message)))) return back;
  channel.MessageSent();
  piggyback.channel->MessageSent();
  (back ? *piggyback.carried : link.carried) = true;
  return true;
}

void Peer::FlushControl() {
  SendRailFences();
  Link* link = paths_.UpLink();
  if (link == nullptr || !SendPiggybacked(*link)) return;
  inline_data_ = false;
  SendKept(session_.channel(), *link->endpoint);
}

}  // namespace kvxfer
