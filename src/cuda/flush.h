// Makes data that NICs have written into GPU memory visible to kernels: a completion of the NIC
// does not imply that (docs/gpu.md, "Visibility"). The same holds for data that a NIC read from a
// peer into GPU memory. The flush is needed before anybody is notified of the data, unless the
// device orders such writes by itself (Device::writes_ordering).
//
// Thread-safety: none; called by the agent's driver only.

#ifndef KVXFER_CUDA_FLUSH_H_
#define KVXFER_CUDA_FLUSH_H_

#include <map>

#include "absl/status/status.h"
#include "src/cuda/driver.h"

namespace kvxfer::cuda {

// The devices whose memory a backend has registered with NICs.
class Flusher {
 public:
  // A region of `device` was registered, or deregistered. An error of Add: the device neither
  // orders such writes nor can it flush them, so its memory must not be given to NICs.
  absl::Status Add(const Driver* driver, int device);
  void Remove(int device);

  // Whether Flush has anything to do. Cheap.
  bool needed() const { return needed_ > 0; }
  // One flush covers everything that has completed until now. An error: the completed data must not
  // be reported as received.
  absl::Status Flush();

 private:
  struct Use {
    size_t regions = 0;
    bool flushes = false;
  };
  const Driver* driver_ = nullptr;
  std::map<int, Use> devices_;
  size_t needed_ = 0;  // how many of devices_ need flushes
};

}  // namespace kvxfer::cuda

#endif  // KVXFER_CUDA_FLUSH_H_
