#include "tests/resources/counted_allocations.h"

#include <malloc.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace kvxfer::testing {
namespace {

thread_local Allocations made_here;
std::atomic<uint64_t> count_everywhere{0};
std::atomic<uint64_t> bytes_everywhere{0};
std::atomic<uint64_t> bytes_in_use{0};

// What the allocator sets aside for it: its own word comes before the memory.
uint64_t BytesOf(void* memory) { return ::malloc_usable_size(memory) + sizeof(size_t); }

}  // namespace

void* Allocate(size_t bytes, size_t alignment = alignof(std::max_align_t)) {
  ++made_here.count;
  made_here.bytes += bytes;
  count_everywhere.fetch_add(1, std::memory_order_relaxed);
  bytes_everywhere.fetch_add(bytes, std::memory_order_relaxed);
  void* memory = nullptr;
  if (::posix_memalign(&memory, alignment, bytes == 0 ? 1 : bytes) != 0) std::abort();
  bytes_in_use.fetch_add(BytesOf(memory), std::memory_order_relaxed);
  return memory;
}

void Free(void* memory) {
  if (memory == nullptr) return;
  bytes_in_use.fetch_sub(BytesOf(memory), std::memory_order_relaxed);
  std::free(memory);
}

Allocations AllocationsHere() { return made_here; }
Allocations AllocationsEverywhere() {
  return {.count = count_everywhere.load(), .bytes = bytes_everywhere.load()};
}
uint64_t BytesInUse() { return bytes_in_use.load(); }

}  // namespace kvxfer::testing

void* operator new(size_t bytes) { return kvxfer::testing::Allocate(bytes); }
void* operator new[](size_t bytes) { return kvxfer::testing::Allocate(bytes); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return kvxfer::testing::Allocate(bytes, static_cast<size_t>(alignment));
}
void* operator new[](size_t bytes, std::align_val_t alignment) {
  return kvxfer::testing::Allocate(bytes, static_cast<size_t>(alignment));
}
void* operator new(size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  return kvxfer::testing::Allocate(bytes);
}
void* operator new[](size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  return kvxfer::testing::Allocate(bytes);
}
void* operator new(size_t bytes, std::align_val_t alignment,
                   const std::nothrow_t& /*tag*/) noexcept {
  return kvxfer::testing::Allocate(bytes, static_cast<size_t>(alignment));
}
void* operator new[](size_t bytes, std::align_val_t alignment,
                     const std::nothrow_t& /*tag*/) noexcept {
  return kvxfer::testing::Allocate(bytes, static_cast<size_t>(alignment));
}
void operator delete(void* memory) noexcept { kvxfer::testing::Free(memory); }
void operator delete[](void* memory) noexcept { kvxfer::testing::Free(memory); }
void operator delete(void* memory, size_t /*bytes*/) noexcept { kvxfer::testing::Free(memory); }
void operator delete[](void* memory, size_t /*bytes*/) noexcept { kvxfer::testing::Free(memory); }
void operator delete(void* memory, std::align_val_t /*alignment*/) noexcept {
  kvxfer::testing::Free(memory);
}
void operator delete[](void* memory, std::align_val_t /*alignment*/) noexcept {
  kvxfer::testing::Free(memory);
}
void operator delete(void* memory, size_t /*bytes*/, std::align_val_t /*alignment*/) noexcept {
  kvxfer::testing::Free(memory);
}
void operator delete[](void* memory, size_t /*bytes*/, std::align_val_t /*alignment*/) noexcept {
  kvxfer::testing::Free(memory);
}
