// Engine: metadata, peers, and the posting and cancelling of transfers.
#include <algorithm>
#include <utility>

#include "src/agent/engine/engine.h"
#include "src/agent/engine/transfer_group.h"
#include "src/core/base/log.h"
#include "src/core/base/strings.h"

namespace kvxfer {
namespace {

// How many transfers to one peer may be posted and not ended.
constexpr uint32_t kMaxQueued = 1u << 16;

// Both identities belong to agents of one name. True: `newer` runs on the same host in another
// process, so it has replaced `older`, which is dead. An older agent in the same process may still
// be alive and receive what was sent to it.
bool Replaces(const HostIdentity& newer, const HostIdentity& older) {
  const bool same_process = newer.pid_namespace == older.pid_namespace && newer.pid == older.pid &&
                            newer.start_time == older.start_time;
  return !newer.boot_id.empty() && newer.SameHost(older) && !same_process;
}

std::vector<AgentMetadata::BackendAddress> Addresses(const MemoryRegistry::Backends& backends) {
  std::vector<AgentMetadata::BackendAddress> addresses;
  for (const auto& backend : backends) {
    addresses.push_back({std::string(backend->name()), backend->Describe().address});
  }
  return addresses;
}

}  // namespace

absl::StatusOr<std::string> Engine::Metadata() {
  AgentMetadata metadata;
  auto status = Call([&] { metadata = Describe(); });
  if (!status.ok()) return status;
  return EncodeMetadata(metadata);
}

AgentMetadata Engine::Describe() const {
  return {.name = runtime_.options.name,
          .incarnation = runtime_.incarnation,
          .min_version = kMinProtocolVersion,
          .max_version = kMaxProtocolVersion,
          .host = runtime_.host,
          .backends = Addresses(runtime_.backends),
          .regions = runtime_.memory.Describe(runtime_.backends),
          .last_region = runtime_.memory.last_region(),
          .revision = runtime_.revision,
          .kv_caches = *runtime_.kv.table()};
}

std::shared_ptr<const std::string> Engine::ServedMetadata() {
  if (closed_) return nullptr;
  auto backends = Addresses(runtime_.backends);
  if (served_.bytes == nullptr || served_.revision != runtime_.revision ||
      served_.backends != backends) {
    served_ = {.revision = runtime_.revision,
               .backends = std::move(backends),
               .bytes = std::make_shared<const std::string>(EncodeMetadata(Describe()))};
  }
  return served_.bytes;
}

absl::StatusOr<std::string> Engine::AddPeer(std::string_view metadata_bytes) {
  auto metadata = DecodeMetadata(metadata_bytes);
  if (!metadata.ok()) return metadata.status();
  if (metadata->incarnation == runtime_.incarnation) {
    return absl::InvalidArgumentError(
        absl::StrCat("the metadata is of this agent itself, ", runtime_.options.name));
  }
  std::string name = metadata->name;
  if (name == runtime_.options.name) {
    return absl::InvalidArgumentError(
        absl::StrCat("the peer is called ", name, " as this agent is; give agents unique names"));
  }
  const auto installed = CallFor<absl::Status>([&] { return Install(*std::move(metadata)); });
  if (!installed.ok()) return installed;
  return name;
}

absl::Status Engine::Install(AgentMetadata metadata) {
  const std::string name = metadata.name;
  Peer* known = FindPeer(name);
  if (known != nullptr && known->metadata().incarnation == metadata.incarnation) {
    // Metadata may arrive out of order. An older version must not take regions away.
    if (metadata.last_region < known->metadata().last_region ||
        metadata.revision < known->metadata().revision) {
      return absl::OkStatus();
    }
    known->Update(std::move(metadata));
    PublishView(*known);
    return absl::OkStatus();
  }
  auto peer = std::make_unique<Peer>(&runtime_, &inbound_, std::move(metadata));
  if (auto status = peer->CheckReachable(runtime_.options.require_backends); !status.ok()) {
    return status;
  }
  if (known != nullptr) {
    const auto why = absl::FailedPreconditionError(
        absl::StrCat("peer ", name, " restarted: its new metadata replaced incarnation ",
                     known->metadata().incarnation.ToString()));
    // A dead process receives nothing more, so its quarantines end. Otherwise they last until they
    // are proven quiet.
    if (Replaces(peer->metadata().host, known->metadata().host)) known->OnDeath(why);
    known->Close(TransferState::kFailed, why, runtime_.options.cancel_grace);
    leaving_.push_back(std::move(peers_.find(name)->second));
  }
  PublishView(*peer);
  peers_[name] = std::move(peer);
  return absl::OkStatus();
}

absl::Status Engine::RemovePeer(std::string_view peer) {
  return CallFor<absl::Status>([&] {
    const auto why = absl::CancelledError(absl::StrCat("peer ", ToAbsl(peer), ": ", kPeerRemoved));
    const bool inbound = inbound_.Remove(peer, why);
    Peer* found = FindPeer(peer);
    if (found == nullptr && inbound) return absl::OkStatus();
    if (found == nullptr) return absl::NotFoundError(absl::StrCat("no peer ", ToAbsl(peer)));
    {
      std::lock_guard lock(views_mu_);
      views_.erase(std::string(peer));
    }
    found->Close(TransferState::kCancelled, why, runtime_.options.cancel_grace);
    const auto it = peers_.find(peer);
    leaving_.push_back(std::move(it->second));
    peers_.erase(it);
    return absl::OkStatus();
  });
}

absl::StatusOr<Explanation> Engine::Explain(std::string_view peer) {
  return CallFor<absl::StatusOr<Explanation>>([&]() -> absl::StatusOr<Explanation> {
    Peer* const found = FindPeer(peer);
    if (found == nullptr) {
      return absl::NotFoundError(
          absl::StrCat("no peer ", ToAbsl(peer), "; add its metadata first"));
    }
    Explanation explanation = found->Explain();
    explanation.paths.insert(explanation.paths.end(), unusable_.begin(), unusable_.end());
    return explanation;
  });
}

Peer* Engine::FindPeer(std::string_view name) {
  const auto it = peers_.find(name);
  return it == peers_.end() ? nullptr : it->second.get();
}

absl::StatusOr<std::vector<PeerRegion>> Engine::Regions(std::string_view peer) const {
  if (auto status = fork_guard_.Check(); !status.ok()) return status;
  const auto view = FindView(peer);
  if (!view.ok()) return view.status();
  std::vector<PeerRegion> regions;
  for (const RegionView& region : (*view)->regions->regions()) {
    if (region.access == Access::kNone || region.staging) continue;
    regions.push_back({.id = region.id,
                       .address = region.base,
                       .bytes = region.bytes,
                       .kind = region.kind,
                       .device_id = region.device_id,
                       .access = region.access});
  }
  return regions;
}

absl::StatusOr<std::shared_ptr<const PeerView>> Engine::FindView(std::string_view peer) const {
  std::lock_guard lock(views_mu_);
  const auto it = views_.find(peer);
  if (it != views_.end()) return it->second;
  return absl::NotFoundError(absl::StrCat("no peer ", ToAbsl(peer), "; add its metadata first"));
}

void Engine::PublishView(const Peer& peer) {
  std::lock_guard lock(views_mu_);
  views_[peer.metadata().name] = peer.view();
}

absl::Status Engine::CheckOptions(const TransferOptions& options) const {
  if (options.deadline <= Duration::zero() || options.deadline > kLongest) {
    return absl::InvalidArgumentError("the deadline must be positive and at most a year");
  }
  if (options.notification.has_value() && options.notification->size() > kMaxNotificationBytes) {
    return absl::InvalidArgumentError(absl::StrCat("notification of ", options.notification->size(),
                                                   " bytes is larger than 64 KiB"));
  }
  if (options.backend.empty()) return absl::OkStatus();
  const bool known = std::ranges::any_of(
      runtime_.backends, [&](const auto& backend) { return backend->name() == options.backend; });
  if (known) return absl::OkStatus();
  const auto unusable = std::ranges::find(unusable_, options.backend, &PathExplanation::backend);
  return absl::InvalidArgumentError(absl::StrCat("this agent has no backend ", options.backend,
                                                 unusable == unusable_.end() ? "" : ": ",
                                                 unusable == unusable_.end() ? "" : unusable->why));
}

absl::StatusOr<TransferPtr> Engine::Start(TransferKind kind, std::string_view peer,
                                          const Blocks& blocks, TransferOptions options) {
  if (auto status = fork_guard_.Check(); !status.ok()) return status;
  if (auto status = CheckNotDraining(); !status.ok()) return status;
  if (auto status = CheckOptions(options); !status.ok()) return status;
  const auto view = FindView(peer);
  if (!view.ok()) return view.status();
  auto made = NewRecord(kind, *view, std::move(options));
  if (!made.ok()) return made.status();
  const TransferPtr record = *std::move(made);
  if (kind != TransferKind::kNotify) {
    const Direction direction = DirectionOf(kind);
    auto list = std::holds_alternative<PagedBlocks>(blocks)
                    ? BlockList::FromPaged(std::get<PagedBlocks>(blocks), direction, *record->local,
                                           *record->remote, runtime_.ids)
                    : BlockList::FromDescriptors(std::get<DescriptorBlocks>(blocks), direction,
                                                 *record->local, *record->remote);
    if (!list.ok()) return list.status();
    record->blocks = *std::move(list);
  }
  auto after = cuda::StreamPoint::Take(record->options.after, record->options.after_event);
  if (!after.ok()) return after.status();
  record->after = *std::move(after);
  if (auto status = ReserveEnd(*record); !status.ok()) return status;
  if (!SubmitPosted(record, [this, record] { Enlist(record); })) return ClosedError();
  return record;
}

absl::Status Engine::ReserveEnd(internal::TransferRecord& record) {
  if (!record.options.user_word.has_value()) return absl::OkStatus();
  if (!runtime_.events.ReserveEnd(EndLane::kPosted)) return NoPlaceForEnd();
  record.AskEnd(EndLane::kPosted, *record.options.user_word);
  return absl::OkStatus();
}

bool Engine::SubmitPosted(const TransferPtr& record, ProgressLoop::Command command) {
  if (runtime_.loop.Submit(std::move(command))) return true;
  if (record->options.user_word.has_value()) runtime_.events.ReturnPlace(EndLane::kPosted);
  return false;
}

// A record that is complete except for its blocks, and not posted.
absl::StatusOr<TransferPtr> Engine::NewRecord(TransferKind kind,
                                              const std::shared_ptr<const PeerView>& view,
                                              TransferOptions options) {
  // Not exact: threads that post at the same time may exceed it by their number.
  if (view->queued->load(std::memory_order_relaxed) >= kMaxQueued) {
    return absl::ResourceExhaustedError(absl::StrCat(kMaxQueued, " transfers to peer ", view->name,
                                                     " are queued; wait for some to end"));
  }
  auto record = std::make_shared<internal::TransferRecord>();
  record->kind = kind;
  record->peer = view->name;
  // Snapshots: the indices in `blocks` stay valid whatever is registered later.
  if (kind != TransferKind::kNotify) {
    record->local = runtime_.memory.table();
    record->remote = view->regions;
  }
  record->incarnation = view->incarnation;
  record->options = std::move(options);
  record->posted = Now();
  record->deadline = record->posted + record->options.deadline;
  record->engine = weak_from_this();
  record->id = ++last_transfer_;
  return record;
}

// On the driver: hands a posted transfer to its peer, or ends it if the peer was removed or
// replaced after the planning.
void Engine::Enlist(const TransferPtr& record) {
  Peer* found = FindPeer(record->peer);
  // A transfer that another thread posted while draining began ends here. Drain counts those that
  // were enlisted earlier.
  const absl::Status draining = CheckNotDraining();
  if (draining.ok() && found != nullptr && found->metadata().incarnation == record->incarnation) {
    found->Submit(record);
    return;
  }
  internal::TransferRecord::End end{.state = TransferState::kFailed,
                                    .status = absl::FailedPreconditionError(absl::StrCat(
                                        "peer ", record->peer, " was removed or replaced")),
                                    .delivery = record->options.notification.has_value()
                                                    ? Delivery::kNotDelivered
                                                    : Delivery::kNone};
  if (!draining.ok()) end.status = draining;
  if (closed_) {
    end.state = TransferState::kCancelled;
    end.status = absl::CancelledError(kAgentClosed);
  }
  runtime_.Publish(record, std::move(end));
}

void Engine::Cancel(const TransferPtr& record) {
  runtime_.loop.Submit([this, record] {
    const absl::Status why = absl::CancelledError("cancelled by the application");
    if (record->group != nullptr) return CancelMembers(*record, why);
    if (Peer* peer = FindPeer(record->peer)) peer->Cancel(record->id, why);
  });
}

// Members to a peer that was removed or replaced are ending already.
void Engine::CancelMembers(const internal::TransferRecord& whole, const absl::Status& why) {
  for (const auto& member : whole.group->members) {
    if (Peer* peer = FindPeer(member.peer)) peer->Cancel(member.id, why);
  }
}

// Cancels the other members of groups in which one member has failed. This does not happen at the
// failure itself, because the member's peer is then in the middle of its own work. False: there
// were none.
bool Engine::CancelBrokenGroups() {
  if (runtime_.broken_groups.empty()) return false;
  const std::vector<TransferPtr> broken = std::exchange(runtime_.broken_groups, {});
  for (const TransferPtr& whole : broken) {
    CancelMembers(*whole, absl::CancelledError("another rank's part of it failed"));
  }
  return true;
}

}  // namespace kvxfer
