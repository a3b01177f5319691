// Host memory that peers on the same host map, or that they attach to.
#ifndef KVXFER_CLI_COMMON_HOST_MEMORY_H_
#define KVXFER_CLI_COMMON_HOST_MEMORY_H_

#include <cstddef>
#include <span>

#include "absl/status/statusor.h"
#include "kvxfer/memory.h"
#include "src/cli/common/memory_choice.h"

namespace kvxfer::cli {

// Page-aligned and zeroed. The destructor unmaps it.
class HostMemory {
 public:
  // `source` must not be kCuda.
  static absl::StatusOr<HostMemory> Allocate(MemorySource source, size_t bytes);

  HostMemory() = default;
  HostMemory(HostMemory&& other) noexcept;
  HostMemory& operator=(HostMemory&& other) noexcept;
  ~HostMemory();

  MemorySpan span() const;
  std::span<std::byte> bytes() const {
    return {static_cast<std::byte*>(span().data), span().bytes};
  }

 private:
  HostBuffer mapped_;
  void* anonymous_ = nullptr;  // null: mapped_ holds the memory
  size_t anonymous_bytes_ = 0;
};

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_HOST_MEMORY_H_
