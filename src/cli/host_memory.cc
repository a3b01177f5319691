#include "src/cli/host_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "src/cli/units.h"
#include "src/core/strings.h"

namespace kvxfer::cli {

absl::StatusOr<MemorySource> ParseMemorySource(std::string_view text) {
  if (text == "mapped") return MemorySource::kMapped;
  if (text == "mapped-small") return MemorySource::kMappedSmall;
  if (text == "mapped-reserved") return MemorySource::kMappedReserved;
  if (text == "attached") return MemorySource::kAttached;
  return absl::InvalidArgumentError(absl::StrCat(
      "memory '", ToAbsl(text), "': choose mapped, mapped-small, mapped-reserved or attached"));
}

absl::Status CheckFits(uint64_t bytes, const char* instead) {
  const auto memory =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  if (bytes <= memory) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the run needs ", FormatBytes(bytes),
                                                 ", this host has ", FormatBytes(memory), "; use ",
                                                 instead));
}

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
