#include "tests/support/verbs_fabric_gpu.h"

#include <atomic>
#include <cerrno>
#include <cstring>

#include "tests/support/cuda_driver/hooks.h"
#include "tests/support/memory_view.h"
#include "tests/support/verbs_fabric.h"

namespace kvxfer::testing {

namespace {

using cuda_driver::Hooks;

// Looking for a library is slow, above all to ThreadSanitizer: what is registered looks, and what
// moves finds it here.
std::atomic<const Hooks*> found = nullptr;

const Hooks* Look() {
  const Hooks* const hooks = cuda_driver::FindHooks();
  found.store(hooks, std::memory_order_release);
  return hooks;
}

}  // namespace

int FindGpuMemory(uint64_t address, uint64_t bytes, uint64_t* gpu_at) {
  const Hooks* const hooks = Look();
  // That of a real driver these devices do not reach, as NICs without GPUDirect do not.
  if (hooks == nullptr) return IsCopiedMemory(address) ? EFAULT : 0;
  if (hooks->kvxfer_standin_alias(address, 1) == nullptr) return 0;
  *gpu_at = address;
  return hooks->kvxfer_standin_nic_may(address, bytes);
}

int FindDmabuf(int fd, uint64_t offset, uint64_t bytes, uint64_t* gpu_at) {
  const Hooks* const hooks = Look();
  if (hooks == nullptr) return EBADF;
  uint64_t at = 0;
  uint64_t size = 0;
  if (hooks->kvxfer_standin_dmabuf(fd, &at, &size) != 0) return EBADF;
  if (offset > size || bytes > size - offset) return EINVAL;
  *gpu_at = at + offset;
  return 0;
}

bool WriteGpu(uint64_t gpu_at, const std::byte* from, uint64_t bytes) {
  return found.load(std::memory_order_acquire)->kvxfer_standin_nic_write(gpu_at, from, bytes) == 0;
}

bool ReadGpu(uint64_t gpu_at, std::byte* to, uint64_t bytes) {
  return found.load(std::memory_order_acquire)->kvxfer_standin_nic_read(gpu_at, to, bytes) == 0;
}

bool VerbsFabric::Move(Place to, Place from, uint64_t bytes) {
  auto* const to_host = reinterpret_cast<std::byte*>(to.at);
  auto* const from_host = reinterpret_cast<std::byte*>(from.at);
  if (!to.gpu && !from.gpu) {
    std::memcpy(to_host, from_host, bytes);
    return true;
  }
  if (!to.gpu) return ReadGpu(from.at, to_host, bytes);
  if (!from.gpu) return WriteGpu(to.at, from_host, bytes);
  bounce_.resize(bytes);
  return ReadGpu(from.at, bounce_.data(), bytes) && WriteGpu(to.at, bounce_.data(), bytes);
}

}  // namespace kvxfer::testing
