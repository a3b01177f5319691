// Rails that fail alone and come back. docs/architecture.md, "A rail fails", says in which order.
#include <algorithm>

#include "src/agent/session/peer.h"
#include "src/core/base/log.h"
#include "src/core/base/strings.h"

namespace kvxfer {

void Peer::OnRailDown(Link& link, uint32_t rail, const absl::Status& why) {
  if (!link.rails.OnDown(rail, why, Now())) return;
  for (auto& [id, outbound] : active_) {
    if (outbound.link != &link) continue;
    std::erase_if(outbound.unexplained, [&](const auto& failed) { return failed.rail == rail; });
  }
}

void Peer::OnRailUp(Link& link, uint32_t rail) {
  const auto news = link.rails.OnUp(rail);
  if (!news.ok()) return link.Close(news.status());
  if (!*news) return;
  if (link.state == Link::State::kUp && !link.proven) paths_.OnProven(link);
  // It may lie between other ports now.
  for (auto& [id, outbound] : active_) {
    if (outbound.link == &link) outbound.distances.local = nullptr;
  }
  Log(LogLevel::kInfo, "peer {}: rail {} of {} is up", metadata_.name, rail,
      runtime_->backends[link.backend]->name());
}

// Over the connection itself: lost only together with it, and then nothing needs a fence any more.
void Peer::SendRailFences() {
  paths_.ForEachUpLink([this](Link& link) {
    auto due = link.rails.NextDue();
    for (; due.ok() && due->has_value(); due = link.rails.NextDue()) {
      const std::string message =
          EncodeMessage(FrameType::kFenceRail, 0, channel_.received(), RailFrame{.rail = **due});
      if (!link.endpoint->Send(std::as_bytes(std::span(message)))) break;
      link.rails.OnFenceSent(**due);
    }
    if (!due.ok()) link.Close(due.status());
  });
}

// From here on nothing of the rail's earlier life is on the way, and all of it that arrived has
// been counted.
void Peer::OnRailFenced(Link& link, const Envelope& envelope) {
  auto frame = Decode<RailFrame>(envelope.body);
  if (!frame.ok()) return ProtocolError(link, frame.status());
  const uint32_t rail = frame->rail;
  if (auto status = link.rails.OnFenced(rail); !status.ok()) return ProtocolError(link, status);
  // Not before: rails also end with their connection, which may close as planned, and then its end
  // is what there is to say.
  Log(LogLevel::kWarning, "peer {}: rail {} of {} failed: {}", metadata_.name, rail,
      runtime_->backends[link.backend]->name(), ToStd(link.rails.why(rail).message()));
  for (auto& [id, outbound] : active_) {
    if (outbound.link == &link) DiscardLanes(outbound, rail);
  }
  link.endpoint->ReopenRail(rail);
}

// Takes the lanes on `rail` back. Which of their writes arrived is not known: all go again, once
// the target has let go of the slots.
void Peer::DiscardLanes(Outbound& outbound, uint32_t rail) {
  // ABORT names the lanes of what is ending.
  if (outbound.ending || outbound.arrived || !outbound.book.counted()) return;
  // It may be of a lane that is taken back.
  if (outbound.slice.book != SendBook::kFirst) DropPrepared(outbound);
  const DiscardFrame frame{.transfer = outbound.record->id, .slots = outbound.book.Discard(rail)};
  if (!frame.slots.empty()) channel_.Push(FrameType::kDiscard, frame);
}

// The target has let go of a discarded lane; its slot was freed just before.
absl::Status Peer::OnDiscarded(const DiscardAck& ack) {
  const auto it = active_.find(ack.transfer);
  if (it == active_.end() || it->second.ending || it->second.arrived) return absl::OkStatus();
  Outbound& outbound = it->second;
  const auto again = outbound.book.OnDiscarded(ack, slots_);
  if (!again.ok()) return again.status();
  if (*again) StartSending(outbound);
  Advance(outbound);
  return absl::OkStatus();
}

// Of the lane that uses `slot` now nothing is on the way: it needs no DISCARD, and no ABORT.
void Peer::OnFreed(SlotRef slot) {
  const auto it = active_.find(slots_.HolderOf(slot));
  if (it != active_.end()) it->second.book.OnFreed(slot);
}

// Whether `op` failed as those of a failing rail do. Then the transfer waits for that to be said,
// and nothing more goes on that rail; what was not counted goes again by itself.
bool Peer::AwaitRailDown(Outbound& outbound, const OpTable::Entry& op, const absl::Status& status) {
  Link& link = *outbound.link;
  if (!runtime_->backends[link.backend]->capabilities().rails_fail_alone) return false;
  if (!link.rails.OnFailed(op.rail, status, Now())) return false;
  if (std::ranges::find(outbound.unexplained, op.rail, &Outbound::Unexplained::rail) ==
      outbound.unexplained.end()) {
    outbound.unexplained.push_back({.rail = op.rail, .status = status});
  }
  if (!outbound.book.counted()) {
    outbound.book.Again(op.slice);
    StartSending(outbound);
  }
  return true;
}

void Peer::RailTimers(Time now) {
  paths_.ForEachUpLink([this, now](Link& link) {
    const RailFences::Expired expired = link.rails.OnTime(now);
    for (const uint32_t rail : expired.cleared) ClearSuspicion(link, rail);
    if (!expired.close.ok()) link.Close(expired.close);
  });
}

// The ops of `rail` failed alone.
void Peer::ClearSuspicion(Link& link, uint32_t rail) {
  std::vector<std::pair<Outbound*, absl::Status>> failed;
  for (auto& [id, outbound] : active_) {
    if (outbound.link != &link) continue;
    const auto op = std::ranges::find(outbound.unexplained, rail, &Outbound::Unexplained::rail);
    if (op == outbound.unexplained.end()) continue;
    if (!outbound.ending && !outbound.arrived) failed.emplace_back(&outbound, op->status);
    outbound.unexplained.erase(op);
  }
  for (auto& [outbound, status] : failed) {
    EndSoon(*outbound, TransferState::kFailed, OpFailed(*outbound, status));
  }
}

}  // namespace kvxfer
