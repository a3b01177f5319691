#include "src/agent/engine/deregistrations.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvxfer {

// Checks every region before Begin changes any, so that Begin takes all of them or none.
absl::Status Deregistrations::Check(std::span<const RegionId> regions) const {
  std::set<RegionId> named;
  for (const RegionId region : regions) {
    const auto number = static_cast<uint32_t>(region);
    if (!named.insert(region).second) {
      return absl::InvalidArgumentError(absl::StrCat("region ", number, " is named twice"));
    }
    const auto it = closing_.find(region);
    if (it == closing_.end()) {
      absl::Status status = runtime_->kv.CheckFree(region);
      if (status.ok()) status = runtime_->memory.CheckOpen(region);
      if (!status.ok()) return status;
    } else if (it->second.left != nullptr) {
      return absl::FailedPreconditionError(absl::StrCat(
          "region ", number, " is being deregistered by another call; wait for that one"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Deregistrations::Left> Deregistrations::Begin(std::span<const RegionId> regions) {
  if (auto status = Check(regions); !status.ok()) return status;
  auto left = std::make_shared<std::atomic<size_t>>(regions.size());
  std::vector<RegionId> known;
  for (const RegionId region : regions) {
    const auto [it, fresh] = closing_.try_emplace(region);
    it->second.left = left;
    if (!fresh) {
      known.push_back(region);
      continue;
    }
    runtime_->memory.Close(region).IgnoreError();  // Check found it open
    unasked_.push_back(region);
  }
  // Metadata no longer lists these regions.
  if (known.size() < regions.size()) ++runtime_->revision;
  // The peers were asked about these in an earlier call and may have answered since. No event will
  // name these regions again, so look at them now.
  if (!known.empty()) due_.push_back(std::move(known));
  Advance();
  return left;
}

// A peer bounds the number of questions that it keeps. Beyond kMaxRevoking open questions the
// regions wait in unasked_ and go together into the next question.
void Deregistrations::Ask() {
  while (!unasked_.empty() && inbound_->questions().revoking() < QuestionBook::kMaxRevoking) {
    const auto end = unasked_.begin() +
                     static_cast<std::ptrdiff_t>(std::min(unasked_.size(), kMaxListedRegions));
    std::vector<RegionId> some(unasked_.begin(), end);
    unasked_.erase(unasked_.begin(), end);
    const uint64_t question = inbound_->StartRevoke(some);
    for (const RegionId region : some) closing_.at(region).question = question;
    asked_.emplace(question, std::move(some));
  }
}

size_t Deregistrations::Advance() {
  if (closing_.empty()) {
    due_.clear();  // of regions that are named again, and are gone
    return 0;
  }
  Ask();
  for (const uint64_t question : inbound_->questions().TakeRevoked()) {
    due_.push_back(std::move(asked_.extract(question).mapped()));
  }
  if (auto released = runtime_->memory.TakeReleased(); !released.empty()) {
    due_.push_back(std::move(released));
  }
  // Added only when nothing else is due. If they were added in every call, more than kAtOnce of
  // them would keep due() true, and the driver would never sleep. The engine's copy timer brings
  // the next call.
  if (due_.empty() && !copied_.empty()) due_.push_back(std::exchange(copied_, {}));
  size_t looked = 0;
  for (; looked < kAtOnce && !due_.empty(); ++looked) {
    Look(due_.front().back());
    due_.front().pop_back();
    if (due_.front().empty()) due_.pop_front();
  }
  return looked;
}

void Deregistrations::Look(RegionId region) {
  const auto it = closing_.find(region);
  if (it == closing_.end()) return;
  const Closing& closing = it->second;
  const bool quiet = closing.question != 0 && !asked_.contains(closing.question);
  // Not free yet. The event that frees it names it again: Begin, TakeRevoked or TakeReleased.
  if (!quiet || closing.left == nullptr || runtime_->memory.InUse(region)) return;
  if (runtime_->staging.InUse(region)) {
    copied_.push_back(region);
    return;
  }
  runtime_->memory.Remove(region);
  runtime_->staging.RemoveRegion(region);
  // Release: once the caller reads 0 it may free the memory, so all that was done with the regions
  // comes before.
  if (closing.left->fetch_sub(1, std::memory_order_acq_rel) == 1) {
    runtime_->loop.Wake(closing.left.get());
  }
  closing_.erase(it);
}

std::vector<RegionId> Deregistrations::Leave(std::span<const RegionId> regions) {
  std::vector<RegionId> stay;
  for (const RegionId region : regions) {
    const auto it = closing_.find(region);
    if (it == closing_.end()) continue;
    it->second.left.reset();
    stay.push_back(region);
  }
  return stay;
}

std::string Deregistrations::Pending(RegionId region) const {
  const uint64_t question = closing_.at(region).question;
  if (question == 0) {
    return absl::StrCat("peers, which are asked about it once one of ",
                        inbound_->questions().revoking(), " earlier questions is answered");
  }
  std::string peers = inbound_->Pending(question);
  return peers.empty() ? "transfers of this agent" : peers;
}

}  // namespace kvxfer
