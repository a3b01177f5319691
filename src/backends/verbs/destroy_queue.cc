#include "src/backends/verbs/destroy_queue.h"

#include <algorithm>
#include <utility>

#include "src/core/base/log.h"
#include "src/core/base/strings.h"

namespace kvxfer::verbs {
namespace {

constexpr Duration kFirstWait = std::chrono::milliseconds(10);
constexpr Duration kMaxWait = std::chrono::seconds(1);
// Per device. Queue pairs that are made and never destroyed use up the device's memory.
constexpr ptrdiff_t kMaxOfDevice = 64;
constexpr int kLastTries = 3;

}  // namespace

bool DestroyQueue::Destroy(std::unique_ptr<QueuePair> pair, Client* client, uint32_t tag,
                           uint32_t space) {
  if (pair == nullptr) return true;
  Device& device = pair->device();
  const absl::Status status = pair->Destroy();
  if (status.ok()) {
    device.GiveSpaceWhenPolled(space);
    return true;
  }
  Log(LogLevel::kError, "verbs: {}; it may still move data, and is tried again",
      ToStd(status.message()));
  // In the error state it executes nothing more, as far as the device obeys.
  pair->SetError();
  entries_.push_back({.pair = std::move(pair),
                      .client = client,
                      .tag = tag,
                      .space = space,
                      .wait = kFirstWait,
                      .next = Now() + kFirstWait});
  return false;
}

void DestroyQueue::Forget(const Client* client) {
  for (Entry& entry : entries_) {
    if (entry.client == client) entry.client = nullptr;
  }
}

absl::Status DestroyQueue::CheckSpace(const Device& device) const {
  const auto waiting = std::ranges::count_if(
      entries_, [&](const Entry& entry) { return &entry.pair->device() == &device; });
  if (waiting < kMaxOfDevice) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(device.name(), " does not destroy ", waiting,
                   " queue pairs that are to go; look at the kernel log"));
}

std::optional<Time> DestroyQueue::deadline() const {
  if (entries_.empty()) return std::nullopt;
  return std::ranges::min_element(entries_, {}, &Entry::next)->next;
}

void DestroyQueue::OnDeadline(Time now) {
  std::vector<Entry> over;
  for (Entry& entry : entries_) {
    if (entry.next > now) continue;
    if (entry.pair->Destroy().ok()) {
      over.push_back(std::move(entry));
      continue;
    }
    entry.wait = std::min(entry.wait * 2, kMaxWait);
    entry.next = now + entry.wait;
  }
  std::erase_if(entries_, [](const Entry& entry) { return entry.pair == nullptr; });
  for (Entry& entry : over) {
    Device& device = entry.pair->device();
    Log(LogLevel::kInfo, "verbs: {}: queue pair {} is gone at last", device.name(),
        entry.pair->number());
    device.GiveSpaceWhenPolled(entry.space);
    if (entry.client != nullptr) {
      entry.client->OnDestroyed(entry.tag, device, entry.pair->number());
    }
  }
}

void DestroyQueue::Close() {
  for (Entry& entry : entries_) {
    for (int i = 1; i < kLastTries && !entry.pair->Destroy().ok(); ++i) {
    }
  }
  entries_.clear();
}

}  // namespace kvxfer::verbs
