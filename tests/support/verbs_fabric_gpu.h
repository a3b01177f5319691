// GPU memory for the devices of VerbsFabric: that of the stand-in CUDA driver.
#ifndef KVXFER_TESTS_SUPPORT_VERBS_FABRIC_GPU_H_
#define KVXFER_TESTS_SUPPORT_VERBS_FABRIC_GPU_H_

#include <cstddef>
#include <cstdint>

namespace kvxfer::testing {

// What registering [address, address + bytes) by its address comes to: 0, or an errno value.
// `gpu_at` is set where it is GPU memory.
int FindGpuMemory(uint64_t address, uint64_t bytes, uint64_t* gpu_at);
// The same of a dmabuf from `offset` on.
int FindDmabuf(int fd, uint64_t offset, uint64_t bytes, uint64_t* gpu_at);

// As a device does: what it writes is not seen before it is flushed, and what it reads is pushed
// before. False: that memory is not there any more.
bool WriteGpu(uint64_t gpu_at, const std::byte* from, uint64_t bytes);
bool ReadGpu(uint64_t gpu_at, std::byte* to, uint64_t bytes);

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_SUPPORT_VERBS_FABRIC_GPU_H_
