// Memory of a KV cache of `bench`, `demo` and `ping`, on the host or on a GPU. No CPU may touch GPU
// memory directly; the functions here fill and check memory of either kind.
//
// Thread-safety: any thread may make const calls. Callers must not touch the same bytes at once.
#ifndef KVXFER_CLI_COMMON_CACHE_MEMORY_H_
#define KVXFER_CLI_COMMON_CACHE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "src/cli/common/gpu_memory.h"
#include "src/cli/common/host_memory.h"
#include "src/cli/common/memory_choice.h"

namespace kvxfer::cli {

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

  MemorySpan span() const { return gpu_ ? of_gpu_.span() : of_host_.span(); }
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

  bool gpu_ = false;
  HostMemory of_host_;
  GpuMemory of_gpu_;
};

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_CACHE_MEMORY_H_
