#include "src/backends/verbs/scratch.h"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "src/backends/verbs/backend.h"
#include "src/core/random.h"

namespace kvxfer::verbs {

void Scratch::Free::operator()(std::byte* page) const { std::free(page); }

absl::StatusOr<Scratch::Slot> Scratch::Take(std::span<const std::unique_ptr<Device>> devices) {
  if (free_.empty()) {
    Page page;
    page.memory.reset(static_cast<std::byte*>(std::aligned_alloc(4096, kPageBytes)));
    if (page.memory == nullptr) return absl::ResourceExhaustedError("verbs: no memory");
    DeviceMemory memory;
    if (absl::Status status =
            memory.Register({.data = page.memory.get(), .bytes = kPageBytes}, access_, devices);
        !status.ok()) {
      return status;
    }
    page.registration =
        std::make_unique<VerbsRegistration>(nullptr, RandomNonZero32(), std::move(memory));
    for (size_t at = 0; at < kPageBytes; at += kSlotBytes) {
      free_.push_back({page.memory.get() + at, page.registration.get()});
    }
    pages_.push_back(std::move(page));
  }
  const Slot slot = free_.back();
  free_.pop_back();
  std::memset(slot.at, 0, kSlotBytes);
  return slot;
}

}  // namespace kvxfer::verbs
