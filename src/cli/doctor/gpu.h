// What `kvxfer doctor` knows of GPUs: what the CUDA driver says, and where each GPU is.
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

// From one GPU to another: kernels and copies of `from` that touch memory of `to`.
struct GpuLink {
  int from = 0;
  int to = 0;
  bool access = false;   // without the host in between
  bool atomics = false;  // all of CUDA's, as over NVLink
  int rank = -1;         // of performance, 0 is best; -1: not told
};

// What the CUDA driver says, to this process.
struct CudaState {
  bool asked = false;     // false: the view is of another host
  absl::Status status{};  // why there is no GPU memory here: as Driver::Get, or DeadlineExceeded
  int version = 0;        // 13000: CUDA 13.0
  std::string library{};  // its file; empty: none was loaded
  std::vector<cuda::Device> devices{};
  std::vector<GpuLink> links{};  // of every two, in both directions
  // Of pinning more host memory than the usual limit for locked memory allows.
  absl::Status pinned{};
};

// Loads and initialises the driver, which may take seconds; makes a context of the first device for
// a moment.
CudaState AskCuda();
// What `ask` returns; or where that takes longer, DeadlineExceeded. It is left alone then, in a
// thread that may never end, and nobody else may ask the driver.
CudaState AskWithin(Duration longest, std::function<CudaState()> ask);

// "cuda:0 cuda:1", at most eight of them and how many more.
std::string GpuNames(const std::vector<int>& ordinals);
// A part of a GPU (MIG), which the driver shows as a device of its own.
bool IsInstance(const cuda::Device& device);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_DOCTOR_GPU_H_
