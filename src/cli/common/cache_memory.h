// Memory of a KV cache of `bench`, `demo` and `ping`: of the host, or of a GPU, which a CPU must
// not touch. What fills and checks content goes through here, and works on either.
//
// Thread-safety: const calls from any thread; what they touch is the callers' to keep apart.
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

// What one side of a run takes.
struct MemoryNeed {
  MemoryChoice choice{};
  uint64_t bytes = 0;
};
// InvalidArgument unless this host, and each GPU that is named, has so much in all: what does not
// fit is refused before the kernel has to end somebody for it. `instead` is what to do about it.
// What DriverFor says where a GPU is named.
absl::Status CheckFits(std::span<const MemoryNeed> needs, const char* instead);

// A part of a CacheMemory.
struct Stretch {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

enum class Touch {
  kRead,
  kWrite,   // every byte of each stretch is written, and no other
  kUpdate,  // read, and written where it changed; nobody else may touch the memory meanwhile
};

// Page-aligned and zeroed. Given back when destroyed.
class CacheMemory {
 public:
  static absl::StatusOr<CacheMemory> Allocate(const MemoryChoice& choice, size_t bytes);

  MemorySpan span() const { return gpu_ ? of_gpu_.span() : of_host_.span(); }
  uint64_t base() const { return reinterpret_cast<uint64_t>(span().data); }
  uint64_t size() const { return span().bytes; }
  // Empty where it is a GPU's.
  std::span<std::byte> host_bytes() const;

  // Calls visit(number of the stretch, its bytes) for each, until it returns an error, which is
  // returned, as is one of the driver. `stretches` are ascending and apart from each other. The
  // bytes are of the memory itself, or of a GPU's a copy; they are valid during the call.
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
