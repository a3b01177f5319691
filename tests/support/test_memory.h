// Zeroed memory with a guard page on either side of what is registered.
#ifndef KVXFER_TESTS_SUPPORT_TEST_MEMORY_H_
#define KVXFER_TESTS_SUPPORT_TEST_MEMORY_H_

#include <span>
#include <utility>

#include "absl/status/statusor.h"
#include "kvxfer/memory.h"

namespace kvxfer::testing {

enum class MemoryType : uint8_t {
  kMapped,    // from HostBuffer: peers on the same host may map it
  kAttached,  // anonymous: peers on the same host reach it by cross-memory attach
  // Of GPU 0, from cuMemAlloc. By the stand-in driver bytes() are the CPU's alias of it. By a real
  // one they are where the GPU has it, which no CPU may touch: see memory_view.h.
  kCuda,
};

class TestMemory {
 public:
  static absl::StatusOr<TestMemory> Allocate(MemoryType type, size_t bytes);

  TestMemory() = default;
  TestMemory(TestMemory&& other) noexcept { *this = std::move(other); }
  TestMemory& operator=(TestMemory&& other) noexcept;
  TestMemory(const TestMemory&) = delete;
  TestMemory& operator=(const TestMemory&) = delete;
  ~TestMemory();

  // Where a test sees it, by the views and what uses them: Pattern, FillWith, Digest, ...
  std::byte* data() const { return data_; }
  size_t size() const { return bytes_; }
  // Where peers, and this agent's backends, do.
  uint64_t address() const { return device_ != 0 ? device_ : reinterpret_cast<uint64_t>(data_); }
  std::span<std::byte> bytes() const { return {data_, bytes_}; }
  MemorySpan span() const;
  bool GuardsIntact() const;
  void Clear();

 private:
  absl::Status AllocateCuda(size_t all);

  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  HostBuffer mapped_;
  std::byte* anonymous_ = nullptr;
  size_t anonymous_bytes_ = 0;
  uint64_t allocation_ = 0;  // of the GPU
  uint64_t device_ = 0;      // data_ to the GPU
};

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_SUPPORT_TEST_MEMORY_H_
