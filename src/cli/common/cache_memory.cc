#include "src/cli/common/cache_memory.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

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
  return absl::InvalidArgumentError(absl::StrCat("the run needs ", FormatBytes(bytes), ", ", where,
                                                 " has ", FormatBytes(there), "; use ", instead));
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
    return memory;
  }
  absl::StatusOr<HostMemory> made = HostMemory::Allocate(choice.source, bytes);
  if (!made.ok()) return made.status();
  memory.of_host_ = std::move(*made);
  return memory;
}

std::span<std::byte> CacheMemory::host_bytes() const {
  return gpu_ ? std::span<std::byte>() : of_host_.bytes();
}

absl::Status CacheMemory::ForEach(std::span<const Stretch> stretches, Touch touch,
                                  Visit visit) const {
  if (gpu_) return ForEachOfGpu(stretches, touch, visit);
  const std::span<std::byte> all = of_host_.bytes();
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
  std::memset(of_host_.bytes().data() + stretch.offset, 0, stretch.bytes);
  return absl::OkStatus();
}

}  // namespace kvxfer::cli
