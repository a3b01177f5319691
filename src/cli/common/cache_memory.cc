#include "src/cli/common/cache_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <utility>

#include "src/cli/common/units.h"
#include "src/core/base/strings.h"

namespace kvxfer::cli {
namespace {

// The most bytes that one copy of the driver moves, unless a stretch is longer; and the gap from
// which two copies are cheaper than one copy that includes the gap.
constexpr uint64_t kWindow = uint64_t{4} << 20;
constexpr uint64_t kFar = uint64_t{64} << 10;

absl::Status TooMuch(uint64_t bytes, const std::string& where, uint64_t there,
                     const char* instead) {
  return Invalid("the run needs ", FormatBytes(bytes), ", ", where, " has ", FormatBytes(there),
                 "; use ", instead);
}

// How many stretches, from the first one on, a single copy takes.
size_t CountOfWindow(std::span<const Stretch> stretches, uint64_t distance) {
  const uint64_t begin = stretches.front().offset;
  uint64_t end = begin + stretches.front().bytes;
  size_t count = 1;
  for (; count < stretches.size(); ++count) {
    const Stretch& next = stretches[count];
    if (next.offset - end > distance || next.offset + next.bytes - begin > kWindow) break;
    end = next.offset + next.bytes;
  }
  return count;
}

}  // namespace

absl::Status CheckFits(std::span<const MemoryNeed> needs, const char* instead) {
  uint64_t host = 0;
  std::map<int, uint64_t> devices;
  for (const MemoryNeed& need : needs) {
    (need.choice.cuda() ? devices[need.choice.device] : host) += need.bytes;
  }
  const auto memory =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  if (host > memory) return TooMuch(host, "this host", memory, instead);
  for (const auto& [number, bytes] : devices) {
    const absl::StatusOr<const cuda::Driver*> driver = DriverFor(number);
    if (!driver.ok()) return driver.status();
    const auto device = (*driver)->device(number);
    if (!device.ok()) return device.status();
    // Zero: the driver does not report the size.
    if (bytes <= (*device)->memory || (*device)->memory == 0) continue;
    return TooMuch(bytes, absl::StrCat("cuda:", number), (*device)->memory, instead);
  }
  return absl::OkStatus();
}

absl::StatusOr<CacheMemory> CacheMemory::Allocate(const MemoryChoice& choice, size_t bytes) {
  CacheMemory memory;
  if (choice.cuda()) {
    absl::StatusOr<GpuMemory> made = GpuMemory::Allocate(choice.device, bytes);
    if (!made.ok()) return made.status();
    memory.gpu_ = true;
    memory.of_gpu_ = std::move(*made);
  } else if (choice.source == MemorySource::kAttached) {
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
      return absl::ResourceExhaustedError(
          ErrnoText(absl::StrCat("allocating ", bytes, " bytes"), errno));
    }
    memory.anonymous_ = {data, Unmap{bytes}};
  } else {
    const HostPages pages = choice.source == MemorySource::kMappedReserved ? HostPages::kReserved
                            : choice.source == MemorySource::kMappedSmall  ? HostPages::kSmall
                                                                           : HostPages::kHuge;
    if (absl::Status s = Into(memory.mapped_, HostBuffer::Allocate(bytes, pages)); !s.ok())
      return s;
  }
  return memory;
}

void CacheMemory::Unmap::operator()(void* data) const { munmap(data, bytes); }

MemorySpan CacheMemory::span() const {
  if (gpu_) return of_gpu_.span();
  if (anonymous_ == nullptr) return mapped_.span();
  return {.data = anonymous_.get(), .bytes = anonymous_.get_deleter().bytes};
}

std::span<std::byte> CacheMemory::host_bytes() const {
  if (gpu_) return {};
  return {static_cast<std::byte*>(span().data), span().bytes};
}

absl::Status CacheMemory::ForEach(std::span<const Stretch> stretches, Touch touch,
                                  Visit visit) const {
  if (gpu_) return ForEachOfGpu(stretches, touch, visit);
  const std::span<std::byte> all = host_bytes();
  for (size_t i = 0; i < stretches.size(); ++i) {
    const Stretch& stretch = stretches[i];
    if (absl::Status s = visit(i, all.subspan(stretch.offset, stretch.bytes)); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status CacheMemory::ForEachOfGpu(std::span<const Stretch> stretches, Touch touch,
                                       Visit visit) const {
  // A copy may read the gap between two stretches. It writes the gap only for kUpdate, when nothing
  // else touches the memory.
  const uint64_t distance = touch == Touch::kWrite ? 0 : kFar;
  std::vector<std::byte> bounce;
  for (size_t first = 0; first < stretches.size();) {
    const size_t count = CountOfWindow(stretches.subspan(first), distance);
    const uint64_t begin = stretches[first].offset;
    const Stretch& last = stretches[first + count - 1];
    bounce.resize(last.offset + last.bytes - begin);
    if (touch != Touch::kWrite) {
      if (absl::Status s = of_gpu_.Read(begin, bounce); !s.ok()) return s;
    }
    for (size_t i = first; i < first + count; ++i) {
      const std::span bytes =
          std::span(bounce).subspan(stretches[i].offset - begin, stretches[i].bytes);
      if (absl::Status s = visit(i, bytes); !s.ok()) return s;
    }
    if (touch != Touch::kRead) {
      if (absl::Status s = of_gpu_.Write(begin, bounce); !s.ok()) return s;
    }
    first += count;
  }
  return absl::OkStatus();
}

absl::Status CacheMemory::Zero(const Stretch& stretch) const {
  if (gpu_) return of_gpu_.Zero(stretch.offset, stretch.bytes);
  std::memset(host_bytes().data() + stretch.offset, 0, stretch.bytes);
  return absl::OkStatus();
}

absl::Status OfThisHost(const absl::Status& status) {
  return absl::IsUnavailable(status) ? absl::FailedPreconditionError(status.message()) : status;
}

absl::StatusOr<const cuda::Driver*> DriverFor(int device) {
  const absl::StatusOr<const cuda::Driver*> driver = cuda::Driver::Get();
  if (!driver.ok()) {
    return Annotate(OfThisHost(driver.status()),
                    absl::StrCat("memory of cuda:", device, " cannot be used"));
  }
  if (const auto found = (*driver)->device(device); !found.ok()) return found.status();
  return *driver;
}

absl::StatusOr<GpuMemory> GpuMemory::Allocate(int device, size_t bytes) {
  const absl::StatusOr<const cuda::Driver*> driver = DriverFor(device);
  if (!driver.ok()) return driver.status();
  const cuda::ContextScope scope(**driver, device);
  if (!scope.status().ok()) return OfThisHost(scope.status());
  const cuda::api::Calls& calls = (*driver)->calls();
  cuda::api::CUdeviceptr at = 0;
  if (const auto result = calls.cuMemAlloc_v2(&at, bytes); result != cuda::api::CUDA_SUCCESS) {
    return Annotate(OfThisHost((*driver)->Error(result, "cuMemAlloc")),
                    absl::StrCat("allocating ", FormatBytes(bytes), " of cuda:", device));
  }
  GpuMemory memory;
  memory.held_.reset(new Held{*driver, device, at, bytes});
  // Without this attribute, a copy from the host returns once it is staged, and a NIC or another
  // process may not see the bytes yet.
  constexpr unsigned kOn = 1;
  const cuda::api::CUresult set =
      calls.cuPointerSetAttribute(&kOn, cuda::api::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at);
  // As in the library: an old driver without this attribute is accepted.
  absl::Status status = set == cuda::api::CUDA_ERROR_NOT_SUPPORTED
                            ? absl::OkStatus()
                            : (*driver)->Error(set, "cuPointerSetAttribute(SYNC_MEMOPS)");
  if (status.ok()) status = memory.Zero(0, bytes);
  if (!status.ok()) return status;
  return memory;
}

GpuMemory::Held::~Held() {
  const cuda::ContextScope scope(*driver, device);
  // An error would help nobody: the end of the process frees the memory.
  if (scope.status().ok()) (void)driver->calls().cuMemFree_v2(base);
}

MemorySpan GpuMemory::span() const {
  return {.data = reinterpret_cast<void*>(held_->base),  // NOLINT(performance-no-int-to-ptr)
          .bytes = held_->bytes,
          .kind = MemoryKind::kCuda,
          .device_id = held_->device};
}

absl::Status GpuMemory::Call(const char* name,
                             absl::FunctionRef<cuda::api::CUresult()> call) const {
  const cuda::ContextScope scope(*held_->driver, held_->device);
  if (!scope.status().ok()) return OfThisHost(scope.status());
  return OfThisHost(held_->driver->Error(call(), name));
}

absl::Status GpuMemory::Write(uint64_t offset, std::span<const std::byte> from) const {
  return Call("cuMemcpyHtoD", [&] {
    return held_->driver->calls().cuMemcpyHtoD_v2(base() + offset, from.data(), from.size());
  });
}

absl::Status GpuMemory::Read(uint64_t offset, std::span<std::byte> to) const {
  return Call("cuMemcpyDtoH", [&] {
    return held_->driver->calls().cuMemcpyDtoH_v2(to.data(), base() + offset, to.size());
  });
}

absl::Status GpuMemory::Zero(uint64_t offset, uint64_t bytes) const {
  return Call("cuMemsetD8",
              [&] { return held_->driver->calls().cuMemsetD8_v2(base() + offset, 0, bytes); });
}

}  // namespace kvxfer::cli
