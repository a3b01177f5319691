// Memory that one process names and another opens: by the number of a descriptor in the first.
//
// Thread-safety: functions without state.
#ifndef KVXFER_TESTS_SUPPORT_CUDA_DRIVER_SHARED_MEMORY_H_
#define KVXFER_TESTS_SUPPORT_CUDA_DRIVER_SHARED_MEMORY_H_

#include <cstdint>
#include <memory>

#include "tests/support/cuda_driver/state.h"

namespace kvxfer::testing::cuda_driver {

// What IPC and fabric handles hold.
struct MemoryName {
  uint32_t magic;  // kIpcName, kFabricName
  int32_t process;
  int32_t fd;
  uint32_t reserved;
  uint64_t incarnation;
  uint64_t inode;
  uint64_t offset;  // of the allocation in the memory
  uint64_t bytes;   // of the allocation
};
static_assert(sizeof(MemoryName) <= sizeof(CUipcMemHandle));
static_assert(sizeof(MemoryName) <= sizeof(CUmemFabricHandle));
inline constexpr uint32_t kIpcName = 0x31637069;
inline constexpr uint32_t kFabricName = 0x31626166;

MemoryName NameOf(const State& state, uint32_t magic, const Physical& physical);

// Null: its owner is gone, has freed it, or is out of reach. Its device is set; -1: not one of this
// process.
std::shared_ptr<Physical> OpenNamed(State* state, const MemoryName& name);

// Takes the descriptor over.
std::shared_ptr<Physical> OpenDescriptor(State* state, int fd);

// The inodes of what this process has open.
std::set<ino_t> OpenInodes();
// Forgets exported ranges of which no descriptor is open any more.
void DropDmabufs(State* state);

}  // namespace kvxfer::testing::cuda_driver

#endif  // KVXFER_TESTS_SUPPORT_CUDA_DRIVER_SHARED_MEMORY_H_
