// Device memory itself: memfds, and where they are mapped.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "tests/support/cuda_driver/memory_map.h"

namespace kvxfer::testing::cuda_driver {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kGap = 64 << 10;
constexpr uint64_t kMagic = 0x6d656d2d7578766bu;

// The last page of a memfd begins with it.
struct Trailer {
  uint64_t magic;
  uint64_t bytes;
  uint64_t handle_types;
  uint64_t gpu_direct;
  cuda::api::CUuuid device;
};

constexpr size_t RoundUp(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

void* Nothing(size_t bytes, void* wish = nullptr) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* const at = mmap(wish, bytes, PROT_NONE, flags, -1, 0);
  return at == MAP_FAILED ? nullptr : at;
}

}  // namespace

Physical::~Physical() {
  if (fd >= 0) close(fd);
  if (used != nullptr) *used -= bytes;
}

std::shared_ptr<Physical> CreatePhysical(size_t bytes, const cuda::api::CUuuid& device,
                                         uint64_t handle_types, bool gpu_direct) {
  auto memory = std::make_shared<Physical>();
  memory->bytes = RoundUp(bytes, kPage);
  memory->handle_types = handle_types;
  memory->gpu_direct = gpu_direct;
  memory->fd = memfd_create("kvxfer-standin-gpu", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  const Trailer trailer = {.magic = kMagic,
                           .bytes = memory->bytes,
                           .handle_types = handle_types,
                           .gpu_direct = gpu_direct ? 1u : 0u,
                           .device = device};
  struct stat status {};
  if (memory->fd < 0 || ftruncate(memory->fd, static_cast<off_t>(memory->bytes + kPage)) != 0 ||
      pwrite(memory->fd, &trailer, sizeof(trailer), static_cast<off_t>(memory->bytes)) < 0 ||
      fcntl(memory->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0 ||
      fstat(memory->fd, &status) != 0) {
    return nullptr;
  }
  memory->inode = status.st_ino;
  return memory;
}

std::shared_ptr<Physical> OpenPhysical(int fd, cuda::api::CUuuid* device) {
  auto memory = std::make_shared<Physical>();
  memory->fd = fd;
  struct stat status {};
  Trailer trailer{};
  if (fstat(fd, &status) != 0 || status.st_size < static_cast<off_t>(2 * kPage)) return nullptr;
  const off_t end = status.st_size - static_cast<off_t>(kPage);
  if (pread(fd, &trailer, sizeof(trailer), end) != sizeof(trailer) || trailer.magic != kMagic ||
      trailer.bytes != static_cast<uint64_t>(end)) {
    return nullptr;
  }
  memory->bytes = trailer.bytes;
  memory->inode = status.st_ino;
  memory->gpu_direct = trailer.gpu_direct != 0;
  memory->handle_types = trailer.handle_types;
  *device = trailer.device;
  return memory;
}

std::shared_ptr<View> View::Reserve(size_t bytes, size_t alignment, uint64_t wish) {
  std::shared_ptr<View> view(new View);
  alignment = std::max(alignment, kPage);
  view->bytes_ = bytes;
  view->seen_bytes_ = bytes + 2 * kGap + alignment;
  view->aliased_bytes_ = bytes + 2 * kPage;
  view->seen_ = Nothing(view->seen_bytes_, reinterpret_cast<void*>(wish - std::min(wish, kGap)));
  view->aliased_ = Nothing(view->aliased_bytes_);
  if (view->seen_ == nullptr || view->aliased_ == nullptr) return nullptr;
  view->address_ = RoundUp(reinterpret_cast<uint64_t>(view->seen_) + kGap, alignment);
  view->alias_ = static_cast<std::byte*>(view->aliased_) + kPage;
  return view;
}

std::shared_ptr<View> View::Managed(const Physical& physical) {
  std::shared_ptr<View> view(new View);
  view->bytes_ = physical.bytes;
  view->seen_bytes_ = physical.bytes + 2 * kGap;
  view->seen_ = Nothing(view->seen_bytes_);
  if (view->seen_ == nullptr) return nullptr;
  view->alias_ = static_cast<std::byte*>(view->seen_) + kGap;
  view->address_ = reinterpret_cast<uint64_t>(view->alias_);
  return view->Map(0, physical, physical.bytes) ? view : nullptr;
}

View::~View() {
  if (seen_ != nullptr) munmap(seen_, seen_bytes_);
  if (aliased_ != nullptr) munmap(aliased_, aliased_bytes_);
}

bool View::Map(size_t offset, const Physical& physical, size_t bytes) {
  void* const at =
      mmap(alias_ + offset, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, physical.fd, 0);
  if (at == MAP_FAILED) return false;
  madvise(at, bytes, MADV_DONTFORK);
  return true;
}

void View::Unmap(size_t offset, size_t bytes) {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  static_cast<void>(mmap(alias_ + offset, bytes, PROT_NONE, kFlags, -1, 0));
}

bool Readable(const void* at, size_t bytes) {
  // Reads a byte of each page by way of the kernel, which answers where a load would crash.
  std::array<std::byte, 512> bin;
  std::array<iovec, 512> pages;
  const uint64_t begin = reinterpret_cast<uint64_t>(at);
  const uint64_t end = begin + bytes;
  if (at == nullptr || end < begin) return false;
  uint64_t next = begin;
  while (next < end) {
    size_t count = 0;
    for (; count < pages.size() && next < end; next = (next / kPage + 1) * kPage) {
      pages[count++] = {.iov_base = reinterpret_cast<void*>(next), .iov_len = 1};
    }
    const iovec into = {.iov_base = bin.data(), .iov_len = count};
    const ssize_t got = process_vm_readv(getpid(), &into, 1, pages.data(), count, 0);
    if (got != static_cast<ssize_t>(count)) return false;
  }
  return true;
}

}  // namespace kvxfer::testing::cuda_driver
