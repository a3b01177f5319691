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
  // Of GPU 0. By the stand-in driver device memory, of which bytes() are the CPU's alias; by a real
  // one managed memory, which CPUs can touch.
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

  // Where the CPU sees it.
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
