// From the queue to OPEN: admitting transfers, cutting slices, posting them on rails, control out.
#include <algorithm>

#include "src/agent/session/peer.h"
#include "src/core/base/strings.h"
#include "src/core/protocol/slot_table.h"

namespace kvxfer {
namespace {

// What is larger goes by itself: carrying copies.
constexpr size_t kMaxPiggybackBytes = 8 * 1024;

}  // namespace

// Transfers leave the queue in the order of posting, whatever their priority: order numbers are
// given out here, and priority only says whose data goes first.
void Peer::Admit(Time now) {
  waits_key_ = false;
  while (!queue_.idle() && active_.size() < runtime_->options.max_active_transfers) {
    const TransferPtr record = queue_.front();
    auto link = paths_.LinkFor(*record, now);
    if (link.ok() && *link == nullptr) return;
    if (link.ok() && !HasCredit(record->options)) return;
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

bool Peer::HasCredit(const TransferOptions& options) const {
  if (!options.notification.has_value()) return true;
  return credit_used_.notifications < credit_.notifications &&
         credit_used_.bytes + options.notification->size() <= credit_.bytes;
}

// The target never had the notification, or dropped it with the transfer.
void Peer::ReturnCredit(const TransferOptions& options) {
  if (!options.notification.has_value()) return;
  --credit_used_.notifications;
  credit_used_.bytes -= options.notification->size();
}

// Unavailable: the peer's word on one of the regions is still on its way; try again.
absl::Status Peer::Begin(const TransferPtr& record, Link* link) {
  if (record->fetch.has_value() && metadata_.max_version < kLeaseVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("peer ", metadata_.name, " speaks protocol version ", metadata_.max_version,
                     "; reads under a lease need version ", kLeaseVersion, ": update its kvxfer"));
  }
  Outbound& added = active_[record->id];
  const TransferOptions& options = record->options;
  added.record = record;
  added.link = link;
  added.holds_layer_stream = record->layer_stream != 0;
  if (record->kind != TransferKind::kNotify) {
    if (auto status = ResolveRegions(added); !status.ok()) {
      active_.erase(record->id);
      return status;
    }
  }
  if (options.notification.has_value()) {
    ++credit_used_.notifications;
    credit_used_.bytes += options.notification->size();
    if (options.order == NotifyOrder::kPosted) added.order = ++last_order_;
  }
  if (record->fetch.has_value()) {
    added.fetch = Outbound::Fetch::kBeginning;
    PushLeaseRead(*record);
  }
  link->ping_at = std::min(link->ping_at, runtime_->now + runtime_->options.heartbeat);
  if (record->blocks.total_bytes() == 0) {
    if (record->after != nullptr) {
      StartSending(added);
      return absl::OkStatus();
    }
    added.all_posted = true;
    ReleaseLayerStream(added);
    Advance(added);
    return absl::OkStatus();
  }
  Capabilities capabilities = runtime_->backends[link->backend]->capabilities();
  if (added.staged) {
    capabilities.arrival = Arrival::kCopied;
    capabilities.max_op_bytes = Staging::kBufferBytes;
    capabilities.max_op_pieces = Stager::kMaxPieces;
    paths_.TellStaged(*record, *link);
  }
  std::optional<LaneBook> lanes;
  if (record->kind == TransferKind::kWrite && capabilities.arrival == Arrival::kImmediate) {
    lanes.emplace(link->choice.size(), capabilities.rail_keeps_order);
  }
  added.book = SendBook(std::move(lanes));
  added.blocks = record->blocks.View(added.registrations, added.keys);
  added.walk = SliceWalk(&added.blocks);
  added.limits = {.max_bytes = SliceBytes(record->blocks.total_bytes(), link->choice.size(),
                                          capabilities.max_op_bytes),
                  .max_pieces = capabilities.max_op_pieces,
                  .merged = capabilities.max_op_pieces <= kFewPieces};
  StartSending(added);
  return absl::OkStatus();
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
  for (const auto& [id, outbound] : active_) {
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
      const Turn turn = TakeTurn(*outbound, now);
      if (turn == Turn::kFinished) {
        sending_.erase(first);
        --end;
        idle = 0;
        outbound->all_posted = true;
        ReleaseLayerStream(*outbound);
        Advance(*outbound);
        continue;
      }
      if (turn == Turn::kEnded) {
        --end;
        idle = 0;
        continue;
      }
      std::rotate(first, first + 1, sending_.begin() + static_cast<std::ptrdiff_t>(end));
      idle = turn == Turn::kPosted ? 0 : idle + 1;
    }
    begin = end;
  }
}

// None: the application does not hold it back.
std::optional<Peer::Turn> Peer::HeldBack(Outbound& outbound) {
  const internal::TransferRecord& record = *outbound.record;
  const auto* ready = record.options.ready;
  if (ready != nullptr && ready->load(std::memory_order_acquire) == 0) {
    waits_ready_ = true;
    return Turn::kBlocked;
  }
  if (record.after == nullptr) return std::nullopt;
  const auto passed = points_.Passed(*record.after);
  if (passed.ok()) return *passed ? std::nullopt : std::optional(Turn::kBlocked);
  EndSoon(
      outbound, TransferState::kFailed,
      Annotate(passed.status(), absl::StrCat("transfer ", record.id, " to peer ", metadata_.name)));
  return Turn::kEnded;
}

Peer::Turn Peer::TakeTurn(Outbound& outbound, Time now) {
  if (const auto held_back = HeldBack(outbound)) return *held_back;
  if (outbound.record->blocks.total_bytes() == 0) return Turn::kFinished;
  const bool waits_begin = outbound.fetch == Outbound::Fetch::kBeginning;
  const bool full = outbound.link->full && !outbound.staged;
  if (waits_begin || full || !outbound.unexplained.empty()) return Turn::kBlocked;
  if (!outbound.book.posted()) {
    if (outbound.prepared == 0 && !Prepare(outbound)) return Turn::kPosted;
    const bool posted = outbound.staged ? PostStaged(outbound) : PostPrepared(outbound);
    if (!posted) return Turn::kBlocked;
    // Another thread may have posted it after this round began.
    if (outbound.first_post == Time{}) outbound.first_post = std::max(now, outbound.record->posted);
    if (!outbound.book.posted()) return Turn::kPosted;
  }
  return CloseLanes(outbound) ? Turn::kFinished : Turn::kBlocked;
}

// By priority, then posting.
void Peer::StartSending(Outbound& outbound) {
  if (std::ranges::find(sending_, &outbound) != sending_.end()) return;
  outbound.all_posted = false;
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
  SendBook& book = outbound.book;
  const bool fresh = !book.cut_all();
  SendBook::Slice slice{.number = book.cut()};
  if (!fresh) slice = book.Next();
  if (slice.number != kNoSlice &&
      !outbound.walk.StepTo(slice.number, outbound.limits, &op.blocks)) {
    runtime_->ops.Release(id);
    return false;
  }
  outbound.slice = fresh ? book.Cut(outbound.walk.done()) : slice;
  op.slice = slice.number;
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
  if (const auto bound = outbound.book.BoundTo(outbound.slice)) {
    return link.rails.up(*bound) && PostPreparedOn(outbound, entry, *bound);
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
    if (!outbound.book.OpenLane(outbound.slice, rail, slots_, outbound.record->id)) {
      RequestSlots();
      refused = false;
      continue;
    }
    if (PostPreparedOn(outbound, entry, rail)) return true;
  }
  link.full = refused;
  return false;
}

bool Peer::PostPreparedOn(Outbound& outbound, OpTable::Entry& entry, uint32_t rail) {
  Link& link = *outbound.link;
  SendBook& book = outbound.book;
  Op op{.kind = outbound.record->kind == TransferKind::kRead ? OpKind::kRead : OpKind::kWrite,
        .sole = outbound.slices == 0 && book.counted() && book.IsLast(outbound.slice) &&
                !book.awaits_discarded(),
        .rail = rail,
        .id = outbound.prepared,
        .transfer = outbound.record->id,
        .blocks = entry.blocks};
  const auto immediate = book.ImmediateFor(outbound.slice, rail);
  op.has_immediate = immediate.has_value();
  op.immediate = immediate.value_or(0);
  entry.rail = rail;
  entry.sole = op.sole;
  if (!PostOn(outbound, op)) return false;
  inline_data_ |= op.sole;
  if (outbound.slices == 0) {
    outbound.alone =
        link.seen->idle() && outbound.record->blocks.total_bytes() <= PathMeasure::kSmallTransfer;
  }
  link.choice.OnPosted(rail, entry.blocks.bytes, runtime_->now);
  link.seen->OnPosted(entry.blocks.bytes, runtime_->now);
  if (!book.counted() && link.choice.in_flight(rail) <= kInlineCopyBytes &&
      runtime_->backends[link.backend]->capabilities().arrival == Arrival::kCopied) {
    ++runtime_->copied;
  }
  ++outbound.slices;
  outbound.prepared = 0;
  if (outbound.record->blocks.total_bytes() < runtime_->options.stripe_from) outbound.home = rail;
  book.OnPosted(outbound.slice, rail);
  return true;
}

bool Peer::CloseLanes(Outbound& outbound) {
  while (const auto closing = outbound.book.NextToClose()) {
    // That of a failed rail will be discarded.
    if (!outbound.link->rails.up(closing->rail)) return false;
    const uint64_t id = runtime_->ops.Acquire(&outbound);
    runtime_->ops.Find(id)->rail = closing->rail;
    const Op op{.has_immediate = true,
                .rail = closing->rail,
                .immediate = closing->immediate,
                .id = id,
                .transfer = outbound.record->id};
    if (!PostOn(outbound, op)) {
      runtime_->ops.Release(id);
      return false;
    }
    outbound.book.OnClosed(closing->rail);
  }
  return true;
}

bool Peer::PostOn(Outbound& outbound, const Op& op) {
  if (!outbound.link->endpoint->Post(op)) return false;
  outbound.link->rails.OnAccepted(op.rail);
  ++outbound.ops;
  return true;
}

void Peer::RequestSlots() {
  if (std::exchange(slots_requested_, true)) return;
  channel_.Push(FrameType::kSlotRequest, SlotRequestFrame{.count = kRangeSlots});
}

void Peer::PushOpen(Outbound& outbound) {
  const auto& options = outbound.record->options;
  OpenFrame open{
      .transfer = outbound.record->id,
      .order = outbound.order,
      .notice = options.notification.has_value() ? outbound.record->notice : Notice::kNone,
      .notification = options.notification.value_or("")};
  open.lanes = outbound.book.TellAll();
  outbound.opened = true;
  channel_.Push(FrameType::kOpen, open);
}

// Nothing is read before the answer: the lease may be granted only now, by a name that the reader
// knew before.
void Peer::PushLeaseRead(const internal::TransferRecord& record) {
  const Duration within = std::max<Duration>(record.deadline - runtime_->now, Duration::zero());
  const Duration wait = std::max<Duration>(record.fetch->wait, Duration::zero());
  channel_.Push(FrameType::kLeaseRead,
                LeaseReadFrame{.transfer = record.id,
                               .lease = record.fetch->lease,
                               .contents = record.fetch->contents,
                               .blocks_hash = record.fetch->blocks_hash,
                               .within_nanos = static_cast<uint64_t>(within.count()),
                               .wait_nanos = static_cast<uint64_t>(wait.count())});
}

// One new lane for each that was discarded after OPEN had named it.
void Peer::PushAmend(Outbound& outbound) {
  const AmendFrame amend{.transfer = outbound.record->id, .lanes = outbound.book.TellNew()};
  if (!amend.lanes.empty()) channel_.Push(FrameType::kAmend, amend);
}

// Where the peer writes to this agent too, the next frame goes together with what the peer waits to
// be told: an acknowledgement by itself costs both sides a system call, and the peer perhaps a
// wake-up. They take the connection over which the peer spoke last, so that a conversation stays on
// one (tcp then acknowledges with its answers), but for frames whose data goes over `link`.
// False: no room.
bool Peer::SendPiggybacked(Link& link) {
  const std::string* mine = channel_.NextToSend();
  if (mine == nullptr || mine->size() > kMaxPiggybackBytes) return true;
  const ReverseSession::Piggyback piggyback =
      runtime_->reverse_session->PiggybackTo(metadata_.incarnation);
  if (piggyback.channel == nullptr) return true;
  const std::string* theirs = piggyback.channel->NextToSend();
  if (theirs->size() > kMaxPiggybackBytes) return true;
  const bool back = piggyback.endpoint != nullptr && !inline_data_ && piggyback.heard > link.heard;
  if (!back && !link.carries) return true;
  const std::string message =
      back ? EncodePiggyback(piggyback.channel->received(), session_, *mine, *theirs)
           : EncodePiggyback(channel_.received(), piggyback.session, *theirs, *mine);
  Endpoint& endpoint = back ? *piggyback.endpoint : *link.endpoint;
  // What waits for the other connection's room may still go over this one.
  if (!endpoint.Send(std::as_bytes(std::span(message)))) return back;
  channel_.MessageSent();
  piggyback.channel->MessageSent();
  (back ? *piggyback.carried : link.carried) = true;
  return true;
}

void Peer::FlushControl() {
  SendRailFences();
  Link* link = paths_.UpLink();
  if (link == nullptr || !SendPiggybacked(*link)) return;
  inline_data_ = false;
  SendKept(channel_, *link->endpoint);
}

}  // namespace kvxfer
