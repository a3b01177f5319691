// GPU memory that a benchmark or demo process allocates, as an engine does. The CPU reads and
// writes it by synchronous copies of the CUDA driver, which use neither kvxfer nor its copy kernel.
//
// Thread-safety: any thread may make const calls.
#ifndef KVXFER_CLI_COMMON_GPU_MEMORY_H_
#define KVXFER_CLI_COMMON_GPU_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/memory.h"
#include "src/cuda/driver.h"

namespace kvxfer::cli {

// InvalidArgument: the driver has no such device. Unimplemented, FailedPrecondition: there is no
// driver, or it cannot be used; the message has the cause and says what to do.
absl::StatusOr<const cuda::Driver*> DriverFor(int device);

// The driver's error with a code for this program, in which Unavailable means a lost peer.
absl::Status OfThisHost(const absl::Status& status);

// Zeroed. The destructor frees it.
class GpuMemory {
 public:
  // Errors of DriverFor, ResourceExhausted, or another error of the driver.
  static absl::StatusOr<GpuMemory> Allocate(int device, size_t bytes);

  GpuMemory() = default;
  GpuMemory(GpuMemory&& other) noexcept;
  GpuMemory& operator=(GpuMemory&& other) noexcept;
  ~GpuMemory();

  MemorySpan span() const;
  uint64_t base() const { return base_; }

  // These are complete, and visible to every process and device, when they return.
  absl::Status Write(uint64_t offset, std::span<const std::byte> from) const;
  absl::Status Read(uint64_t offset, std::span<std::byte> to) const;
  absl::Status Zero(uint64_t offset, uint64_t bytes) const;

 private:
  const cuda::Driver* driver_ = nullptr;  // null: this object holds no memory
  int device_ = 0;
  uint64_t base_ = 0;
  size_t bytes_ = 0;
};

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_GPU_MEMORY_H_
