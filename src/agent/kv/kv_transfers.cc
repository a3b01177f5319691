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
struct KvTransfers::Parties {
  std::shared_ptr<const KvCacheTable> caches;  // of this agent
  const KvCacheInfo* own = nullptr;
  // One entry for each rank in the group.
  std::vector<std::shared_ptr<const PeerView>> views{};
  std::vector<const KvCacheInfo*> theirs{};
  std::vector<KvRank> ranks{};
};

absl::StatusOr<KvTransfers::Parties> KvTransfers::FindParties(std::span<const std::string> group,
                                                              std::string_view cache) const {
  Parties parties{.caches = parts_.runtime->kv.table()};
  const auto own = FindKvCache(*parties.caches, cache, kThisAgent);
  if (!own.ok()) return own.status();
  parties.own = *own;
  for (const std::string& name : group) {
    auto view = parts_.views->Find(name);
    if (!view.ok()) return view.status();
    const auto theirs = FindKvCache(*(*view)->kv_caches, cache, "peer " + name);
    if (!theirs.ok()) return theirs.status();
    parties.views.push_back(*std::move(view));
    parties.theirs.push_back(*theirs);
    parties.ranks.push_back({.peer = parties.views.back()->name, .layout = &(*theirs)->layout});
  }
  if (auto status = CheckKvGroup(parties.own->layout, parties.ranks); !status.ok()) return status;
  return parties;
}

absl::StatusOr<TransferPtr> KvTransfers::NewMember(TransferKind kind, const Parties& parties,
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

absl::StatusOr<TransferPtr> KvTransfers::NewReaderOfNothing(const Parties& parties, size_t rank,
                                                            const KvBlocks& blocks,
                                                            const KvOptions& options) {
  auto member =
      parts_.transfers->NewRecord(TransferKind::kNotify, parties.views[rank], OptionsOf(options));
  if (!member.ok()) return member.status();
  (*member)->options.notification.reset();
  (*member)->fetch = FetchOf(blocks, options, parties.own->layout, *parties.theirs[rank]);
  return member;
}

absl::StatusOr<TransferPtr> KvTransfers::Start(TransferKind kind,
                                               std::span<const std::string> group,
                                               const KvBlocks& blocks, const KvOptions& options) {
  if (auto status = parts_.gate->CheckNotForked(); !status.ok()) return status;
  if (auto status = parts_.gate->CheckTakesWork(); !status.ok()) return status;
  if (auto status = CheckKvOptions(kind, options); !status.ok()) return status;
  if (auto status = parts_.transfers->CheckOptions(OptionsOf(options)); !status.ok()) return status;
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
      auto member = NewReaderOfNothing(*parties, rank, blocks, options);
      if (!member.ok()) return member.status();
      members.push_back(*std::move(member));
    }
  }
  return Post(kind, std::move(members), options);
}

// Posts the members as one transfer. If no rank of the group holds any of these blocks, nothing
// moves.
absl::StatusOr<TransferPtr> KvTransfers::Post(TransferKind kind, std::vector<TransferPtr> members,
                                              const KvOptions& options) {
  const auto after = cuda::StreamPoint::Take(options.transfer.after, options.transfer.after_event);
  if (!after.ok()) return after.status();
  for (const TransferPtr& member : members) member->after = *after;
  auto whole = std::make_shared<internal::TransferRecord>();
  whole->kind = kind;
  whole->options = OptionsOf(options);
  // Makes Transfer::delivery report kPending until the end.
  if (!options.request.empty()) whole->options.notification.emplace();
  if (auto status = parts_.transfers->PostGroup(whole, std::move(members)); !status.ok()) {
    return status;
  }
  return whole;
}

}  // namespace kvxfer
