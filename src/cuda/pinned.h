// Pins host memory for a GPU, which can then copy to and from it by itself at full speed.
//
// Thread-safety: none; may be destroyed on any thread.

#ifndef KVXFER_CUDA_PINNED_H_
#define KVXFER_CUDA_PINNED_H_

#include <cstddef>
#include <utility>

#include "absl/status/statusor.h"
#include "src/cuda/driver.h"

namespace kvxfer::cuda {

// [data, data + bytes) is pinned while this exists: for every device of the process, at the same
// address as for the CPU. The memory must stay mapped for that long.
class Pinned {
 public:
  // ResourceExhausted, with the cause and the limit to raise (RLIMIT_MEMLOCK, cgroup);
  // InvalidArgument; AlreadyExists: some of it is pinned already; Unimplemented: the GPU sees it at
  // another address.
  static absl::StatusOr<Pinned> Pin(const Driver* driver, int device, void* data, size_t bytes);
  Pinned() = default;
  Pinned(Pinned&& other) noexcept
      : driver_(std::exchange(other.driver_, nullptr)),
        device_(other.device_),
        data_(other.data_) {}
  Pinned& operator=(Pinned&& other) noexcept;
  ~Pinned() { Unpin(); }

 private:
  void Unpin();
  const Driver* driver_ = nullptr;
  int device_ = 0;
  void* data_ = nullptr;
};

}  // namespace kvxfer::cuda

#endif  // KVXFER_CUDA_PINNED_H_
