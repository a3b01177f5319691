// The agent's registered regions, and the registration of each region with each backend.
//
// Thread-safety: table(), CheckSpan, Make and Discard from any thread; everything else by the
// driver only.

#ifndef KVXFER_AGENT_ENGINE_MEMORY_REGISTRY_H_
#define KVXFER_AGENT_ENGINE_MEMORY_REGISTRY_H_

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/backend.h"
#include "src/core/plan/region_table.h"
#include "src/core/protocol/metadata.h"
#include "src/core/protocol/wire_format.h"

namespace kvxfer {

// A local region as staging knows it (staging.h). It takes the place of a backend's registration in
// a Run.
struct StagedMemory final : Registration {
  StagedMemory(RegionId region, const MemorySpan& span)
      : id(region), device(span.kind == MemoryKind::kCuda ? span.device_id : -1) {}
  const RegionId id;
  const int device;  // -1: host memory
};

class MemoryRegistry {
 public:
  using Backends = std::vector<std::unique_ptr<Backend>>;

  // A region that is registered with the backends and not yet the agent's.
  struct Made {
    LocalRegion region;
    // Index: the backend. Null: it does not take this kind of memory.
    std::vector<absl::StatusOr<std::unique_ptr<Registration>>> results;
  };
  // InvalidArgument: `span` cannot be memory to register.
  static absl::Status CheckSpan(const MemorySpan& span);
  // Registers with every backend that takes this kind of memory. It pins pages, which may take
  // long, so it runs on the application's thread while the driver goes on with transfers.
  Made Make(const MemorySpan& span, Access access, const Backends& backends);
  // Destroys what Make returned; by the driver.
  void Drop(Made made);
  // Keeps what Make returned, for a caller that finds the agent closed: registrations are not
  // destroyed on an application's thread while somebody drives. DropDiscarded, or the registry's
  // end, destroys them.
  void Discard(std::vector<Made> made);
  void DropDiscarded();
  // How a region is reached over the backends that do not take its kind of memory.
  struct Staging {
    absl::Status possible{};  // OK, or why staging is not possible
    bool is_staging = false;  // the region is the staging memory itself, not the application's
  };
  // Takes a region in, or destroys it: if no backend has taken it, and it cannot be staged either.
  // It is hidden until Publish: no transfer uses it and metadata does not list it.
  absl::StatusOr<RegionId> Add(Made made, const Backends& backends, const Staging& staging);
  // Opens hidden regions.
  void Publish(std::span<const RegionId> regions);
  // True: the staging memory is registered with `backend`.
  bool StagesOver(size_t backend) const {
    return staging_ != nullptr && staging_->holds[backend] != nullptr;
  }
  // Why a backend that takes GPU memory refused some of it. OK: it took all of it.
  absl::Status WhyNotTaken(std::string_view backend) const {
    const auto it = told_.find(std::string(backend));
    return it == told_.end() ? absl::OkStatus() : it->second;
  }
  // NotFound: the application has no open region of this id.
  absl::Status CheckOpen(RegionId id) const;
  // From now on no new transfer uses the region and new metadata does not list it. Errors as
  // CheckOpen.
  absl::Status Close(RegionId id);
  // Forgets a closed or a hidden region.
  void Remove(RegionId id);

  // Counts a transfer as a user of `regions` of `table`. FailedPrecondition if one of them is
  // closed.
  absl::Status Use(const RegionTable& table, std::span<const uint32_t> regions);
  // The same for an op of a transfer that already counts as a user; it cannot fail.
  void UseAgain(const RegionTable& table, std::span<const uint32_t> regions);
  void Unuse(const RegionTable& table, std::span<const uint32_t> regions);
  bool InUse(RegionId id) const;
  // Closed regions whose last transfer has ended since the last call.
  std::vector<RegionId> TakeReleased() { return std::exchange(released_, {}); }

  // Null: the region is not registered with this backend.
  const Registration* Find(RegionId id, size_t backend) const;
  const StagedMemory* FindStaged(RegionId id) const;
  // The open region with `rkey`, if it contains [address, address + bytes) and grants `wanted`;
  // null otherwise.
  const StagedMemory* FindGranted(uint32_t rkey, uint64_t address, uint64_t bytes,
                                  Access wanted) const;

  std::vector<AgentMetadata::Region> Describe(const Backends& backends) const;
  uint32_t last_region() const { return last_region_; }
  // How many regions are live: open, or hidden. Hidden ones count because peers may come to know
  // them.
  size_t live() const { return live_; }
  // Which regions from `first` to `last` are live, in at most `most` runs. Sets `first`, `last` and
  // `live` of the frame; its `last` is smaller than the argument if the runs did not suffice.
  RegionsFrame Page(uint32_t first, uint32_t last, size_t most) const;

  // The open regions, for planning.
  std::shared_ptr<const RegionTable> table() const;

 private:
  enum class State : uint8_t { kHidden, kOpen, kClosed };
  struct Entry {
    LocalRegion region;
    std::unique_ptr<StagedMemory> staged;
    bool is_staging = false;
    State state = State::kHidden;
    uint32_t uses = 0;
    std::vector<std::unique_ptr<Registration>> holds;  // index: the backend
  };
  uint32_t NewRkey();
  void ForgetRkey(uint32_t rkey);
  // The registrations, or why there is none. Logs which backends refused.
  absl::StatusOr<std::vector<std::unique_ptr<Registration>>> Holds(Made& made,
                                                                   const Backends& backends);
  void TellNotTaken(const Backend& backend, MemoryKind kind, const absl::Status& why);

  std::map<RegionId, Entry> entries_;
  std::unordered_map<uint32_t, const Entry*> rkeys_;  // points into entries_
  const Entry* staging_ = nullptr;                    // the entry of the staging memory
  // The first reason why each backend refused GPU memory.
  std::map<std::string, absl::Status> told_;
  uint32_t last_region_ = 0;
  size_t live_ = 0;  // how many of entries_ are live
  std::vector<RegionId> released_;
  mutable std::mutex mu_;  // guards everything below
  std::unordered_set<uint32_t> used_rkeys_;
  std::vector<Made> discarded_;
  std::map<RegionId, RegionView> open_;
  // Made from open_ when it is asked for; null: not made since the last change. So each of many
  // registrations in a row costs the same as the first.
  mutable std::shared_ptr<const RegionTable> table_;
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_ENGINE_MEMORY_REGISTRY_H_
