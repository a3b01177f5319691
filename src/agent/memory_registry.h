// The agent's registered regions and each backend's hold on them.
//
// Thread-safety: table() and Prepare() from any thread; everything else by the owner of the engine.

#ifndef KVXFER_AGENT_MEMORY_REGISTRY_H_
#define KVXFER_AGENT_MEMORY_REGISTRY_H_

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_set>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/backend.h"
#include "src/core/metadata.h"
#include "src/core/region_table.h"

namespace kvxfer {

class MemoryRegistry {
 public:
  using Backends = std::vector<std::unique_ptr<Backend>>;

  // What each backend did ahead, or said why not.
  using Ahead = std::vector<absl::StatusOr<std::unique_ptr<Prepared>>>;
  // From any thread. InvalidArgument: no memory that could be registered.
  static absl::StatusOr<Ahead> Prepare(const MemorySpan& span, Access access,
                                       const Backends& backends);
  // Registers with every backend that takes this kind of memory; fails when none does.
  absl::StatusOr<RegionId> Register(const MemorySpan& span, Access access, const Backends& backends,
                                    const Ahead& ahead);
  // From now on no new transfer uses it and new metadata does not name it.
  absl::Status Close(RegionId id);
  // Forgets a closed region.
  void Remove(RegionId id);

  // Counts a transfer that uses `regions` of `table`; FailedPrecondition when one is closed.
  absl::Status Use(const RegionTable& table, std::span<const uint32_t> regions);
  void Unuse(const RegionTable& table, std::span<const uint32_t> regions);
  bool InUse(RegionId id) const;

  // Null: this backend has no hold on it.
  const Registration* Find(RegionId id, size_t backend) const;

  std::vector<AgentMetadata::Region> Describe(const Backends& backends) const;
  uint32_t last_region() const { return last_region_; }
  std::vector<uint32_t> LiveRegions() const;

  // Open regions as planning sees them.
  std::shared_ptr<const RegionTable> table() const;

 private:
  struct Entry {
    LocalRegion region;
    bool closed = false;
    uint32_t uses = 0;
    std::vector<std::unique_ptr<Registration>> holds;  // by backend
  };
  uint32_t NewRkey() const;

  std::map<RegionId, Entry> entries_;
  std::unordered_set<uint32_t> rkeys_;  // of entries_
  uint32_t last_region_ = 0;
  mutable std::mutex mu_;
  std::map<RegionId, RegionView> open_;
  // Of open_; null: made when it is asked for, so that many registrations in a row cost no more
  // each than the first.
  mutable std::shared_ptr<const RegionTable> table_;
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_MEMORY_REGISTRY_H_
