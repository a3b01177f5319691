// CUDA events of kvxfer's own, kept for their next use: making and destroying one costs two calls
// of the driver.
//
// Thread-safety: everything from any thread. Not in a forked child, where the CUDA driver does not
// work.

#ifndef KVXFER_CUDA_EVENT_POOL_H_
#define KVXFER_CUDA_EVENT_POOL_H_

#include <cstddef>
#include <map>
#include <mutex>
#include <vector>

#include "absl/status/statusor.h"
#include "src/cuda/driver.h"

namespace kvxfer::cuda {

class EventPool {
 public:
  // The most that are kept of one device.
  static constexpr size_t kMostKept = 1024;

  // That of the process. Never destroyed: the last transfers may end while static objects are
  // destroyed.
  static EventPool& Get();

  // An event without timing, of the device's primary context.
  absl::StatusOr<api::CUevent> Take(const Driver& driver, int device);
  // What was recorded in it may still be ahead: the next use records it anew.
  void Return(const Driver& driver, int device, api::CUevent event);
  // Destroys `event`, which could not be recorded, and those that are kept of its device: if the
  // application has reset the device, none of them exists any more.
  void Discard(const Driver& driver, int device, api::CUevent event);

 private:
  std::mutex mu_;                                  // not held during calls of the driver
  std::map<int, std::vector<api::CUevent>> kept_;  // by device
};

}  // namespace kvxfer::cuda

#endif  // KVXFER_CUDA_EVENT_POOL_H_
