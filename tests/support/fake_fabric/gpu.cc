#include "tests/support/fake_fabric/gpu.h"

#include <atomic>

#include "tests/support/cuda_driver/hooks.h"

namespace fake_fabric {
namespace {

using kvxfer::testing::cuda_driver::FindHooks;
using kvxfer::testing::cuda_driver::Hooks;

// Looking for a library is slow, above all to ThreadSanitizer.
std::atomic<const Hooks*> found = nullptr;

const Hooks* Found() { return found.load(std::memory_order_acquire); }

}  // namespace

void LookForGpus() { found.store(FindHooks(), std::memory_order_release); }

bool IsGpuMemory(uint64_t address) {
  const Hooks* const hooks = Found();
  return hooks != nullptr && hooks->kvxfer_standin_alias(address, 1) != nullptr;
}

int CheckGpuMemory(uint64_t address, size_t bytes) {
  return Found()->kvxfer_standin_nic_may(address, bytes);
}

bool ReadGpu(void* to, uint64_t from, size_t bytes) {
  return Found()->kvxfer_standin_nic_read(from, to, bytes) == 0;
}

bool WriteGpu(uint64_t to, const void* from, size_t bytes) {
  return Found()->kvxfer_standin_nic_write(to, from, bytes) == 0;
}

}  // namespace fake_fabric
