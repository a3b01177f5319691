#include "src/agent/engine/peer_table.h"

#include <algorithm>
#include <utility>

#include "src/agent/engine/transfer_group.h"
#include "src/core/base/reason.h"
#include "src/core/base/strings.h"

namespace kvxfer {
namespace {

// Both identities belong to agents of one name. True: `newer` runs on the same host in another
// process, so it has replaced `older`, which is dead. An older agent in the same process may still
// be alive and receive what was sent to it.
bool Replaces(const HostIdentity& newer, const HostIdentity& older) {
  const bool same_process = newer.pid_namespace == older.pid_namespace && newer.pid == older.pid &&
                            newer.start_time == older.start_time;
  return !newer.boot_id.empty() && newer.SameHost(older) && !same_process;
}

}  // namespace

absl::Status PeerTable::Install(AgentMetadata metadata) {
  const std::string name = metadata.name;
  Peer* const known = Find(name);
  if (known != nullptr && known->metadata().incarnation == metadata.incarnation) {
    Update(*known, std::move(metadata));
    return absl::OkStatus();
  }
  // It would wait for ever for the session that the other one has.
  for (const auto& [other, peer] : peers_) {
    if (peer->metadata().incarnation != metadata.incarnation || other == name) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("peer ", name, " is the incarnation that is known as peer ", other));
  }
  auto peer = std::make_unique<Peer>(runtime_, sessions_, std::move(metadata));
  if (auto status = peer->paths().CheckReachable(runtime_->options.require_backends);
      !status.ok()) {
    return status;
  }
  if (auto status = peer->paths().CheckCarrier(); !status.ok()) return status;
  if (known != nullptr) Replace(*known, *peer);
  views_->Publish(peer->view());
  peers_[name] = std::move(peer);
  return absl::OkStatus();
}

// Metadata may arrive out of order. An older version must not take regions away.
void PeerTable::Update(Peer& peer, AgentMetadata metadata) {
  const AgentMetadata& known = peer.metadata();
  if (metadata.last_region < known.last_region || metadata.revision < known.revision) return;
  peer.Update(std::move(metadata));
  views_->Publish(peer.view());
}

void PeerTable::Replace(Peer& old, const Peer& by) {
  const std::string& name = old.metadata().name;
  const absl::Status why =
      WithReason(absl::FailedPreconditionError(absl::StrCat(
                     "peer ", name, " restarted: its new metadata replaced incarnation ",
                     old.metadata().incarnation.ToString())),
                 Reason::kPeerRestarted);
  // A dead process receives nothing more, so its quarantines end. Otherwise they last until they
  // are proven quiet.
  if (Replaces(by.metadata().host, old.metadata().host)) old.OnDeath(why);
  old.Close(TransferState::kFailed, why, runtime_->options.cancel_grace);
  leaving_.push_back(std::move(peers_.find(name)->second));
}

bool PeerTable::Remove(std::string_view name, const absl::Status& why) {
  const auto it = peers_.find(name);
  if (it == peers_.end()) return false;
  views_->Remove(name);
  it->second->Close(TransferState::kCancelled, why, runtime_->options.cancel_grace);
  leaving_.push_back(std::move(it->second));
  peers_.erase(it);
  return true;
}

Peer* PeerTable::Find(std::string_view name) {
  const auto it = peers_.find(name);
  return it == peers_.end() ? nullptr : it->second.get();
}

// Those to a peer that was removed or replaced are ending already.
void PeerTable::Cancel(const internal::TransferRecord& transfer, const absl::Status& why) {
  if (transfer.group == nullptr) {
    if (Peer* peer = Find(transfer.peer)) peer->Cancel(transfer.id, why);
    return;
  }
  for (const auto& member : transfer.group->members) {
    if (Peer* peer = Find(member.peer)) peer->Cancel(member.id, why);
  }
}

// Cancels the other members of groups in which one member has failed. This does not happen at the
// failure itself, because the member's peer is then in the middle of its own work. False: there
// were none.
bool PeerTable::CancelBrokenGroups() {
  if (runtime_->broken_groups.empty()) return false;
  const std::vector<TransferPtr> broken = std::exchange(runtime_->broken_groups, {});
  for (const TransferPtr& whole : broken) {
    Cancel(*whole, absl::CancelledError("another rank's part of it failed"));
  }
  return true;
}

// Repeated for what a staging buffer that was returned lets others do; cancelling members of a
// group marks their peers.
void PeerTable::Pump(Time now) {
  do {
    runtime_->own_buffer_wanted = runtime_->own_buffer_freed = false;
    runtime_->peers.BeginPass();
    runtime_->peers.Visit(now);
  } while (CancelBrokenGroups() || runtime_->own_buffer_freed);
}

void PeerTable::Sweep() {
  // While closing, Finished looks at each peer.
  if (closed_ || leaving_.empty()) return;
  std::erase_if(leaving_, [this](const auto& peer) {
    if (!peer->Finished()) return false;
    Peer* heir = Find(peer->metadata().name);
    // The same incarnation was added again: it inherits the quarantines that have not ended.
    if (heir != nullptr && heir->metadata().incarnation == peer->metadata().incarnation) {
      heir->Inherit(*peer);
    }
    return true;
  });
}

void PeerTable::Close(const absl::Status& why, Duration within) {
  closed_ = true;
  for (auto& [name, peer] : peers_) {
    peer->Close(TransferState::kCancelled, why, within);
    leaving_.push_back(std::move(peer));
  }
  peers_.clear();
  Pump(Now());
}

bool PeerTable::Finished() const {
  return std::ranges::all_of(leaving_, [](const auto& peer) { return peer->Finished(); });
}

}  // namespace kvxfer
