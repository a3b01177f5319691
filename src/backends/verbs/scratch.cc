#include "src/backends/verbs/scratch.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "src/backends/verbs/backend.h"
#include "src/core/base/random.h"

namespace kvxfer::verbs {

absl::Status Scratch::AddPage(std::span<const std::unique_ptr<Device>> devices) {
  Page page;
  page.memory = NewPages(kPageBytes);
  if (page.memory == nullptr) return absl::ResourceExhaustedError("verbs: no memory");
  const LocalRegion region{.rkey = RandomNonZero32(),
                           .span = {.data = page.memory.get(), .bytes = kPageBytes},
                           .access = access_};
  DeviceMemory memory;
  if (absl::Status status = memory.Register(region.span, access_, devices); !status.ok()) {
    // A page that some devices refused is used all the same: Take looks for a slot that every
    // device has.
    return status;
  }
  page.registration = std::make_unique<VerbsRegistration>(nullptr, region, std::move(memory));
  for (size_t at = 0; at < kPageBytes; at += kSlotBytes) {
    free_.push_back({page.memory.get() + at, page.registration.get()});
  }
  pages_.push_back(std::move(page));
  return absl::OkStatus();
}

// A slot that every device has is preferred. If there is none, a new page is tried: a device may
// take it although it did not take an earlier one. At most once per kRetry.
absl::StatusOr<Scratch::Slot> Scratch::Take(std::span<const std::unique_ptr<Device>> devices) {
  const auto whole = [&](const Slot& slot) {
    return std::ranges::all_of(devices, [&](const auto& device) {
      return device->broken() || slot.registration->has(device->ordinal());
    });
  };
  auto found = std::ranges::find_if(free_, whole);
  if (found == free_.end() && (free_.empty() || Now() >= retry_at_)) {
    retry_at_ = Now() + kRetry;
    const absl::Status status = AddPage(devices);
    if (!status.ok() && free_.empty()) return status;
    found = std::ranges::find_if(free_, whole);
  }
  if (found == free_.end()) --found;
  const Slot slot = *found;
  *found = free_.back();
  free_.pop_back();
  std::memset(slot.at, 0, kSlotBytes);
  return slot;
}

}  // namespace kvxfer::verbs
