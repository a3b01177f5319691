// Host memory of either kind that peers on the same host treat differently.
#ifndef KVXFER_CLI_HOST_MEMORY_H_
#define KVXFER_CLI_HOST_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "kvxfer/memory.h"

namespace kvxfer::cli {

enum class MemorySource {
  kMapped,          // HostBuffer: a peer on this host maps it
  kMappedSmall,     // the same with small pages
  kMappedReserved,  // the same with reserved huge pages
  kAttached,        // anonymous memory, as malloc gives: a peer on this host attaches to it
};

inline constexpr const char* kMemoryHelp =
    "mapped, attached, or mapped-small or mapped-reserved: what HostBuffer gives, with these pages";

// "mapped", "mapped-small", "mapped-reserved" or "attached".
absl::StatusOr<MemorySource> ParseMemorySource(std::string_view text);

// InvalidArgument unless this host has so much: what does not fit is refused before the kernel has
// to end somebody for it. `instead` is what to do about it.
absl::Status CheckFits(uint64_t bytes, const char* instead);

// Page-aligned and zeroed. Unmapped when destroyed.
class HostMemory {
 public:
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
  void* anonymous_ = nullptr;  // null: mapped_ is what counts
  size_t anonymous_bytes_ = 0;
};

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_HOST_MEMORY_H_
