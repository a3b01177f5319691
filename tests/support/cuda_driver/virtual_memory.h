// Handles of memory that is mapped by hand.
//
// Thread-safety: under the lock of the state.
#ifndef KVXFER_TESTS_SUPPORT_CUDA_DRIVER_VIRTUAL_MEMORY_H_
#define KVXFER_TESTS_SUPPORT_CUDA_DRIVER_VIRTUAL_MEMORY_H_

#include "tests/support/cuda_driver/state.h"

namespace kvxfer::testing::cuda_driver {

// Null: there is none, or it was released.
Handle* FindHandle(State* state, CUmemGenericAllocationHandle handle);
// Forgets it where nothing needs it any more.
void DropHandle(State* state, uint64_t id);

}  // namespace kvxfer::testing::cuda_driver

#endif  // KVXFER_TESTS_SUPPORT_CUDA_DRIVER_VIRTUAL_MEMORY_H_
