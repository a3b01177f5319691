// Memory of a GPU that a process of a benchmark or a demo allocates, as an engine does, and how the
// CPU gets at it: by copies of the driver, synchronous ones, which go neither through kvxfer nor
// through its copy kernel.
//
// Thread-safety: const calls from any thread.
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

// InvalidArgument: there is a driver, and no such device. Unimplemented, FailedPrecondition: there
// is no driver, or it cannot be used; with cause and remedy.
absl::StatusOr<const cuda::Driver*> DriverFor(int device);

// An error of the driver as the program ends with it: Unavailable is kept for peers that are lost.
absl::Status OfThisHost(const absl::Status& status);

// Zeroed. Freed when destroyed.
class GpuMemory {
 public:
  // Besides what DriverFor says: ResourceExhausted, or another error of the driver.
  static absl::StatusOr<GpuMemory> Allocate(int device, size_t bytes);

  GpuMemory() = default;
  GpuMemory(GpuMemory&& other) noexcept;
  GpuMemory& operator=(GpuMemory&& other) noexcept;
  ~GpuMemory();

  MemorySpan span() const;
  uint64_t base() const { return base_; }

  // When they return it has happened, for whoever looks.
  absl::Status Write(uint64_t offset, std::span<const std::byte> from) const;
  absl::Status Read(uint64_t offset, std::span<std::byte> to) const;
  absl::Status Zero(uint64_t offset, uint64_t bytes) const;

 private:
  const cuda::Driver* driver_ = nullptr;  // null: none is held
  int device_ = 0;
  uint64_t base_ = 0;
  size_t bytes_ = 0;
};

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_GPU_MEMORY_H_
