// GPU memory of this process, which is that of the stand-in CUDA driver (cuda_driver/hooks.h).
#ifndef KVXFER_TESTS_SUPPORT_FAKE_FABRIC_GPU_H_
#define KVXFER_TESTS_SUPPORT_FAKE_FABRIC_GPU_H_

#include <cstddef>
#include <cstdint>

namespace fake_fabric {

// Of a process that loads that driver later, at the next registration.
void LookForGpus();
bool IsGpuMemory(uint64_t address);
// What registering it comes to: 0, or an errno value.
int CheckGpuMemory(uint64_t address, size_t bytes);
// As a device does: what it writes is not seen before it is flushed. False: it is not there.
bool ReadGpu(void* to, uint64_t from, size_t bytes);
bool WriteGpu(uint64_t to, const void* from, size_t bytes);

}  // namespace fake_fabric

#endif  // KVXFER_TESTS_SUPPORT_FAKE_FABRIC_GPU_H_
