// The last step of a backend that lets NICs write into GPU memory: between the completions of a
// Poll and the events that it hands out, what has landed is made visible to kernels, once for all
// of them. Where that fails it is not told: an immediate is withdrawn and its endpoint shut down, a
// read ends with the error.
//
// Every event passes here, at the end of the Poll that hands it out, so nothing that is told of can
// be missed, whenever it was put into the backend's queue.
//
// Thread-safety: none; used by the backend's owner.

#ifndef KVXFER_CUDA_LANDED_H_
#define KVXFER_CUDA_LANDED_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "kvxfer/backend.h"
#include "src/cuda/driver.h"
#include "src/cuda/flush.h"

namespace kvxfer::cuda {

class Landed {
 public:
  // A region of GPU memory is registered, or not any more. As Flusher::Add.
  absl::Status AddRegion(const Driver* driver, int device);
  void RemoveRegion(int device);
  size_t regions() const { return regions_; }

  // A write of a peer is there; its immediate is told of from now on.
  void OnImmediate() { any_ = true; }
  // The same of op `op` of `endpoint`, a read into GPU memory that has ended well.
  void OnRead(const Endpoint* endpoint, uint64_t op);
  // `endpoint` is being destroyed.
  void Forget(const Endpoint* endpoint);

  // Before `events` are handed out; how many of them are left. `backend` is how errors begin.
  size_t Show(std::span<Event> events, std::string_view backend) {
    return any_ ? Flush(events, backend) : events.size();
  }

 private:
  struct Read {
    const Endpoint* endpoint = nullptr;
    uint64_t op = 0;
    bool operator==(const Read&) const = default;
  };
  size_t Flush(std::span<Event> events, std::string_view backend);
  size_t Withdraw(std::span<Event> events, const absl::Status& why);

  Flusher flusher_;
  size_t regions_ = 0;
  bool any_ = false;   // has landed since the last flush
  bool told_ = false;  // that it fails
  std::vector<Read> reads_;
};

}  // namespace kvxfer::cuda

#endif  // KVXFER_CUDA_LANDED_H_
