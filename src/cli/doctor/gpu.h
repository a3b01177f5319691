// What `kvxfer doctor` knows about GPUs from the CUDA driver.
//
// Thread-safety: plain values; any thread.
#ifndef KVXFER_CLI_DOCTOR_GPU_H_
#define KVXFER_CLI_DOCTOR_GPU_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kvxfer/types.h"
#include "src/cuda/driver.h"

namespace kvxfer::cli {

// Access from one GPU to another: by kernels and copies of `from` to memory of `to`.
struct GpuLink {
  int from = 0;
  int to = 0;
  bool access = false;   // directly, not through the host
  bool atomics = false;  // all atomic operations of CUDA, as over NVLink
  int rank = -1;         // performance rank, 0 is best; -1: unknown
};

// What the CUDA driver reports to this process.
struct CudaState {
  bool asked = false;     // false: this is a view of another host
  absl::Status status{};  // why GPU memory cannot be used: Driver::Get's, or DeadlineExceeded
  int version = 0;        // 13000: CUDA 13.0
  std::string library{};  // the file of the driver; empty: none was loaded
  std::vector<cuda::Device> devices{};
  std::vector<GpuLink> links{};  // of each pair, in both directions
  // The result of pinning more host memory than the usual limit of locked memory.
  absl::Status pinned{};
};

// Loads and initialises the driver, which may take seconds, and creates a context on the first
// device for a moment.
CudaState AskCuda();
// The result of `ask`, or DeadlineExceeded if it takes longer. Its thread goes on then and may
// never end, so that nothing else may call the driver.
CudaState AskWithin(Duration longest, std::function<CudaState()> ask);

// "cuda:0 cuda:1", shortened as by Names (doctor.h).
std::string GpuNames(const std::vector<int>& ordinals);
// Whether the device is a MIG instance, which is a part of a GPU.
bool IsInstance(const cuda::Device& device);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_DOCTOR_GPU_H_
