// Every operator new of this program is counted.
//
// Thread-safety: from any thread.

#ifndef KVXFER_TESTS_RESOURCES_COUNTED_ALLOCATIONS_H_
#define KVXFER_TESTS_RESOURCES_COUNTED_ALLOCATIONS_H_

#include <cstdint>

namespace kvxfer::testing {

struct Allocations {
  uint64_t count = 0;
  uint64_t bytes = 0;
};

// By the calling thread, since it began.
Allocations AllocationsHere();
// By all threads.
Allocations AllocationsEverywhere();
// What is allocated now, by whichever thread: the bytes that the allocator has set aside.
uint64_t BytesInUse();

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_RESOURCES_COUNTED_ALLOCATIONS_H_
