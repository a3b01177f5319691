#include "src/agent/kv/kv_transfers.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "src/core/base/strings.h"
#include "src/core/kv/kv_block_list.h"
#include "src/core/kv/kv_blocks_hash.h"
#include "src/core/kv/kv_cache_table.h"

namespace kvxfer {
namespace {

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

// Some layers of a range that is prepared.
absl::StatusOr<KvRange> LayersOf(const KvRange& prepared, uint32_t first, uint32_t count) {
  const uint32_t end = prepared.first_layer + prepared.layers;
  const uint32_t layers = count == kAllLayers ? end - std::min(first, end) : count;
  if (KvRangeWithin(first, layers, prepared.first_layer, prepared.layers)) {
    return KvRange{.heads = prepared.heads, .first_layer = first, .layers = layers};
  }
  return absl::InvalidArgumentError(absl::StrCat("KV cache: ", layers, " layers from ", first,
                                                 " on, and those from ", prepared.first_layer,
                                                 " to ", end - 1, " are prepared"));
}

// kAnyOrder: the target counts heads and layers until a request is complete, in whatever order its
// parts arrive.
TransferOptions OptionsOf(const KvOptions& options) {
  TransferOptions transfer = options.transfer;
  transfer.order = NotifyOrder::kAnyOrder;
  return transfer;
}

// Makes a write one of the parts that the target collects as a request.
void NameRequest(internal::TransferRecord& record, const std::string& cache, uint64_t cache_id,
                 uint64_t blocks_hash, const KvRange& range, const KvOptions& options) {
  if (options.request.empty()) return;
  record.notice = Notice::kKvPart;
  // A hash collision between two requests costs only parallelism: their transfers to one peer are
  // sent one after the other.
  record.layer_stream = HashRequest(cache, options.request.text);
  record.options.notification =
      Encode(KvPartFrame{.cache = cache,
                         .cache_id = cache_id,
                         .request = options.request.text,
                         .blocks_hash = blocks_hash,
                         .range = range,
                         .has_notification = options.transfer.notification.has_value(),
                         .notification = options.transfer.notification.value_or("")});
}

uint64_t HashOf(const KvBlocks& blocks) {
  return HashBlocks(blocks.remote_ids, blocks.remote_first_token, blocks.tokens);
}

LeasedRead FetchOf(const KvBlocks& blocks, const KvOptions& options, const KvLayout& own,
                   const KvCacheInfo& source) {
  // An owner that no rank reads from has one reader all the same: the rank that notifies it that
  // its blocks are not needed (Unread).
  const uint32_t readers = std::max(KvReaders(own, options.stages, source.layout), 1u);
  return {.lease = options.lease.text,
          .contents = options.lease_contents,
          .blocks_hash = HashLeased(source.id, blocks.remote_ids),
          .wait = options.lease_wait,
          .readers = readers};
}

// The ranks in `group` from which no rank of this instance reads, if this rank is the one that
// notifies them. That is the rank with tensor-parallel rank 0 and the first layer.
std::vector<size_t> Unread(const KvLayout& own, std::span<const uint32_t> stages,
                           std::span<const KvRank> group) {
  std::vector<size_t> unread;
  if (own.shard().tp_rank != 0 || own.shard().first_layer != 0) return unread;
  for (size_t i = 0; i < group.size(); ++i) {
    if (KvReaders(own, stages, *group[i].layout) == 0) unread.push_back(i);
  }
  return unread;
}

}  // namespace

absl::StatusOr<TransferPtr> KvTransfers::NewMember(TransferKind kind, const KvParties& parties,
                                                   const KvShare& share, const KvBlocks& blocks,
                                                   const KvOptions& options) {
  auto member = parts_.transfers->NewRecord(kind, parties.views[share.rank], OptionsOf(options));
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
                           *record.remote, parts_.runtime->ids);
  if (!list.ok()) return Annotate(list.status(), "peer " + record.peer);
  record.blocks = *std::move(list);
  NameRequest(record, blocks.cache.text, parties.theirs[share.rank]->id, HashOf(blocks),
              share.range, options);
  if (!options.lease.empty())
    record.fetch = FetchOf(blocks, options, own, *parties.theirs[share.rank]);
  return member;
}

absl::StatusOr<TransferPtr> KvTransfers::NewReaderOfNothing(const KvParties& parties, size_t rank,
                                                            const KvBlocks& blocks,
                                                            const KvOptions& options) {
  auto member =
      parts_.transfers->NewRecord(TransferKind::kNotify, parties.views[rank], OptionsOf(options));
  if (!member.ok()) return member.status();
  (*member)->options.notification.reset();
  (*member)->fetch = FetchOf(blocks, options, parties.own->layout, *parties.theirs[rank]);
  return member;
}

absl::Status KvTransfers::CheckCall(TransferKind kind, const KvOptions& options) const {
  if (auto status = parts_.gate->CheckNotForked(); !status.ok()) return status;
  if (auto status = parts_.gate->CheckTakesWork(); !status.ok()) return status;
  if (auto status = CheckKvOptions(kind, options); !status.ok()) return status;
  return parts_.transfers->CheckOptions(options.transfer);
}

absl::StatusOr<TransferPtr> KvTransfers::Start(TransferKind kind,
                                               std::span<const std::string> group,
                                               const KvBlocks& blocks, const KvOptions& options) {
  if (auto status = CheckCall(kind, options); !status.ok()) return status;
  const auto parties = FindParties(group, blocks.cache.text, DirectionOf(kind));
  if (!parties.ok()) return parties.status();
  const KvLayout& own = parties->own->layout;
  const auto asked = AskedFor(blocks, own.model());
  if (!asked.ok()) return asked.status();

  if (!options.lease.empty()) {
    if (auto status = CheckStages(own, options.stages); !status.ok()) return status;
  }

  std::vector<TransferPtr> members;
  for (const KvShare& share : KvShares(own, parties->ranks, DirectionOf(kind), *asked)) {
    auto member = NewMember(kind, *parties, share, blocks, options);
    if (!member.ok()) return member.status();
    members.push_back(*std::move(member));
  }
  if (!options.lease.empty()) {
    for (const size_t rank : Unread(own, options.stages, parties->ranks)) {
      auto member = NewReaderOfNothing(*parties, rank, blocks, options);
      if (!member.ok()) return member.status();
      members.push_back(*std::move(member));
    }
  }
  return Post(kind, std::move(members), options, ProgressLoop::While::kSubmitterDrives);
}

absl::StatusOr<std::shared_ptr<const internal::KvPrepared>> KvTransfers::Prepare(
    std::span<const std::string> group, const KvBlocks& blocks) const {
  if (auto status = parts_.gate->CheckNotForked(); !status.ok()) return status;
  auto parties = FindParties(group, blocks.cache.text, Direction::kWrite);
  if (!parties.ok()) return parties.status();
  const KvCacheInfo& own = *parties->own;
  const auto asked = AskedFor(blocks, own.layout.model());
  if (!asked.ok()) return asked.status();
  auto prepared = std::make_shared<internal::KvPrepared>();
  prepared->agent = parts_.runtime->incarnation;
  prepared->cache = blocks.cache.text;
  prepared->local = parts_.runtime->memory.table();
  prepared->range = *asked;
  prepared->blocks_hash = HashOf(blocks);
  for (const KvShare& share : KvShares(own.layout, parties->ranks, Direction::kWrite, *asked)) {
    const KvCacheInfo& theirs = *parties->theirs[share.rank];
    const PeerView& peer = *parties->views[share.rank];
    auto lists = KvLayerLists::Make({.layout = &own.layout,
                                     .tensors = own.tensors,
                                     .ids = blocks.local_ids,
                                     .first_token = blocks.local_first_token},
                                    {.layout = &theirs.layout,
                                     .tensors = theirs.tensors,
                                     .ids = blocks.remote_ids,
                                     .first_token = blocks.remote_first_token},
                                    share.range, blocks.tokens, Direction::kWrite, *prepared->local,
                                    *peer.regions);
    if (!lists.ok()) return Annotate(lists.status(), "peer " + peer.name);
    prepared->members.push_back({.share = share, .lists = *std::move(lists)});
  }
  prepared->parties = *std::move(parties);
  return prepared;
}

absl::StatusOr<TransferPtr> KvTransfers::NewLayerMember(const internal::KvPrepared& prepared,
                                                        const internal::KvPrepared::Member& member,
                                                        const KvRange& range,
                                                        const KvOptions& options) {
  const KvParties& parties = prepared.parties;
  const size_t rank = member.share.rank;
  const auto view = parties.CheckRank(rank, *parts_.views, prepared.cache);
  if (!view.ok()) return view.status();
  auto made = parts_.transfers->NewRecord(TransferKind::kWrite, *view, OptionsOf(options));
  if (!made.ok()) return made;
  internal::TransferRecord& record = **made;
  // The tables that the lists index.
  record.local = prepared.local;
  record.remote = parties.views[rank]->regions;
  auto list = member.lists.List(range.first_layer, range.layers);
  if (!list.ok()) return Annotate(list.status(), "peer " + record.peer);
  record.blocks = *std::move(list);
  NameRequest(record, prepared.cache, parties.theirs[rank]->id, prepared.blocks_hash, range,
              options);
  return made;
}

absl::StatusOr<TransferPtr> KvTransfers::WriteLayers(const internal::KvPrepared* prepared,
                                                     uint32_t first_layer, uint32_t layers,
                                                     const KvOptions& options) {
  if (auto status = CheckCall(TransferKind::kWrite, options); !status.ok()) return status;
  if (prepared == nullptr || prepared->agent != parts_.runtime->incarnation) {
    return absl::InvalidArgumentError("WriteLayers takes blocks that this agent has prepared");
  }
  const auto asked = LayersOf(prepared->range, first_layer, layers);
  if (!asked.ok()) return asked.status();
  absl::Status same = prepared->parties.CheckOwn(parts_.runtime->kv, prepared->cache);
  if (!same.ok()) return same;
  std::vector<TransferPtr> members;
  members.reserve(prepared->members.size());
  for (const internal::KvPrepared::Member& member : prepared->members) {
    const KvRange range = Intersection(*asked, member.share.range);
    if (range.empty()) continue;
    auto made = NewLayerMember(*prepared, member, range, options);
    if (!made.ok()) return made.status();
    members.push_back(*std::move(made));
  }
  return Post(TransferKind::kWrite, std::move(members), options, ProgressLoop::While::kDriverWakes);
}

// Posts the members as one transfer. If no rank of the group holds any of these blocks, nothing
// moves.
absl::StatusOr<TransferPtr> KvTransfers::Post(TransferKind kind, std::vector<TransferPtr> members,
                                              const KvOptions& options,
                                              ProgressLoop::While asleep) {
  const auto after = cuda::StreamPoint::Take(options.transfer.after, options.transfer.after_event);
  if (!after.ok()) return after.status();
  for (const TransferPtr& member : members) member->after = *after;
  auto whole = std::make_shared<internal::TransferRecord>();
  whole->kind = kind;
  whole->options = OptionsOf(options);
  // Makes Transfer::delivery report kPending until the end.
  if (!options.request.empty()) whole->options.notification.emplace();
  if (auto status = parts_.transfers->PostGroup(whole, std::move(members), asleep); !status.ok()) {
    return status;
  }
  return whole;
}

}  // namespace kvxfer
