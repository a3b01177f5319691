// The agent's registered regions and each backend's hold on them.
//
// Thread-safety: table() and Prepare() from any thread; everything else by the owner of the engine.

#ifndef KVXFER_AGENT_ENGINE_MEMORY_REGISTRY_H_
#define KVXFER_AGENT_ENGINE_MEMORY_REGISTRY_H_

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/backend.h"
#include "src/core/plan/region_table.h"
#include "src/core/protocol/metadata.h"
#include "src/core/protocol/wire_format.h"

namespace kvxfer {

// A local region as staging sees it (staging.h), in place of a backend's registration.
struct StagedMemory final : Registration {
  StagedMemory(RegionId region, const MemorySpan& span)
      : id(region), device(span.kind == MemoryKind::kCuda ? span.device_id : -1) {}
  const RegionId id;
  const int device;  // -1: host memory
};

class MemoryRegistry {
 public:
  using Backends = std::vector<std::unique_ptr<Backend>>;

  // What each backend did ahead, or said why not.
  using Ahead = std::vector<absl::StatusOr<std::unique_ptr<Prepared>>>;
  // InvalidArgument: no memory that could be registered. From any thread, as the next.
  static absl::Status CheckSpan(const MemorySpan& span);
  static Ahead Prepare(const MemorySpan& span, Access access, const Backends& backends);
  // How memory of a kind that not every backend takes is reached all the same.
  struct Staging {
    absl::Status possible{};  // or why not
    bool slots = false;       // this is the staging memory itself: nothing of the application
  };
  // Registers with every backend that takes this kind of memory; fails when none does and it cannot
  // be staged either. The region is hidden until Publish: no transfer uses it and metadata do not
  // name it.
  absl::StatusOr<RegionId> Register(const MemorySpan& span, Access access, const Backends& backends,
                                    const Ahead& ahead, const Staging& staging);
  // Hidden regions are open from now on.
  void Publish(std::span<const RegionId> regions);
  // The staging memory is there, and `backend` has taken it.
  bool StagesOver(size_t backend) const {
    return slots_ != nullptr && slots_->holds[backend] != nullptr;
  }
  // Why a backend that takes GPU memory did not take some of it; OK: it took all.
  absl::Status WhyNotTaken(std::string_view backend) const {
    const auto it = told_.find(std::string(backend));
    return it == told_.end() ? absl::OkStatus() : it->second;
  }
  // NotFound: no region of the application's that is open.
  absl::Status CheckOpen(RegionId id) const;
  // From now on no new transfer uses it and new metadata does not name it. As CheckOpen.
  absl::Status Close(RegionId id);
  // Forgets a closed region, or a hidden one.
  void Remove(RegionId id);

  // Counts a transfer that uses `regions` of `table`; FailedPrecondition when one is closed.
  absl::Status Use(const RegionTable& table, std::span<const uint32_t> regions);
  // The same for a part of a transfer that uses them already.
  void UseAgain(const RegionTable& table, std::span<const uint32_t> regions);
  void Unuse(const RegionTable& table, std::span<const uint32_t> regions);
  bool InUse(RegionId id) const;
  // Closed regions that no transfer uses any more, since the last call.
  std::vector<RegionId> TakeReleased() { return std::exchange(released_, {}); }

  // Null: this backend has no hold on it.
  const Registration* Find(RegionId id, size_t backend) const;
  const StagedMemory* FindStaged(RegionId id) const;
  // An open region that grants `wanted` for all of [address, address + bytes) by that rkey; null:
  // none does.
  const StagedMemory* FindGranted(uint32_t rkey, uint64_t address, uint64_t bytes,
                                  Access wanted) const;

  std::vector<AgentMetadata::Region> Describe(const Backends& backends) const;
  uint32_t last_region() const { return last_region_; }
  // How many live: those that are open, and the hidden ones, which peers may come to know.
  size_t live() const { return live_; }
  std::vector<uint32_t> LiveRegions() const;
  // Which of `first` to `last` live, as far as `most` runs tell of them: of the frame `first`,
  // `last` and `live` are set, and its `last` may be an earlier one.
  RegionsFrame Page(uint32_t first, uint32_t last, size_t most) const;

  // Open regions as planning sees them.
  std::shared_ptr<const RegionTable> table() const;

 private:
  enum class State : uint8_t { kHidden, kOpen, kClosed };
  struct Entry {
    LocalRegion region;
    std::unique_ptr<StagedMemory> staged;
    bool slots = false;
    State state = State::kHidden;
    uint32_t uses = 0;
    std::vector<std::unique_ptr<Registration>> holds;  // by backend
  };
  uint32_t NewRkey() const;
  void TellNotTaken(const Backend& backend, MemoryKind kind, const absl::Status& why);

  std::map<RegionId, Entry> entries_;
  std::unordered_map<uint32_t, const Entry*> rkeys_;  // of entries_
  const Entry* slots_ = nullptr;                      // the staging memory's
  std::map<std::string, absl::Status> told_;  // why a backend did not take GPU memory, first
  uint32_t last_region_ = 0;
  size_t live_ = 0;  // of entries_
  std::vector<RegionId> released_;
  mutable std::mutex mu_;
  std::map<RegionId, RegionView> open_;
  // Of open_; null: made when it is asked for, so that many registrations in a row cost no more
  // each than the first.
  mutable std::shared_ptr<const RegionTable> table_;
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_ENGINE_MEMORY_REGISTRY_H_
