// The address space that applications see, and what lies behind it.
//
// Device memory is a memfd. Applications get an address at which nothing can be touched by a CPU;
// the driver reads and writes the same bytes at an alias. Around each range lie 64 KiB of nothing.
//
// Thread-safety: MemoryMap under the lock of the state; the rest are values.
#ifndef KVXFER_TESTS_SUPPORT_CUDA_DRIVER_MEMORY_MAP_H_
#define KVXFER_TESTS_SUPPORT_CUDA_DRIVER_MEMORY_MAP_H_

#include <sys/types.h>

#include <atomic>
#include <map>
#include <memory>
#include <vector>

#include "src/cuda/api.h"

namespace kvxfer::testing::cuda_driver {

// Memory of a device, for as long as a process has it open or mapped. The memfd ends with a page
// that says what it is, for who imports it.
struct Physical {
  ~Physical();

  int fd = -1;
  size_t bytes = 0;  // whole pages
  ino_t inode = 0;
  int device = 0;  // as this process numbers it
  bool gpu_direct = true;
  uint64_t handle_types = 0;
  std::atomic<size_t>* used = nullptr;  // of the device; null where another process pays
};

// Null: no memory, or no descriptors.
std::shared_ptr<Physical> CreatePhysical(size_t bytes, const cuda::api::CUuuid& device,
                                         uint64_t handle_types, bool gpu_direct);
// Of a descriptor of another process, which is taken over; null where that is no device memory.
// `device`: whose it is.
std::shared_ptr<Physical> OpenPhysical(int fd, cuda::api::CUuuid* device);

// A piece of address space and its alias. Ends both.
class View {
 public:
  // `wish`: 0 or where it would like to be. Null: no address space.
  static std::shared_ptr<View> Reserve(size_t bytes, size_t alignment, uint64_t wish = 0);
  // Memory that the CPU may touch at the address of the application too.
  static std::shared_ptr<View> Managed(const Physical& physical);
  ~View();
  View(const View&) = delete;
  View& operator=(const View&) = delete;

  // Puts memory behind [offset, offset + bytes).
  bool Map(size_t offset, const Physical& physical, size_t bytes);
  void Unmap(size_t offset, size_t bytes);

  uint64_t address() const { return address_; }
  size_t bytes() const { return bytes_; }
  std::byte* alias() const { return alias_; }

 private:
  View() = default;
  void* seen_ = nullptr;  // with the gaps
  size_t seen_bytes_ = 0;
  void* aliased_ = nullptr;
  size_t aliased_bytes_ = 0;
  uint64_t address_ = 0;
  size_t bytes_ = 0;
  std::byte* alias_ = nullptr;
};

enum class RangeKind : uint8_t { kDevice, kPool, kManaged, kVirtual, kIpc, kHost };

struct Context;

// What one call handed out, or mapped.
struct Range {
  uint64_t at = 0;
  size_t bytes = 0;
  RangeKind kind = RangeKind::kDevice;
  int device = 0;
  Context* context = nullptr;  // null: of none (kVirtual, kPool)
  uint64_t buffer_id = 0;
  std::byte* alias = nullptr;
  std::shared_ptr<View> view{};          // null: kHost
  std::shared_ptr<Physical> physical{};  // null: kHost
  bool sync_memops = false;
  // kVirtual: by whom it may be read and written, a bit a device; and what was mapped.
  uint32_t readers = 0;
  uint32_t writers = 0;
  uint64_t handle = 0;
  // kIpc: how often it was opened.
  int opened = 0;

  uint64_t end() const { return at + bytes; }
};

// Ranges as kernels of a device may use them: in order, joined where the aliases follow each other.
struct Reach {
  uint64_t at = 0;
  uint64_t end = 0;
  std::byte* alias = nullptr;
  std::vector<std::shared_ptr<View>> keep{};
};

class MemoryMap {
 public:
  // The range with `at` in it, or null.
  Range* Find(uint64_t at);
  // Null: it would overlap another.
  Range* Add(Range range);
  void Erase(uint64_t at);
  bool Overlaps(uint64_t at, size_t bytes) const;

  // Whether [at, at + bytes) is one range, or such of kVirtual that follow each other in one
  // reservation; its ranges.
  std::vector<Range*> Cover(uint64_t at, size_t bytes);

  // Every range that `may` lets through.
  template <typename May>
  std::vector<Reach> ReachOf(May may) const;

  template <typename Do>
  void ForEach(Do visit) {
    for (auto& [at, range] : ranges_) visit(range);
  }

 private:
  std::map<uint64_t, Range> ranges_;
};

template <typename May>
std::vector<Reach> MemoryMap::ReachOf(May may) const {
  std::vector<Reach> reach;
  for (const auto& [at, range] : ranges_) {
    if (!may(range)) continue;
    if (reach.empty() || reach.back().end != at ||
        reach.back().alias + (at - reach.back().at) != range.alias) {
      reach.push_back({.at = at, .end = at, .alias = range.alias});
    }
    reach.back().end = range.end();
    if (range.view != nullptr) reach.back().keep.push_back(range.view);
  }
  return reach;
}

// Whether the CPU can read all of it.
bool Readable(const void* at, size_t bytes);

}  // namespace kvxfer::testing::cuda_driver

#endif  // KVXFER_TESTS_SUPPORT_CUDA_DRIVER_MEMORY_MAP_H_
