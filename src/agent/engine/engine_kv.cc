// Engine: KV caches, the transfers between them, requests and leases.
#include <algorithm>
#include <utility>
#include <vector>

#include "src/agent/engine/engine.h"
#include "src/agent/engine/transfer_group.h"
#include "src/core/base/strings.h"
#include "src/core/kv/kv_block_list.h"
#include "src/core/kv/kv_blocks_hash.h"
#include "src/core/kv/kv_group.h"
#include "src/core/kv/kv_tensors.h"

namespace kvxfer {
namespace {

constexpr std::string_view kThisAgent = "this agent";

absl::Status CheckKvOptions(TransferKind kind, const KvOptions& options) {
  for (const auto& [what, name] : {std::pair("KV request", &options.request.text),
                                   std::pair("KV lease", &options.lease.text)}) {
    if (name->empty()) continue;
    if (absl::Status named = CheckName(what, *name); !named.ok()) return named;
  }
  if (options.lease_contents.size() > kMaxNameBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("KvOptions::lease_contents has at most ", kMaxNameBytes, " bytes"));
  }
  if (options.lease.empty() &&
      (!options.lease_contents.empty() || options.lease_wait > Duration::zero())) {
    return absl::InvalidArgumentError(
        "KvOptions::lease_contents and lease_wait belong to a lease: name it in KvOptions::lease");
  }
  if (options.transfer.notification.has_value() &&
      options.transfer.notification->size() > kMaxKvNotificationBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("notification of ", options.transfer.notification->size(),
                     " bytes is larger than ", kMaxKvNotificationBytes));
  }
  if (kind == TransferKind::kRead) {
    if (options.request.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError("ReadBlocks takes no request: nobody waits for its parts");
  }
  if (!options.lease.empty()) {
    return absl::InvalidArgumentError("WriteBlocks takes no lease: the target owns the blocks");
  }
  if (options.transfer.notification.has_value() && options.request.empty()) {
    return absl::InvalidArgumentError(
        "WriteBlocks notifies of a request: give it a name, KvOptions::request");
  }
  return absl::OkStatus();
}

absl::StatusOr<const KvCacheInfo*> FindCache(const KvCacheTable& caches, std::string_view name,
                                             std::string_view whose) {
  const auto it = caches.find(name);
  return it != caches.end() ? absl::StatusOr<const KvCacheInfo*>(&it->second)
                            : NoKvCache(whose, name);
}

// What is asked for: all heads of some layers, which are checked against those of the model.
absl::StatusOr<KvRange> AskedFor(const KvBlocks& blocks, const KvModel& model) {
  const uint32_t first = blocks.first_layer;
  const uint32_t left = first < model.layers ? model.layers - first : 0;
  const uint32_t layers = blocks.layers == kAllLayers ? left : blocks.layers;
  if (layers > 0 && layers <= left) {
    return KvRange{.heads = {.count = model.heads}, .first_layer = first, .layers = layers};
  }
  return absl::InvalidArgumentError(absl::StrCat("KV cache: ", layers, " layers from ", first,
                                                 " on, and the model has ", model.layers));
}

// kAnyOrder: the target counts heads and layers until a request is complete, in whatever order its
// parts arrive.
TransferOptions OptionsOf(const KvOptions& options) {
  TransferOptions transfer = options.transfer;
  transfer.order = NotifyOrder::kAnyOrder;
  return transfer;
}

KvPartFrame PartOf(const KvBlocks& blocks, const KvOptions& options, const KvShare& share,
                   uint64_t cache_id) {
  return {.cache = blocks.cache.text,
          .cache_id = cache_id,
          .request = options.request.text,
          .blocks_hash = HashBlocks(blocks.remote_ids, blocks.remote_first_token, blocks.tokens),
          .range = share.range,
          .has_notification = options.transfer.notification.has_value(),
          .notification = options.transfer.notification.value_or("")};
}

LeasedRead FetchOf(const KvBlocks& blocks, const KvOptions& options, const KvLayout& own,
                   const KvCacheInfo& source) {
  // An owner that no rank reads from has one reader all the same: the rank that notifies it that
  // its blocks are not needed (Unread).
  const uint32_t readers = std::max(KvReaders(own, source.layout), 1u);
  return {.lease = options.lease.text,
          .contents = options.lease_contents,
          .blocks_hash = HashLeased(source.id, blocks.remote_ids),
          .wait = options.lease_wait,
          .readers = options.lease_readers > 0 ? options.lease_readers : readers};
}

// The ranks in `group` from which no rank of this instance reads, if this rank is the one that
// notifies them. That is the rank with tensor-parallel rank 0 and the first layer.
std::vector<size_t> Unread(const KvLayout& own, std::span<const KvRank> group) {
  std::vector<size_t> unread;
  if (own.shard().tp_rank != 0 || own.shard().first_layer != 0) return unread;
  for (size_t i = 0; i < group.size(); ++i) {
    if (KvReaders(own, *group[i].layout) == 0) unread.push_back(i);
  }
  return unread;
}

}  // namespace

// The KV caches on both sides of a transfer.
struct Engine::KvParties {
  std::shared_ptr<const KvCacheTable> caches;  // of this agent
  const KvCacheInfo* own = nullptr;
  // One entry for each rank in the group.
  std::vector<std::shared_ptr<const PeerView>> views{};
  std::vector<const KvCacheInfo*> theirs{};
  std::vector<KvRank> ranks{};
};

absl::StatusOr<Engine::KvParties> Engine::FindParties(std::span<const std::string> group,
                                                      std::string_view cache) const {
  KvParties parties{.caches = runtime_.kv.table()};
  const auto own = FindCache(*parties.caches, cache, kThisAgent);
  if (!own.ok()) return own.status();
  parties.own = *own;
  for (const std::string& name : group) {
    auto view = FindView(name);
    if (!view.ok()) return view.status();
    const auto theirs = FindCache(*(*view)->kv_caches, cache, "peer " + name);
    if (!theirs.ok()) return theirs.status();
    parties.views.push_back(*std::move(view));
    parties.theirs.push_back(*theirs);
    parties.ranks.push_back({.peer = parties.views.back()->name, .layout = &(*theirs)->layout});
  }
  if (auto status = CheckKvGroup(parties.own->layout, parties.ranks); !status.ok()) return status;
  return parties;
}

// The member transfer that moves one rank's share of the blocks.
absl::StatusOr<TransferPtr> Engine::NewMember(TransferKind kind, const KvParties& parties,
                                              const KvShare& share, const KvBlocks& blocks,
                                              const KvOptions& options) {
  auto member = NewRecord(kind, parties.views[share.rank], OptionsOf(options));
  if (!member.ok()) return member.status();
  internal::TransferRecord& record = **member;
  const KvLayout& own = parties.own->layout;
  const KvLayout& theirs = parties.theirs[share.rank]->layout;
  auto list = ListKvBlocks({.layout = &own,
                            .tensors = parties.own->tensors,
                            .ids = blocks.local_ids,
                            .first_token = blocks.local_first_token},
                           {.layout = &theirs,
                            .tensors = parties.theirs[share.rank]->tensors,
                            .ids = blocks.remote_ids,
                            .first_token = blocks.remote_first_token},
                           share.range, blocks.tokens, DirectionOf(kind), *record.local,
                           *record.remote, runtime_.ids);
  if (!list.ok()) return Annotate(list.status(), "peer " + record.peer);
  record.blocks = *std::move(list);
  if (!options.request.empty()) {
    record.notice = Notice::kKvPart;
    // A hash collision between two requests costs only parallelism: their transfers to one peer are
    // sent one after the other.
    record.layer_stream = HashRequest(blocks.cache.text, options.request.text);
    record.options.notification =
        Encode(PartOf(blocks, options, share, parties.theirs[share.rank]->id));
  }
  if (!options.lease.empty())
    record.fetch = FetchOf(blocks, options, own, *parties.theirs[share.rank]);
  return member;
}

absl::StatusOr<TransferPtr> Engine::StartBlocks(TransferKind kind,
                                                std::span<const std::string> group,
                                                const KvBlocks& blocks, const KvOptions& options) {
  if (auto status = fork_guard_.Check(); !status.ok()) return status;
  if (auto status = CheckNotDraining(); !status.ok()) return status;
  if (auto status = CheckKvOptions(kind, options); !status.ok()) return status;
  if (auto status = CheckOptions(OptionsOf(options)); !status.ok()) return status;
  const auto parties = FindParties(group, blocks.cache.text);
  if (!parties.ok()) return parties.status();
  const KvLayout& own = parties->own->layout;
  const auto asked = AskedFor(blocks, own.model());
  if (!asked.ok()) return asked.status();

  if (!options.lease.empty() && options.lease_readers == 0 &&
      own.shard().layers != own.model().layers) {
    return absl::InvalidArgumentError(
        "this rank has not all layers: say in KvOptions::lease_readers how many workers of its "
        "instance fetch from each owner");
  }

  std::vector<TransferPtr> members;
  for (const KvShare& share : KvShares(own, parties->ranks, DirectionOf(kind), *asked)) {
    auto member = NewMember(kind, *parties, share, blocks, options);
    if (!member.ok()) return member.status();
    members.push_back(*std::move(member));
  }
  if (!options.lease.empty()) {
    for (const size_t rank : Unread(own, parties->ranks)) {
      auto member = NewRecord(TransferKind::kNotify, parties->views[rank], OptionsOf(options));
      if (!member.ok()) return member.status();
      (*member)->options.notification.reset();
      (*member)->fetch = FetchOf(blocks, options, own, *parties->theirs[rank]);
      members.push_back(*std::move(member));
    }
  }
  return StartGroup(kind, std::move(members), options);
}

// Posts the members as one transfer.
absl::StatusOr<TransferPtr> Engine::StartGroup(TransferKind kind, std::vector<TransferPtr> members,
                                               const KvOptions& options) {
  auto whole = std::make_shared<internal::TransferRecord>();
  std::vector<internal::TransferGroup::Member> names;
  const auto after = cuda::StreamPoint::Take(options.transfer.after, options.transfer.after_event);
  if (!after.ok()) return after.status();
  for (const TransferPtr& member : members) {
    member->whole = whole;
    member->after = *after;
    whole->peer += (names.empty() ? "" : ",") + member->peer;
    names.push_back({.peer = member->peer, .id = member->id});
  }
  whole->kind = kind;
  whole->options = OptionsOf(options);
  // Makes Transfer::delivery report kPending until the end.
  if (!options.request.empty()) whole->options.notification.emplace();
  whole->engine = weak_from_this();
  whole->id = ++last_transfer_;
  if (auto status = ReserveEnd(*whole); !status.ok()) return status;
  whole->group = std::make_unique<internal::TransferGroup>(std::move(names));
  // No rank of the group holds any of these blocks, so nothing moves.
  if (members.empty()) {
    runtime_.Publish(whole, {.state = TransferState::kDone});
    return whole;
  }
  const bool posted = SubmitPosted(whole, [this, members = std::move(members)] {
    for (const TransferPtr& member : members) Enlist(member);
  });
  return posted ? absl::StatusOr<TransferPtr>(std::move(whole)) : ClosedError();
}

absl::Status Engine::RegisterKvCache(std::string_view name, const KvLayout& layout,
                                     std::span<const uint64_t> tensors) {
  if (auto status = CheckKvTensors(name, layout, tensors); !status.ok()) return status;
  return CallFor<absl::Status>([&] {
    ++runtime_.revision;
    return runtime_.kv.Register(name, layout, tensors, *runtime_.memory.table());
  });
}

absl::Status Engine::DeregisterKvCache(std::string_view name) {
  return CallFor<absl::Status>([&] {
    ++runtime_.revision;
    return runtime_.kv.Deregister(name);
  });
}

absl::Status Engine::WaitLayers(std::string_view cache, std::string_view request, uint32_t layers,
                                Duration timeout) {
  if (auto status = RefuseInCallback("WaitLayers"); !status.ok()) return status;
  const Time deadline = After(timeout);
  const auto watch = CallFor<absl::StatusOr<std::shared_ptr<KvRegistry::Watch>>>(
      [&] { return runtime_.kv.StartWatch(cache, request, layers); });
  if (!watch.ok()) return watch.status();
  const KvRegistry::Watch& watched = **watch;
  const auto waited = WaitFor(
      &watched,
      [&] {
        return watched.ready.load(std::memory_order_acquire) >= layers ||
               watched.given_up.load(std::memory_order_acquire);
      },
      deadline);
  // If the agent was closed meanwhile, the watch is gone with it.
  (void)Call([&] { runtime_.kv.EndWatch(cache, request, &watched); });
  if (!waited.ok()) return waited.status();
  const uint32_t ready = watched.ready.load(std::memory_order_acquire);
  if (ready >= layers) return absl::OkStatus();
  const std::string text = absl::StrCat("KV request ", ToAbsl(request), ": ", ready, " of ", layers,
                                        " layers are there");
  if (watched.given_up) return absl::AbortedError(absl::StrCat(text, ", and it was given up"));
  return TimedOutError(absl::StrCat(text, " within the time-out"));
}

absl::Status Engine::DropRequest(std::string_view cache, std::string_view request) {
  return CallFor<absl::Status>([&] { return runtime_.kv.Drop(cache, request); });
}

absl::Status Engine::LeaseBlocks(std::string_view cache, std::string_view lease,
                                 std::span<const uint32_t> ids, Duration hold,
                                 std::string_view contents) {
  if (auto status = fork_guard_.Check(); !status.ok()) return status;
  const auto caches = runtime_.kv.table();
  const auto own = FindCache(*caches, cache, kThisAgent);
  if (!own.ok()) return own.status();
  if (ids.empty()) return absl::InvalidArgumentError("a KV lease of no blocks");
  if (hold <= Duration::zero()) return absl::InvalidArgumentError("a KV lease of no time");
  const uint32_t last = *std::ranges::max_element(ids);
  if (last >= (*own)->layout.blocks()) {
    return absl::InvalidArgumentError(
        absl::StrCat("KV lease of block ", last, ", and the cache has ", (*own)->layout.blocks()));
  }
  return CallFor<absl::Status>([&] {
    absl::Status status = CheckNotDraining();
    if (status.ok()) {
      status = runtime_.leases.Grant(
          lease, {.hash = HashLeased((*own)->id, ids), .contents = contents}, After(hold), Now());
    }
    return status;
  });
}

absl::Status Engine::RenewLease(std::string_view lease, Duration hold) {
  return CallFor<absl::Status>([&] { return runtime_.leases.Renew(lease, After(hold), Now()); });
}

absl::Status Engine::ReleaseLease(std::string_view lease) {
  return CallFor<absl::Status>([&] { return runtime_.leases.Release(lease, Now()); });
}

absl::StatusOr<KvCounts> Engine::CountKv() {
  return CallFor<absl::StatusOr<KvCounts>>([&] {
    KvCounts counts{.requests_whole = runtime_.kv.whole(), .requests_lost = runtime_.kv.lost()};
    runtime_.leases.Count(counts);
    return counts;
  });
}

}  // namespace kvxfer
