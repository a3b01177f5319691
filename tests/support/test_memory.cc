#include "tests/support/test_memory.h"

#include <sys/mman.h>

#include <cerrno>

#include "src/core/base/strings.h"
#include "src/cuda/driver.h"
#include "tests/support/cuda_driver/hooks.h"
#include "tests/support/memory_view.h"
#include "tests/support/pattern.h"

namespace kvxfer::testing {
namespace {
constexpr size_t kGuard = 4096;
}

absl::StatusOr<TestMemory> TestMemory::Allocate(MemoryType type, size_t bytes) {
  TestMemory memory;
  memory.bytes_ = bytes;
  const size_t all = bytes + 2 * kGuard;
  if (type == MemoryType::kCuda) {
    const absl::Status status = memory.AllocateCuda(all);
    if (!status.ok()) return status;
    return memory;
  }
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

absl::Status TestMemory::AllocateCuda(size_t all) {
  const auto driver = cuda::Driver::Get();
  if (!driver.ok()) {
    return Annotate(driver.status(),
                    "a test of GPU memory needs LD_LIBRARY_PATH=" KVXFER_STANDIN_CUDA_DIR
                    ", as ctest has it");
  }
  const cuda::ContextScope scope(**driver, 0);
  if (!scope.status().ok()) return scope.status();
  const cuda::api::Calls& calls = (*driver)->calls();
  const cuda_driver::Hooks* const hooks = cuda_driver::FindHooks();
  cuda::api::CUdeviceptr at = 0;
  absl::Status status = (*driver)->Error(calls.cuMemAlloc_v2(&at, all), "cuMemAlloc");
  if (!status.ok()) return status;
  allocation_ = at;
  device_ = at + kGuard;
  std::byte* seen = reinterpret_cast<std::byte*>(at);
  if (hooks != nullptr) {
    seen = hooks->kvxfer_standin_alias(at, all);
  } else {
    AddCopiedMemory(at, all);
  }
  FillWith({seen, all}, std::byte{0});
  data_ = seen + kGuard;
  return absl::OkStatus();
}

TestMemory& TestMemory::operator=(TestMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(mapped_, other.mapped_);
  std::swap(anonymous_, other.anonymous_);
  std::swap(anonymous_bytes_, other.anonymous_bytes_);
  std::swap(allocation_, other.allocation_);
  std::swap(device_, other.device_);
  return *this;
}

TestMemory::~TestMemory() {
  if (anonymous_ != nullptr) munmap(anonymous_, anonymous_bytes_);
  if (allocation_ == 0) return;
  ForgetCopiedMemory(allocation_);
  const cuda::Driver* const driver = cuda::Driver::Get().value();
  const cuda::ContextScope scope(*driver, 0);
  driver->calls().cuMemFree_v2(allocation_);
}

MemorySpan TestMemory::span() const {
  if (device_ != 0) {
    return {.data = reinterpret_cast<void*>(device_), .bytes = bytes_, .kind = MemoryKind::kCuda};
  }
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

void TestMemory::Clear() { FillWith(bytes(), std::byte{0}); }

}  // namespace kvxfer::testing
