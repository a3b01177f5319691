// Memory of a KV cache of `bench`, `demo` and `ping`, on the host or on a GPU. No CPU may touch GPU
// memory directly; the functions here fill and check memory of either kind.
//
// Thread-safety: any thread may make const calls. Callers must not touch the same bytes at once.

#ifndef KVXFER_CLI_COMMON_CACHE_MEMORY_H_
#define KVXFER_CLI_COMMON_CACHE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/memory.h"
#include "src/cli/common/units.h"
#include "src/cuda/driver.h"

namespace kvxfer::cli {

// InvalidArgument: the driver has no such device. Unimplemented, FailedPrecondition: there is no
// driver, or it cannot be used; the message has the cause and says what to do.
absl::StatusOr<const cuda::Driver*> DriverFor(int device);

// The driver's error with a code for this program, in which Unavailable means a lost peer.
absl::Status OfThisHost(const absl::Status& status);

// GPU memory that a benchmark or demo process allocates, as an engine does; zeroed. The CPU reads
// and writes it by synchronous copies of the CUDA driver, which use neither kvxfer nor its copy
// kernel. The destructor frees it.
class GpuMemory {
 public:
  // Errors of DriverFor, ResourceExhausted, or another error of the driver.
  static absl::StatusOr<GpuMemory> Allocate(int device, size_t bytes);

  GpuMemory() = default;

  MemorySpan span() const;
  uint64_t base() const { return held_->base; }

  // These are complete, and visible to every process and device, when they return.
  absl::Status Write(uint64_t offset, std::span<const std::byte> from) const;
  absl::Status Read(uint64_t offset, std::span<std::byte> to) const;
  absl::Status Zero(uint64_t offset, uint64_t bytes) const;

 private:
  struct Held {
    const cuda::Driver* driver;
    int device;
    uint64_t base;
    size_t bytes;
    ~Held();
  };

  // Makes a call on the device.
  absl::Status Call(const char* name, absl::FunctionRef<cuda::api::CUresult()> call) const;

  std::unique_ptr<const Held> held_;  // null: this object holds no memory
};

// The memory that one side of a run needs.
struct MemoryNeed {
  MemoryChoice choice{};
  uint64_t bytes = 0;
};
// InvalidArgument unless this host, and each named GPU, has that much memory in total. This refuses
// a run before the kernel has to kill a process for it. `instead` tells the user what to use.
// Returns the error of DriverFor if a named GPU cannot be used.
absl::Status CheckFits(std::span<const MemoryNeed> needs, const char* instead);

// A range of a CacheMemory.
struct Stretch {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

enum class Touch {
  kRead,
  kWrite,   // every byte of each stretch is written, and no other byte
  kUpdate,  // read and written back; nothing else may touch the memory meanwhile
};

// Page-aligned and zeroed. The destructor frees it.
class CacheMemory {
 public:
  static absl::StatusOr<CacheMemory> Allocate(const MemoryChoice& choice, size_t bytes);

  MemorySpan span() const;
  uint64_t base() const { return reinterpret_cast<uint64_t>(span().data); }
  uint64_t size() const { return span().bytes; }
  // Empty for GPU memory.
  std::span<std::byte> host_bytes() const;

  // Calls visit(number of the stretch, its bytes) for each stretch until a call returns an error.
  // Returns that error, or an error of the driver. `stretches` ascend and do not overlap. The bytes
  // are those of host memory itself, or a copy of GPU memory; they are valid during the call.
  using Visit = absl::FunctionRef<absl::Status(size_t, std::span<std::byte>)>;
  absl::Status ForEach(std::span<const Stretch> stretches, Touch touch, Visit visit) const;
  absl::Status Zero(const Stretch& stretch) const;

 private:
  absl::Status ForEachOfGpu(std::span<const Stretch> stretches, Touch touch, Visit visit) const;

  struct Unmap {
    size_t bytes;
    void operator()(void* data) const;
  };

  bool gpu_ = false;
  // One of these holds the memory.
  GpuMemory of_gpu_;
  HostBuffer mapped_;                                          // peers on this host map it
  std::unique_ptr<void, Unmap> anonymous_{nullptr, Unmap{0}};  // or attach to it
};

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_CACHE_MEMORY_H_
