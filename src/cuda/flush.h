// Makes what NICs have written into GPU memory, or read into it, visible to kernels: a completion
// of the NIC does not say that it is (docs/gpu.md, "Visibility"). Needed before anybody is told of
// the data, unless the device orders such writes by itself (Device::writes_ordering).
//
// Thread-safety: none; used by the backend's owner.

#ifndef KVXFER_CUDA_FLUSH_H_
#define KVXFER_CUDA_FLUSH_H_

#include <map>

#include "absl/status/status.h"
#include "src/cuda/driver.h"

namespace kvxfer::cuda {

// The devices whose memory a backend has given to NICs.
class Flusher {
 public:
  // A region of `device` is registered, or not any more. An error of Add: the device neither orders
  // writes nor can flush them; its memory must not be given to NICs.
  absl::Status Add(const Driver* driver, int device);
  void Remove(int device);

  // Whether Flush has anything to do. Cheap.
  bool needed() const { return needed_ > 0; }
  // Once for all that has completed until now. An error: what completed must not be told as there.
  absl::Status Flush();

 private:
  struct Use {
    size_t regions = 0;
    bool flushes = false;
  };
  const Driver* driver_ = nullptr;
  std::map<int, Use> devices_;
  size_t needed_ = 0;  // devices that flush
};

}  // namespace kvxfer::cuda

#endif  // KVXFER_CUDA_FLUSH_H_
