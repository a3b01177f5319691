// The last step of a Poll in a backend that lets NICs write into GPU memory. Between the
// completions and the events that the Poll returns, it makes the received data visible to kernels,
// with one flush for all of them. If the flush fails, the data is not reported: an immediate is
// withdrawn and its endpoint is shut down, and a read ends with the error.
//
// Every event passes through here at the end of the Poll that returns it. So no event can bypass
// the flush, whenever it entered the backend's queue.
//
// Thread-safety: none; called by the agent's driver only.

#ifndef KVXFER_CUDA_ARRIVAL_FLUSHER_H_
#define KVXFER_CUDA_ARRIVAL_FLUSHER_H_

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

class ArrivalFlusher {
 public:
  // A region of GPU memory was registered, or deregistered. Errors as Flusher::Add.
  absl::Status AddRegion(const Driver* driver, int device);
  void RemoveRegion(int device);
  size_t regions() const { return regions_; }

  // A peer's write is complete; its immediate may be reported from now on.
  void OnImmediate() { any_ = true; }
  // The same for op `op` of `endpoint`, a read into GPU memory that succeeded.
  void OnRead(const Endpoint* endpoint, uint64_t op);
  // `endpoint` is being destroyed.
  void Forget(const Endpoint* endpoint);

  // Call before `events` are returned. Returns how many of them remain. Error texts begin with
  // `backend`.
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
  bool any_ = false;     // something was received since the last flush
  bool logged_ = false;  // the failure was logged
  std::vector<Read> reads_;
};

}  // namespace kvxfer::cuda

#endif  // KVXFER_CUDA_ARRIVAL_FLUSHER_H_
