#include "tests/resources/counted_allocations.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace kvxfer::testing {
namespace {

thread_local Allocations made_here;
std::atomic<uint64_t> count_everywhere{0};
std::atomic<uint64_t> bytes_everywhere{0};

}  // namespace

void* Allocate(size_t bytes) {
  ++made_here.count;
  made_here.bytes += bytes;
  count_everywhere.fetch_add(1, std::memory_order_relaxed);
  bytes_everywhere.fetch_add(bytes, std::memory_order_relaxed);
  void* const memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) std::abort();
  return memory;
}

Allocations AllocationsHere() { return made_here; }
Allocations AllocationsEverywhere() {
  return {.count = count_everywhere.load(), .bytes = bytes_everywhere.load()};
}

}  // namespace kvxfer::testing

void* operator new(size_t bytes) { return kvxfer::testing::Allocate(bytes); }
void* operator new[](size_t bytes) { return kvxfer::testing::Allocate(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t /*bytes*/) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t /*bytes*/) noexcept { std::free(memory); }
