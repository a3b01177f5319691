#include "src/transport/fence_waits.h"

#include <algorithm>

namespace kvxfer {

void StoppingTransfers::Add(uint64_t transfer, size_t ops, std::vector<uint64_t> progress,
                            Time now) {
  stopping_[transfer] = {.ops = ops, .until = now + patience_, .progress = std::move(progress)};
}

bool StoppingTransfers::OnOpDone(uint64_t transfer) {
  if (stopping_.empty()) return false;
  const auto it = stopping_.find(transfer);
  if (it == stopping_.end() || --it->second.ops > 0) return false;
  stopping_.erase(it);
  return true;
}

std::vector<std::pair<uint32_t, uint64_t>> StoppingTransfers::TakeStuck(
    Time now, const std::vector<uint64_t>& progress) {
  std::vector<std::pair<uint32_t, uint64_t>> stuck;
  for (auto& [transfer, stopping] : stopping_) {
    if (stopping.until > now) continue;
    stopping.until = now + patience_;
    const std::vector<uint64_t> before = std::exchange(stopping.progress, progress);
    for (uint32_t rail = 0; rail < before.size(); ++rail) {
      if (before[rail] == progress[rail]) stuck.emplace_back(rail, transfer);
    }
  }
  return stuck;
}

std::optional<Time> StoppingTransfers::deadline() const {
  std::optional<Time> next;
  for (const auto& [transfer, stopping] : stopping_) next = Earlier(next, stopping.until);
  return next;
}

uint32_t ConfirmedFences::Ask(uint64_t transfer, Time now) {
  asked_.try_emplace(transfer, now + kPatience);
  return Answered(transfer, book_.Ask(transfer));
}

uint32_t ConfirmedFences::Answered(uint64_t transfer, uint32_t answers) {
  if (answers > 0) asked_.erase(transfer);
  return answers;
}

bool ConfirmedFences::late(Time now) const {
  return std::ranges::any_of(asked_, [now](const auto& fence) { return fence.second <= now; });
}

std::optional<Time> ConfirmedFences::deadline() const {
  std::optional<Time> next;
  for (const auto& [transfer, until] : asked_) next = Earlier(next, until);
  return next;
}

std::vector<uint64_t> ConfirmedFences::unanswered() const {
  std::vector<uint64_t> out;
  for (const auto& [transfer, until] : asked_) out.push_back(transfer);
  return out;
}

}  // namespace kvxfer
