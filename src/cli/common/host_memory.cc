#include "src/cli/common/host_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <utility>

#include "src/core/base/strings.h"

namespace kvxfer::cli {

absl::StatusOr<HostMemory> HostMemory::Allocate(MemorySource source, size_t bytes) {
  HostMemory memory;
  if (source != MemorySource::kAttached) {
    const HostPages pages = source == MemorySource::kMappedReserved ? HostPages::kReserved
                            : source == MemorySource::kMappedSmall  ? HostPages::kSmall
                                                                    : HostPages::kHuge;
    absl::StatusOr<HostBuffer> buffer = HostBuffer::Allocate(bytes, pages);
    if (!buffer.ok()) return buffer.status();
    memory.mapped_ = std::move(*buffer);
    return memory;
  }
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    const int error = errno;
    return absl::ResourceExhaustedError(
        ErrnoText(std::string("allocating ") + std::to_string(bytes) + " bytes", error));
  }
  memory.anonymous_ = data;
  memory.anonymous_bytes_ = bytes;
  return memory;
}

HostMemory::HostMemory(HostMemory&& other) noexcept { *this = std::move(other); }

HostMemory& HostMemory::operator=(HostMemory&& other) noexcept {
  std::swap(mapped_, other.mapped_);
  std::swap(anonymous_, other.anonymous_);
  std::swap(anonymous_bytes_, other.anonymous_bytes_);
  return *this;
}

HostMemory::~HostMemory() {
  if (anonymous_ != nullptr) munmap(anonymous_, anonymous_bytes_);
}

MemorySpan HostMemory::span() const {
  if (anonymous_ == nullptr) return mapped_.span();
  return {.data = anonymous_, .bytes = anonymous_bytes_};
}

}  // namespace kvxfer::cli
