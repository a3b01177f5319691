// cuMemExportToShareableHandle, cuMemImportFromShareableHandle, cuMemGetHandleForAddressRange.
#include "tests/support/cuda_driver/shared_memory.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "tests/support/cuda_driver/call.h"
#include "tests/support/cuda_driver/place.h"
#include "tests/support/cuda_driver/virtual_memory.h"

namespace kvxfer::testing::cuda_driver {
namespace {

constexpr uint64_t kPageBytes = 4096;

// The memory behind [at, at + bytes), which may begin before and end behind its allocation, as far
// as the block of it goes. Empty: none, or not of one kind.
std::vector<std::shared_ptr<Physical>> MemoryForDmabuf(State* state, uint64_t at, size_t bytes) {
  std::vector<std::shared_ptr<Physical>> memory;
  state->memory.ForEach([&](const Range& range) {
    const bool own = range.kind == RangeKind::kDevice || range.kind == RangeKind::kPool;
    if (own && range.view->address() <= at &&
        at + bytes <= range.view->address() + range.view->bytes()) {
      memory = {range.physical};
    }
  });
  if (!memory.empty()) return memory;
  for (const Range* range : state->memory.Cover(at, bytes)) {
    if (range->kind != RangeKind::kVirtual) return {};
    memory.push_back(range->physical);
  }
  const auto same = [&](const std::shared_ptr<Physical>& other) {
    const Physical& first = *memory.front();
    return first.device == other->device && first.gpu_direct == other->gpu_direct &&
           first.handle_types == other->handle_types;
  };
  return std::ranges::all_of(memory, same) ? memory : std::vector<std::shared_ptr<Physical>>{};
}

}  // namespace

MemoryName NameOf(const State& state, uint32_t magic, const Physical& physical) {
  return {.magic = magic,
          .process = state.pid,
          .fd = physical.fd,
          .reserved = 0,
          .incarnation = state.incarnation,
          .inode = physical.inode,
          .offset = 0,
          .bytes = physical.bytes};
}

std::shared_ptr<Physical> OpenDescriptor(State* state, int fd) {
  CUuuid uuid{};
  std::shared_ptr<Physical> physical = OpenPhysical(fd, &uuid);
  if (physical == nullptr) return nullptr;
  const Device* const device = state->FindDevice(uuid);
  physical->device = device == nullptr ? -1 : device->context.device;
  return physical;
}

std::shared_ptr<Physical> OpenNamed(State* state, const MemoryName& name) {
  const std::string path =
      "/proc/" + std::to_string(name.process) + "/fd/" + std::to_string(name.fd);
  // Another kind of file may have that number by now, which to open could block.
  struct stat status {};
  if (stat(path.c_str(), &status) != 0 || status.st_ino != name.inode) return nullptr;
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return nullptr;
  std::shared_ptr<Physical> physical = OpenDescriptor(state, fd);
  return physical != nullptr && physical->inode == name.inode ? physical : nullptr;
}

std::set<ino_t> OpenInodes() {
  std::set<ino_t> inodes;
  DIR* const folder = opendir("/proc/self/fd");
  if (folder == nullptr) return inodes;
  while (const dirent* entry = readdir(folder)) {
    struct stat status {};
    if (fstatat(dirfd(folder), entry->d_name, &status, 0) == 0) inodes.insert(status.st_ino);
  }
  closedir(folder);
  return inodes;
}

void DropDmabufs(State* state) {
  if (state->dmabufs.empty()) return;
  const std::set<ino_t> open = OpenInodes();
  std::erase_if(state->dmabufs, [&](const auto& entry) { return !open.contains(entry.first); });
}

extern "C" CUresult cuMemExportToShareableHandle(void* shareable,
                                                 CUmemGenericAllocationHandle handle,
                                                 CUmemAllocationHandleType type, uint64_t flags) {
  KVXFER_STANDIN_ENTER(cuMemExportToShareableHandle, kInit);
  const Handle* const found = FindHandle(&call.state(), handle);
  if (shareable == nullptr || found == nullptr || flags != 0 ||
      (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && type != CU_MEM_HANDLE_TYPE_FABRIC) ||
      (found->physical->handle_types & static_cast<uint64_t>(type)) == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
    const MemoryName name = NameOf(call.state(), kFabricName, *found->physical);
    std::memset(shareable, 0, sizeof(CUmemFabricHandle));
    std::memcpy(shareable, &name, sizeof(name));
    return CUDA_SUCCESS;
  }
  const int fd = fcntl(found->physical->fd, F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  std::memcpy(shareable, &fd, sizeof(fd));
  return CUDA_SUCCESS;
}

extern "C" CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle,
                                                   void* shareable,
                                                   CUmemAllocationHandleType type) {
  KVXFER_STANDIN_ENTER(cuMemImportFromShareableHandle, kInit);
  State& state = call.state();
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Physical> physical;
  if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    const int fd = static_cast<int>(reinterpret_cast<intptr_t>(shareable));
    const int ours = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (ours >= 0) physical = OpenDescriptor(&state, ours);
  } else if (type == CU_MEM_HANDLE_TYPE_FABRIC && shareable != nullptr) {
    MemoryName name{};
    std::memcpy(&name, shareable, sizeof(name));
    if (state.config.fabric == 0) return CUDA_ERROR_NOT_SUPPORTED;
    if (name.magic == kFabricName) physical = OpenNamed(&state, name);
  }
  if (physical == nullptr || physical->handle_types == 0) return CUDA_ERROR_INVALID_VALUE;
  if (physical->device < 0) return CUDA_ERROR_INVALID_DEVICE;
  *handle = state.NewId();
  state.handles.emplace(*handle, Handle{.physical = std::move(physical), .references = 1});
  return CUDA_SUCCESS;
}

extern "C" CUresult cuMemGetHandleForAddressRange(void* handle, CUdeviceptr at, size_t bytes,
                                                  CUmemRangeHandleType type, uint64_t flags) {
  KVXFER_STANDIN_ENTER(cuMemGetHandleForAddressRange, kInit);
  State& state = call.state();
  if (handle == nullptr || type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || bytes == 0 ||
      at % kPageBytes != 0 || bytes % kPageBytes != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::vector<std::shared_ptr<Physical>> memory = MemoryForDmabuf(&state, at, bytes);
  if (memory.empty()) return CUDA_ERROR_INVALID_VALUE;
  const Device& device = *state.FindDevice(memory.front()->device);
  if (flags != 0 || !Has(&state, device, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED)) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (!memory.front()->gpu_direct) return CUDA_ERROR_INVALID_VALUE;
  DropDmabufs(&state);
  // As a real one it has a size and no content that a CPU could read.
  const int fd = memfd_create("kvxfer-standin-dmabuf", MFD_CLOEXEC);
  struct stat status {};
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0 || fstat(fd, &status) != 0) {
    if (fd >= 0) close(fd);
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  state.dmabufs[status.st_ino] = {.at = at, .bytes = bytes, .keep = std::move(memory)};
  std::memcpy(handle, &fd, sizeof(fd));
  return CUDA_SUCCESS;
}

extern "C" int kvxfer_standin_dmabuf(int fd, uint64_t* at, uint64_t* bytes) {
  State& state = TheState();
  const Lock lock(state.mutex);
  struct stat status {};
  if (fstat(fd, &status) != 0) return CUDA_ERROR_INVALID_VALUE;
  const auto found = state.dmabufs.find(status.st_ino);
  if (found == state.dmabufs.end()) return CUDA_ERROR_INVALID_VALUE;
  *at = found->second.at;
  *bytes = found->second.bytes;
  return CUDA_SUCCESS;
}

}  // namespace kvxfer::testing::cuda_driver
