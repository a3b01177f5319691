#include "src/agent/session/admission.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "src/agent/staging/stager.h"
#include "src/core/base/strings.h"
#include "src/core/plan/plan.h"

namespace kvxfer {
namespace {

const std::string* NotificationOf(const internal::TransferRecord& record) {
  const auto& notification = record.options.notification;
  return notification.has_value() ? &*notification : nullptr;
}

}  // namespace

bool Admission::Admit(Time now) {
  while (!parts_.queue->idle() &&
         parts_.outbounds->size() < parts_.runtime->options.max_active_transfers) {
    const TransferPtr record = parts_.queue->front();
    auto link = parts_.paths->LinkFor(*record, now);
    if (link.ok() && *link == nullptr) return true;
    if (link.ok() && !parts_.tracker->MayNotify(NotificationOf(*record))) return true;
    absl::Status status = link.ok() ? Begin(record, *link) : link.status();
    if (link.ok() && absl::IsUnavailable(status)) return false;
    if (link.ok() && !status.ok() && !PathSet::WhyBeyond(**link, *record).ok())
      continue;  // another way
    parts_.queue->Pop();
    if (status.ok()) continue;
    if (record->layer_stream != 0) parts_.queue->NextOf(record->layer_stream);
    user_->OnRefused(record, std::move(status));
  }
  return true;
}

absl::Status Admission::Begin(const TransferPtr& record, Link* link) {
  Outbound& added = parts_.outbounds->Add();
  const TransferOptions& options = record->options;
  added.record = record;
  added.link = link;
  added.holds_layer_stream = record->layer_stream != 0;
  if (record->kind != TransferKind::kNotify) {
    if (auto status = ResolveRegions(added); !status.ok()) {
      parts_.outbounds->Erase(added);
      return status;
    }
  }
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
      .may_hang = record->cuda && !added.staged && parts_.runtime->CopiesItself(link->backend),
      .from_lent = record->from_lent && !parts_.runtime->CopiesItself(link->backend),
      .context = &added};
  if (request.moves) request.lanes = PrepareData(added);
  const bool posts = request.moves || request.held;
  added.sending = &parts_.tracker->Begin(std::move(request), parts_.runtime->now);
  if (posts) {
    parts_.sender->Start(added);
  } else if (added.TakeLayerStream()) {
    OnLayerPosted(record->layer_stream);
  }
  return absl::OkStatus();
}

// Where nobody here can read the ids, the backend gets whole blocks: their ids are all that it
// passes on.
void Admission::LimitUnread(const BlockList& blocks, SliceLimits& limits) {
  limits.merged = false;
  limits.whole_pieces = true;
  for (const BlockPair& pair : blocks.pairs()) {
    limits.max_bytes = std::max(limits.max_bytes, pair.local.block_bytes);
  }
}

// How its bytes are cut into slices. Returns the lanes, where the target counts arrivals.
std::optional<LaneBook> Admission::PrepareData(Outbound& outbound) {
  const internal::TransferRecord& record = *outbound.record;
  const Link& link = *outbound.link;
  const Capabilities& capabilities = parts_.runtime->backends[link.backend]->capabilities();
  size_t op_bytes = capabilities.max_op_bytes;
  size_t op_pieces = capabilities.max_op_pieces;
  size_t whole_bytes = capabilities.whole_op_bytes;
  if (outbound.staged) {
    op_bytes = Staging::kBufferBytes;
    op_pieces = Stager::kMaxPieces;
    whole_bytes = Capabilities().whole_op_bytes;
    parts_.paths->TellStaged(record, link);
  }
  outbound.blocks = record.blocks.View(outbound.registrations, outbound.keys);
  outbound.walk = SliceWalk(&outbound.blocks);
  outbound.limits = {.max_bytes = SliceBytes(record.blocks.total_bytes(), link.choice.size(),
                                             op_bytes, whole_bytes),
                     .max_pieces = op_pieces,
                     .merged = op_pieces <= kFewPieces};
  if (record.blocks.ids_on_gpu()) LimitUnread(record.blocks, outbound.limits);
  const bool counted = record.kind == TransferKind::kWrite && !outbound.staged &&
                       capabilities.arrival == Arrival::kImmediate;
  if (!counted) return std::nullopt;
  return LaneBook(link.choice.size(), capabilities.rail_keeps_order);
}

// Looks up, once a transfer, what each of its regions is called by the backend at both ends.
absl::Status Admission::ResolveRegions(Outbound& outbound) {
  const auto& record = *outbound.record;
  const size_t backend = outbound.link->backend;
  if (record.incarnation != parts_.peer->incarnation) {
    return absl::FailedPreconditionError(
        absl::StrCat("peer ", parts_.peer->name, " was replaced by a new incarnation"));
  }
  if (record.blocks.ids_on_gpu()) {
    const size_t most = parts_.runtime->backends[backend]->capabilities().max_op_bytes;
    for (const BlockPair& pair : record.blocks.pairs()) {
      if (pair.local.block_bytes <= most) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          "blocks of ", pair.local.block_bytes, " bytes whose ids are in GPU memory: at most ",
          most, "; bring the ids to the host"));
    }
  }
  outbound.registrations.resize(record.local->regions().size());
  outbound.keys.resize(record.remote->regions().size());
  outbound.staged = parts_.paths->Stages(*outbound.link, record);
  if (outbound.staged) return ResolveStaged(outbound);
  for (uint32_t index : record.blocks.local_regions()) {
    const RegionId id = record.local->regions()[index].id;
    outbound.registrations[index] = parts_.runtime->memory.Find(id, backend);
    if (outbound.registrations[index] == nullptr) {
      return absl::FailedPreconditionError(absl::StrCat(
          "local region ", static_cast<uint32_t>(id), " is not registered with backend ",
          ToAbsl(parts_.runtime->backends[backend]->name())));
    }
  }
  for (uint32_t index : record.blocks.remote_regions()) {
    auto key = outbound.link->KeyOf(*parts_.regions, record.remote->regions()[index].id,
                                    *parts_.runtime->backends[backend]);
    if (!key.ok()) return key.status();
    outbound.keys[index] = *key;
  }
  return absl::OkStatus();
}

absl::Status Admission::ResolveStaged(Outbound& outbound) {
  const auto& record = *outbound.record;
  for (uint32_t index : record.blocks.local_regions()) {
    outbound.registrations[index] =
        parts_.runtime->memory.FindStaged(record.local->regions()[index].id);
  }
  for (uint32_t index : record.blocks.remote_regions()) {
    auto key = parts_.regions->StagedKeyOf(record.remote->regions()[index]);
    if (!key.ok()) return key.status();
    outbound.keys[index] = *key;
  }
  return absl::OkStatus();
}

void Admission::OnLayerPosted(uint64_t layer_stream) {
  next_of_stream_ |= parts_.queue->NextOf(layer_stream);
}

}  // namespace kvxfer
