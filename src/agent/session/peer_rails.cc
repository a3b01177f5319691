// Rails that fail alone and come back. docs/architecture.md, "A rail fails", says in which order.
#include <algorithm>

#include "src/agent/session/peer.h"
#include "src/core/base/log.h"
#include "src/core/base/strings.h"

namespace kvxfer {
// The only place that says which rails are up.
void Link::SetRail(uint32_t rail, RailRecord::State to) {
  using enum RailRecord::State;
  const auto timed = [](RailRecord::State state) { return state != kUp && state != kReopening; };
  RailRecord& record = rails[rail];
  if (record.state == kUp && to != kUp) record.since = Now();
  unsettled += static_cast<uint32_t>(timed(to)) - static_cast<uint32_t>(timed(record.state));
  fences_due +=
      static_cast<uint32_t>(to == kFenceDue) - static_cast<uint32_t>(record.state == kFenceDue);
  record.state = to;
  choice.SetUp(rail, to == kUp);
}

void Peer::LearnRails(Link& link) {
  const std::vector<RailInfo> infos = link.endpoint->Describe().rails;
  link.choice = RailPicker(infos);
  link.rails.resize(link.choice.size());
  for (uint32_t rail = 0; rail < link.choice.size(); ++rail) {
    const bool up = infos[rail].up;
    link.SetRail(rail, up ? RailRecord::State::kUp : RailRecord::State::kReopening);
    if (!up) link.rails[rail].why = absl::UnavailableError("not up yet");
  }
}

void Peer::OnRailDown(Link& link, uint32_t rail, const absl::Status& why) {
  if (rail >= link.rails.size()) return;
  // Also one that never came up.
  const RailRecord::State state = link.rails[rail].state;
  if (state == RailRecord::State::kFenceDue || state == RailRecord::State::kFencing) return;
  link.SetRail(rail, RailRecord::State::kFenceDue);
  link.rails[rail].since = Now();
  link.rails[rail].why = why;
  for (auto& [id, outbound] : active_) {
    if (outbound.link != &link) continue;
    std::erase_if(outbound.unexplained, [&](const auto& failed) { return failed.rail == rail; });
  }
}

void Peer::OnRailUp(Link& link, uint32_t rail) {
  // LearnRails may have seen already what this says.
  if (rail >= link.rails.size() || link.choice.up(rail)) return;
  if (link.rails[rail].state != RailRecord::State::kReopening) {
    return CloseLink(link,
                     absl::InternalError(absl::StrCat("the backend says that rail ", rail,
                                                      " is up, which it was not asked to build")));
  }
  link.SetRail(rail, RailRecord::State::kUp);
  if (link.state == Link::State::kUp && !link.proven) OnProven(link);
  // It may lie between other ports now.
  for (auto& [id, outbound] : active_) {
    if (outbound.link == &link) outbound.distances.local = nullptr;
  }
  Log(LogLevel::kInfo, "peer {}: rail {} of {} is up", metadata_.name, rail,
      runtime_->backends[link.backend]->name());
}

// Over the connection itself: lost only together with it, and then nothing needs a fence any more.
void Peer::SendRailFences() {
  for (Path& path : paths_) {
    Link* const link = path.link.get();
    if (link == nullptr || link->fences_due == 0 || link->state != Link::State::kUp) continue;
    if (!link->fences_rails) {
      CloseLink(*link, absl::UnavailableError(
                           "a rail failed, and the peer's older version cannot do without it"));
      continue;
    }
    for (uint32_t rail = 0; rail < link->rails.size(); ++rail) {
      if (link->rails[rail].state != RailRecord::State::kFenceDue) continue;
      const std::string message =
          EncodeMessage(FrameType::kFenceRail, 0, channel_.received(), RailFrame{.rail = rail});
      if (!link->endpoint->Send(std::as_bytes(std::span(message)))) break;
      link->SetRail(rail, RailRecord::State::kFencing);
    }
  }
}

// From here on nothing of the rail's earlier life is on the way, and all of it that arrived has
// been counted.
void Peer::OnRailFenced(Link& link, const Envelope& envelope) {
  auto frame = Decode<RailFrame>(envelope.body);
  if (!frame.ok()) return ProtocolError(link, frame.status());
  const uint32_t rail = frame->rail;
  if (rail >= link.rails.size() || link.rails[rail].state != RailRecord::State::kFencing) {
    return ProtocolError(link, absl::InvalidArgumentError(absl::StrCat(
                                   "it fenced rail ", rail, ", which it was not asked to")));
  }
  link.SetRail(rail, RailRecord::State::kReopening);
  // Not before: rails also end with their connection, which may close as planned, and then its end
  // is what there is to say.
  Log(LogLevel::kWarning, "peer {}: rail {} of {} failed: {}", metadata_.name, rail,
      runtime_->backends[link.backend]->name(), ToStd(link.rails[rail].why.message()));
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
  if (!absl::IsUnavailable(status) && !absl::IsAborted(status) && !absl::IsCancelled(status)) {
    return false;
  }
  RailRecord& record = link.rails[op.rail];
  if (record.state == RailRecord::State::kUp) {
    link.SetRail(op.rail, RailRecord::State::kSuspected);
    record.until = Time::max();
    record.why = status;
  }
  if (record.state != RailRecord::State::kSuspected) return false;
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

Time Peer::NextRailTimer(const Link& link) const {
  Time next = Time::max();
  if (link.unsettled == 0) return next;
  for (const RailRecord& record : link.rails) {
    using enum RailRecord::State;
    if (record.state == kSuspected) next = std::min(next, record.until);
    if (record.state == kFenceDue || record.state == kFencing) {
      next = std::min(next, record.since + runtime_->options.connect_timeout);
    }
  }
  return next;
}

void Peer::RailTimers(Time now) {
  for (Path& path : paths_) {
    Link* const link = path.link.get();
    if (link == nullptr || link->state != Link::State::kUp || NextRailTimer(*link) > now) continue;
    for (uint32_t rail = 0; rail < link->rails.size(); ++rail) {
      const RailRecord& record = link->rails[rail];
      using enum RailRecord::State;
      if (record.state == kSuspected && record.until <= now) ClearSuspicion(*link, rail);
      if (record.state != kFenceDue && record.state != kFencing) continue;
      if (record.since + runtime_->options.connect_timeout > now) continue;
      CloseLink(*link, absl::UnavailableError(
                           absl::StrCat("the peer did not make rail ", rail,
                                        " quiet, which failed: ", record.why.message())));
      break;
    }
  }
}

// Its ops failed alone.
void Peer::ClearSuspicion(Link& link, uint32_t rail) {
  link.SetRail(rail, RailRecord::State::kUp);
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

// Of a connection all of whose rails are out of use; else nothing.
std::string Peer::WhyNoRail(const Link& link) const {
  std::string why;
  for (uint32_t rail = 0; rail < link.rails.size(); ++rail) {
    const RailRecord& record = link.rails[rail];
    if (record.state == RailRecord::State::kUp) return {};
    absl::StrAppend(&why, why.empty() ? "; no rail is up: " : "; ", "rail ", rail, ": ",
                    record.why.message());
  }
  return why;
}

std::vector<RailExplanation> Peer::ExplainRails(const Link& link) const {
  std::vector<RailExplanation> rails;
  const Time now = Now();
  std::vector<RailInfo> infos = link.endpoint->Describe().rails;
  for (uint32_t rail = 0; rail < link.rails.size(); ++rail) {
    const RailRecord& record = link.rails[rail];
    const bool up = record.state == RailRecord::State::kUp;
    RailInfo info = rail < infos.size() ? std::move(infos[rail]) : RailInfo{};
    rails.push_back({.name = std::move(info.name),
                     .up = up,
                     .bytes_per_second = link.choice.bytes_per_second(rail),
                     .round_trip = info.round_trip,
                     .down_for = up ? Duration{} : now - record.since,
                     .why = std::string(record.why.message())});
  }
  return rails;
}

}  // namespace kvxfer
