#include "tests/support/test_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "src/core/strings.h"
#include "tests/support/pattern.h"

namespace kvxfer::testing {
namespace {
constexpr size_t kGuard = 4096;
}

absl::StatusOr<TestMemory> TestMemory::Allocate(MemoryType type, size_t bytes) {
  TestMemory memory;
  memory.bytes_ = bytes;
  const size_t all = bytes + 2 * kGuard;
  if (type == MemoryType::kMapped) {
    absl::StatusOr<HostBuffer> buffer = HostBuffer::Allocate(all);
    if (!buffer.ok()) return buffer.status();
    memory.mapped_ = *std::move(buffer);
    memory.data_ = memory.mapped_.data() + kGuard;
    return memory;
  }
  void* mapping = mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return absl::ResourceExhaustedError(ErrnoText("mmap", errno));
  memory.anonymous_ = static_cast<std::byte*>(mapping);
  memory.anonymous_bytes_ = all;
  memory.data_ = memory.anonymous_ + kGuard;
  return memory;
}

TestMemory& TestMemory::operator=(TestMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(mapped_, other.mapped_);
  std::swap(anonymous_, other.anonymous_);
  std::swap(anonymous_bytes_, other.anonymous_bytes_);
  return *this;
}

TestMemory::~TestMemory() {
  if (anonymous_ != nullptr) munmap(anonymous_, anonymous_bytes_);
}

MemorySpan TestMemory::span() const {
  MemorySpan span{.data = data_, .bytes = bytes_};
  if (anonymous_ == nullptr) {
    span.shared_fd = mapped_.span().shared_fd;
    span.shared_offset = mapped_.span().shared_offset + kGuard;
  }
  return span;
}

bool TestMemory::GuardsIntact() const {
  return FirstNonZero({data_ - kGuard, kGuard}) == kNoMismatch &&
         FirstNonZero({data_ + bytes_, kGuard}) == kNoMismatch;
}

void TestMemory::Clear() { std::memset(data_, 0, bytes_); }

}  // namespace kvxfer::testing
