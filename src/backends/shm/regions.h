// Local registrations, and regions of the peer that are usable on one connection.
//
// Thread-safety: what registers a region is called on any thread, and says so; the rest is called
// by the agent's driver only.

#ifndef KVXFER_BACKENDS_SHM_REGIONS_H_
#define KVXFER_BACKENDS_SHM_REGIONS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/backend.h"
#include "src/backends/shm/handles.h"
#include "src/backends/shm/wire.h"
#include "src/transport/added_list.h"
#include "src/transport/host/mapping.h"

namespace kvxfer::shm {

inline bool Holds(uint64_t base, uint64_t size, uint64_t address, uint64_t bytes) {
  return address >= base && bytes <= size && address - base <= size - bytes;
}

// OK: [offset, offset + bytes) of a shared descriptor can be mapped and cannot vanish, because it
// is a memfd sealed against shrinking. FailedPrecondition: why not.
absl::Status CheckFile(int fd, uint64_t offset, uint64_t bytes);

// The memfds behind this agent's registrations. Each is kept once, however many regions lie in it.
// The driver sends each of them to the peers; it learns of a new one by has_new.
class SharedFiles {
 public:
  struct File {
    uint64_t id = 0;
    UniqueFd fd;
    uint64_t device = 0;
    uint64_t inode = 0;
    size_t registrations = 0;  // guarded by mu_
    bool sent = false;         // TakeNew has returned it; the driver's
  };

  // OK: peers may map `span`: it lies in a memfd that is sealed against shrinking (otherwise a peer
  // could be killed by SIGBUS) and is large enough. FailedPrecondition: why not. Any thread.
  static absl::Status Mappable(const MemorySpan& span);

  // What Add did. `fresh`: the file was not known before, so has_new is true now.
  struct Added {
    uint64_t id = 0;
    bool fresh = false;
  };
  // Counts one more registration in `fd`. ResourceExhausted: no descriptor left. Any thread.
  absl::StatusOr<Added> Add(int fd);
  // Counts one registration less. True: it was the last, and the file, which was sent, was dropped.
  bool Remove(uint64_t id);

  bool has_new() const { return new_.any(); }
  // The files that were not sent before, which count as sent from now on. Like those of Sent they
  // stay until Remove.
  std::vector<File*> TakeNew();
  std::vector<const File*> Sent() const;

 private:
  mutable std::mutex mu_;
  std::vector<std::unique_ptr<File>> files_;  // guarded by mu_
  uint64_t last_id_ = 0;                      // guarded by mu_
  net::AddedList<File> new_;                  // files that were not sent
};

// Is notified when a registration closes; outlives every registration.
class RegistrationOwner {
 public:
  virtual ~RegistrationOwner() = default;
  virtual void Unregister(const RegionKey& key) = 0;
};

// Made on any thread.
class ShmRegistration final : public Registration {
 public:
  ShmRegistration(RegistrationOwner* owner, const LocalRegion& region, const RegionKey& at)
      : owner_(owner), region_(region), at_(at) {
    key = Encode(at);
  }
  ~ShmRegistration() override { owner_->Unregister(at_); }

  bool Contains(uint64_t address, uint64_t bytes) const {
    return Holds(reinterpret_cast<uintptr_t>(region_.span.data), region_.span.bytes, address,
                 bytes);
  }

 private:
  RegistrationOwner* const owner_;
  const LocalRegion region_;
  const RegionKey at_;
};

class ShmRemoteKey final : public RemoteKey {
 public:
  // For an attached region.
  ShmRemoteKey(const Endpoint* endpoint, const RemoteRegion& region)
      : endpoint_(endpoint), region_(region) {}

  // For a mapped region: maps it from `file` at `offset`.
  static absl::StatusOr<std::unique_ptr<ShmRemoteKey>> Map(const Endpoint* endpoint,
                                                           const RemoteRegion& region, int file,
                                                           uint64_t offset);

  const Endpoint* endpoint() const { return endpoint_; }
  const RemoteRegion& region() const { return region_; }
  bool mapped() const { return base_ != nullptr; }
  MappedRegion Mapped() const override {
    const bool both = Allows(region_.access, Access::kReadWrite);
    return both ? MappedRegion{.data = base_, .mapping = mapping_} : MappedRegion{};
  }
  // Where the byte at the peer's `address` is mapped here. Call it only if mapped() and within the
  // region.
  std::byte* At(uint64_t address) const { return base_ + (address - region_.base); }

  // Call it before storing to [to, to + bytes) of the mapping. A first store maps one page only; a
  // read maps the whole window around it, for stores too, at a quarter of the cost.
  void Warm(const std::byte* to, size_t bytes) const {
    const uintptr_t first = reinterpret_cast<uintptr_t>(to) >> kWindowShift;
    const uintptr_t last = (reinterpret_cast<uintptr_t>(to) + bytes - 1) >> kWindowShift;
    for (uintptr_t window = first; window <= last; ++window) {
      const uintptr_t i = window - first_window_;
      uint64_t& word = warm_[i / 64];
      if ((word >> (i % 64) & 1) != 0) continue;
      word |= uint64_t{1} << (i % 64);
      const uintptr_t begin = window << kWindowShift;
      const auto at = std::max(begin, reinterpret_cast<uintptr_t>(to));
      static_cast<void>(*reinterpret_cast<const volatile std::byte*>(at));
    }
  }

 private:
  static constexpr int kWindowShift = 16;  // the kernel's default of fault_around_bytes

  const Endpoint* const endpoint_;
  const RemoteRegion region_;
  std::shared_ptr<const Mapping> mapping_;
  std::byte* base_ = nullptr;
  uintptr_t first_window_ = 0;
  mutable std::vector<uint64_t> warm_;  // one bit for each window of the mapping
};

}  // namespace kvxfer::shm

#endif  // KVXFER_BACKENDS_SHM_REGIONS_H_
