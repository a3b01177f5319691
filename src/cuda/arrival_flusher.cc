#include "src/cuda/arrival_flusher.h"

#include <utility>

#include "src/core/base/log.h"
#include "src/core/base/strings.h"

namespace kvxfer::cuda {

absl::Status ArrivalFlusher::AddRegion(const Driver* driver, int device) {
  if (absl::Status status = flusher_.Add(driver, device); !status.ok()) return status;
  ++regions_;
  return absl::OkStatus();
}

void ArrivalFlusher::RemoveRegion(int device) {
  flusher_.Remove(device);
  --regions_;
}

void ArrivalFlusher::OnRead(const Endpoint* endpoint, uint64_t op) {
  any_ = true;
  if (flusher_.needed()) reads_.push_back({.endpoint = endpoint, .op = op});
}

void ArrivalFlusher::Forget(const Endpoint* endpoint) {
  std::erase_if(reads_, [endpoint](const Read& read) { return read.endpoint == endpoint; });
}

size_t ArrivalFlusher::Flush(std::span<Event> events, std::string_view backend) {
  any_ = false;
  // One flush for everything that completed before it, also for events that are still queued.
  const absl::Status status = flusher_.needed() ? flusher_.Flush() : absl::OkStatus();
  if (!status.ok()) return Withdraw(events, Annotate(status, backend));
  logged_ = false;
  reads_.clear();
  return events.size();
}

size_t ArrivalFlusher::Withdraw(std::span<Event> events, const absl::Status& why) {
  if (!std::exchange(logged_, true)) {
    Log(LogLevel::kError, "what a NIC wrote to GPU memory is not known to be there: {}",
        ToStd(why.message()));
  }             // events that are still in the backend's queue need a flush too
  any_ = true;  // of what still waits in the backend's queue
  std::vector<Endpoint*> losers;
  size_t left = 0;
  for (Event& event : events) {
    if (event.kind == EventKind::kImmediate) {
      losers.push_back(event.endpoint);
      continue;
    }
    // Internal: it would fail over any rail, so the agent must not repeat it.
    if (event.kind == EventKind::kCompletion && event.status.ok() &&
        std::erase(reads_, Read{event.endpoint, event.id}) > 0) {
      event.status = absl::InternalError(why.message());
    }
    if (&events[left] != &event) events[left] = std::move(event);
    ++left;
  }
  // After the loop: Shutdown may queue further events.
  for (Endpoint* const endpoint : losers) endpoint->Shutdown(why);
  return left;
}

}  // namespace kvxfer::cuda
