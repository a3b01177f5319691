#include "src/core/protocol/target_session.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace kvxfer {

// --- links ---

void TargetSession::AddLink(uint64_t link) {
  links_[link];
  // What is being fenced may be on its way over this link as well.
  for (auto& [transfer, waiting] : fencing_) {
    waiting.insert(link);
    asked_.push_back({.link = link, .scope = {.transfer = transfer}});
  }
}

void TargetSession::OnLinkClosing(uint64_t link) {
  const auto it = links_.find(link);
  if (it != links_.end()) it->second.closing = true;
}

// Nothing lands over a link that is down.
absl::Status TargetSession::OnLinkDown(uint64_t link) {
  if (links_.erase(link) == 0) return absl::OkStatus();
  std::erase_if(asked_, [&](const Fence& fence) { return fence.link == link; });
  std::vector<uint64_t> waiting;
  for (const auto& [transfer, links] : fencing_) {
    if (links.contains(link)) waiting.push_back(transfer);
  }
  absl::Status status;
  for (const uint64_t transfer : waiting) status.Update(LinkIsQuiet(link, transfer));
  return status;
}

// --- transfers ---

bool TargetSession::Takes(FrameType type) {
  return type == FrameType::kOpen || type == FrameType::kAmend || type == FrameType::kAbort ||
         type == FrameType::kDiscard;
}

absl::Status TargetSession::OnFrame(const ReliableChannel::Incoming& frame) {
  switch (frame.type) {
    case FrameType::kOpen:
      return DecodeFor<OpenFrame>(frame.body,
                                  [&](auto& open) { return tracker_.OnOpen(std::move(open)); });
    case FrameType::kAmend:
      return DecodeFor<AmendFrame>(frame.body,
                                   [&](auto& amend) { return tracker_.OnAmend(amend); });
    case FrameType::kAbort:
      return DecodeFor<AbortFrame>(frame.body,
                                   [&](auto& abort) { return tracker_.OnAbort(abort); });
    case FrameType::kDiscard:
      return DecodeFor<DiscardFrame>(frame.body, [&](auto& discard) { return OnDiscard(discard); });
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("frame of type ", static_cast<int>(frame.type), " is not about a transfer"));
  }
}

absl::Status TargetSession::OnDiscard(const DiscardFrame& frame) {
  if (!rails_failed_) {
    return absl::InvalidArgumentError("a DISCARD where no rail was fenced");
  }
  absl::Status status = tracker_.OnDiscard(frame);
  return status.ok() ? tracker_.OnLanesDrained(frame.transfer) : status;
}

absl::Status TargetSession::OnImmediate(uint32_t immediate) {
  return tracker_.OnImmediate(DecodeImmediate(immediate));
}

absl::Status TargetSession::CheckLimits() const {
  const CreditFrame& given = tracker_.given_out();
  if (given.notifications + tracker_.held_notifications() > credit_.notifications ||
      given.bytes + tracker_.held_bytes() > credit_.bytes) {
    return absl::ResourceExhaustedError("it sends notifications that it has no credit for");
  }
  if (tracker_.active() > limits_.transfers ||
      tracker_.waiting_in_order() > limits_.transfers + limits_.notifications) {
    return absl::ResourceExhaustedError(
        absl::StrCat("it has more than ", limits_.transfers, " transfers at once"));
  }
  return absl::OkStatus();
}

std::optional<CreditFrame> TargetSession::TakeCredit(const CreditFrame& taken) {
  const CreditFrame now{.notifications = taken.notifications + limits_.notifications,
                        .bytes = taken.bytes + limits_.notification_bytes};
  const bool due = now.notifications - credit_.notifications > (limits_.notifications - 1) / 4 ||
                   now.bytes - credit_.bytes > CreditByteStep(limits_.notification_bytes);
  if (!due) return std::nullopt;
  credit_ = now;
  return now;
}

absl::Status TargetSession::TakeActions(Actions& out) {
  tracker_.TakeActions(out.tracked);
  absl::Status status;
  for (const uint64_t transfer : out.tracked.fence) status.Update(StartFence(transfer));
  out.fences.clear();
  out.fences.swap(asked_);
  return status;
}

// --- fences ---

absl::Status TargetSession::StartFence(uint64_t transfer) {
  if (links_.empty()) return tracker_.OnFenced(transfer);
  auto& waiting = fencing_[transfer];
  for (const auto& [number, link] : links_) {
    waiting.insert(number);
    if (!link.closing) asked_.push_back({.link = number, .scope = {.transfer = transfer}});
  }
  return absl::OkStatus();
}

absl::Status TargetSession::OnFenced(uint64_t link, uint64_t transfer) {
  const auto it = links_.find(link);
  if (it == links_.end() || !fencing_.contains(transfer)) return absl::OkStatus();
  if (!FencesRails(it->second)) return LinkIsQuiet(link, transfer);
  it->second.waiting.push_back(transfer);
  return absl::OkStatus();
}

// Nothing of `transfer` can come over `link` any more.
absl::Status TargetSession::LinkIsQuiet(uint64_t link, uint64_t transfer) {
  const auto it = fencing_.find(transfer);
  if (it == fencing_.end()) return absl::OkStatus();
  it->second.erase(link);
  if (!it->second.empty()) return absl::OkStatus();
  fencing_.erase(it);
  return tracker_.OnFenced(transfer);
}

absl::Status TargetSession::OnFenceRail(uint64_t link, uint32_t rail, size_t rails) {
  const auto it = links_.find(link);
  if (it == links_.end()) return absl::OkStatus();
  std::vector<RailState>& states = it->second.rails;
  if (rail < rails && rail >= states.size()) states.resize(rail + 1);
  if (rail >= states.size() || states[rail] != RailState::kUp) {
    return absl::InvalidArgumentError(
        absl::StrCat("a fence of rail ", rail, ", which is not there or is being fenced already"));
  }
  states[rail] = RailState::kFencing;
  if (!it->second.closing) asked_.push_back({.link = link, .scope = {.rail = rail}});
  return absl::OkStatus();
}

// Every immediate of the rail was reported before, and counted.
absl::Status TargetSession::OnRailFenced(uint64_t link, uint32_t rail) {
  const auto it = links_.find(link);
  if (it == links_.end()) return absl::OkStatus();
  Link& its = it->second;
  if (rail >= its.rails.size() || its.rails[rail] != RailState::kFencing) return absl::OkStatus();
  its.rails[rail] = RailState::kFenced;
  rails_failed_ = true;
  absl::Status status;
  if (FencesRails(its)) return status;
  for (const uint64_t transfer : std::exchange(its.waiting, {})) {
    status.Update(LinkIsQuiet(link, transfer));
  }
  return status;
}

bool TargetSession::FencesRails(const Link& link) {
  return std::ranges::find(link.rails, RailState::kFencing) != link.rails.end();
}

std::optional<uint32_t> TargetSession::NextFencedRail(uint64_t link) const {
  const auto it = links_.find(link);
  if (it == links_.end() || it->second.closing) return std::nullopt;
  const auto& rails = it->second.rails;
  const auto rail = std::ranges::find(rails, RailState::kFenced);
  if (rail == rails.end()) return std::nullopt;
  return static_cast<uint32_t>(rail - rails.begin());
}

void TargetSession::OnAnswered(uint64_t link, uint32_t rail) {
  links_.at(link).rails[rail] = RailState::kUp;
}

}  // namespace kvxfer
