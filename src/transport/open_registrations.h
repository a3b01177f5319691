// The open registrations of a backend whose devices write to memory by themselves, also to a GPU's.
// Registrations are made on any thread, and the driver takes them over later.
//
// Thread-safety: Add from any thread; the rest by the driver only.

#ifndef KVXFER_TRANSPORT_OPEN_REGISTRATIONS_H_
#define KVXFER_TRANSPORT_OPEN_REGISTRATIONS_H_

#include <unordered_set>
#include <vector>

#include "src/cuda/arrival_flusher.h"
#include "src/transport/added_list.h"

namespace kvxfer::net {

// `R` has gpu(), a cuda::Device that is null for host memory; driver(); and Close(), which ends it
// before its destructor does.
template <typename R>
class OpenRegistrations {
 public:
  // `flusher` is borrowed. It is notified of GPU memory.
  explicit OpenRegistrations(cuda::ArrivalFlusher* flusher) : flusher_(flusher) {}

  void Add(R* registration) { added_.Add(registration); }
  bool any_added() const { return added_.any(); }
  // Takes over what was added, and returns it. Cheap if nothing was.
  std::vector<R*> TakeAdded() {
    if (!added_.any()) return {};
    std::vector<R*> taken = added_.Take();
    for (R* registration : taken) {
      open_.insert(registration);
      if (registration->gpu() == nullptr) continue;
      // Register has seen that this does not fail.
      flusher_->AddRegion(registration->driver(), registration->gpu()->ordinal).IgnoreError();
    }
    return taken;
  }
  void Remove(R* registration) {
    // Nothing was done for one that goes before it was taken over.
    if (added_.Remove(registration)) return;
    open_.erase(registration);
    if (registration->gpu() != nullptr) flusher_->RemoveRegion(registration->gpu()->ordinal);
  }
  // Closes all of them, which the backend does before their devices.
  void Close() {
    for (R* registration : added_.Take()) registration->Close();
    for (R* registration : open_) registration->Close();
    open_.clear();
  }

  // Those that were taken over.
  const std::unordered_set<R*>& open() const { return open_; }

 private:
  cuda::ArrivalFlusher* const flusher_;
  std::unordered_set<R*> open_;
  AddedList<R> added_;
};

}  // namespace kvxfer::net

#endif  // KVXFER_TRANSPORT_OPEN_REGISTRATIONS_H_
