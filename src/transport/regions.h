// The local regions that peers may name by rkey, for backends whose target moves the bytes itself.
// Such a target must check each run: its region, bounds and rights. Also the wire form of a run.
//
// A look-up is an array access for recently used regions, and a hash look-up otherwise.
//
// Lifetime: a Region may outlive its map and is then useless.
// Thread-safety: RegionMap::Register, and Check with a cache of the caller's own, may be called on
// any thread, concurrently with everything else. The rest is used by the agent's driving thread,
// also the destructor of a Region.

#ifndef KVXFER_TRANSPORT_REGIONS_H_
#define KVXFER_TRANSPORT_REGIONS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/backend.h"

namespace kvxfer::net {

// One contiguous run of the target's memory.
struct WireRun {
  uint64_t address = 0;
  uint32_t bytes = 0;
  uint32_t rkey = 0;
};
// Little-endian, in that order.
inline constexpr size_t kWireRunBytes = 16;
void Encode(const WireRun& run, std::span<std::byte, kWireRunBytes> out);
WireRun DecodeWireRun(std::span<const std::byte, kWireRunBytes> in);

class RegionMap;

class Region final : public Registration {
 public:
  Region(RegionMap* regions, const LocalRegion& region);
  ~Region() override;

  uint32_t rkey() const { return rkey_; }
  bool Grants(const WireRun& run, Access wanted) const {
    return Allows(access_, wanted) && run.address >= base_ && run.bytes <= bytes_ &&
           run.address - base_ <= bytes_ - run.bytes;
  }
  // Why Grants returned false, for a person.
  std::string WhyNot(const WireRun& run, Access wanted) const;

 private:
  friend class RegionMap;

  RegionMap* regions_;  // null: the backend is gone
  const uint32_t rkey_;
  const uint64_t base_;
  const uint64_t bytes_;
  const Access access_;
};

// A peer's key that consists of the rkey alone.
class RkeyOnly final : public RemoteKey {
 public:
  explicit RkeyOnly(uint32_t rkey) : rkey_(rkey) {}
  // InvalidArgument: the region has no rkey. The message begins with `backend` and names `peer`.
  static absl::StatusOr<std::unique_ptr<RemoteKey>> Of(const RemoteRegion& region,
                                                       std::string_view backend,
                                                       std::string_view peer);
  uint32_t rkey() const { return rkey_; }

 private:
  const uint32_t rkey_;
};

// Whether every block of `blocks` has a key. Costs O(pairs) or O(descriptors), never O(ids).
bool HaveKeys(const BlockRange& blocks);

// The regions that peers have named to one thread, so that a look-up takes no lock.
class RegionCache {
 public:
  // Null: it is not in the cache.
  const Region* Find(uint32_t rkey);
  void Add(const Region* region);
  // Must be called before the region is destroyed.
  void Forget(const Region& region);

 private:
  std::unordered_map<uint32_t, const Region*> named_;
  std::array<const Region*, 64> recent_{};  // of named_; indexed by the low bits of the rkey
};

class RegionMap {
 public:
  using Closed = std::function<void(const Region*)>;
  // `on_closed`: called for a region that is being destroyed and is already out of the map.
  explicit RegionMap(Closed on_closed = nullptr) : on_closed_(std::move(on_closed)) {}
  ~RegionMap();
  RegionMap(const RegionMap&) = delete;
  RegionMap& operator=(const RegionMap&) = delete;

  // Called on any thread. InvalidArgument: not host memory, empty, or without an rkey.
  // AlreadyExists: the rkey is in use. The messages begin with `backend`.
  absl::StatusOr<std::unique_ptr<Registration>> Register(const LocalRegion& region,
                                                         std::string_view backend);

  // The region that grants `wanted` for all of `run`. PermissionDenied: the message says why.
  absl::StatusOr<const Region*> Check(const WireRun& run, Access wanted) {
    return Check(run, wanted, cache_);
  }
  absl::StatusOr<const Region*> Check(const WireRun& run, Access wanted, RegionCache& cache);
  bool Knows(uint32_t rkey) { return Find(rkey, cache_) != nullptr; }

 private:
  friend class Region;

  const Region* Find(uint32_t rkey, RegionCache& cache);
  void Erase(const Region& region);

  const Closed on_closed_;
  std::mutex mu_;
  std::unordered_map<uint32_t, Region*> all_;  // guarded by mu_
  RegionCache cache_;                          // the driving thread's
};

}  // namespace kvxfer::net

#endif  // KVXFER_TRANSPORT_REGIONS_H_
