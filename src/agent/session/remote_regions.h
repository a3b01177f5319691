// A peer's memory as this agent knows it: the regions of its metadata, less those that it has
// deregistered, also those whose metadata has not come yet: an id is never used again.
//
// Thread-safety: none; owned by the engine. table() may be shared with other threads.

#ifndef KVXFER_AGENT_SESSION_REMOTE_REGIONS_H_
#define KVXFER_AGENT_SESSION_REMOTE_REGIONS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "src/agent/staging/staged_key.h"
#include "src/core/plan/region_table.h"
#include "src/core/protocol/id_set.h"
#include "src/core/protocol/metadata.h"
#include "src/core/protocol/wire_format.h"

namespace kvxfer {

class RemoteRegions {
 public:
  // Takes the peer's metadata, which must stay where it is until the next call.
  void Learn(const AgentMetadata& metadata);

  const std::string& peer() const { return name_; }
  // Null: the metadata has no such region.
  const AgentMetadata::Region* Find(RegionId id) const;
  // It is known, and not deregistered.
  bool Usable(RegionId id) const;
  // A usable one. FailedPrecondition: the peer has deregistered it.
  absl::StatusOr<const AgentMetadata::Region*> Live(RegionId id) const;
  // All of them, as they were when the metadata came.
  const std::shared_ptr<const RegionTable>& table() const { return table_; }

  // The peer's staging memory (kNone: there is none), where its buffers begin, and how many it has,
  // lent or not.
  RegionId staging_region() const { return staging_region_; }
  uint64_t staging_base() const { return staging_base_; }
  uint64_t staging_buffers() const { return staging_buffers_; }

  // What a run names in place of a backend's key where the region's bytes are staged.
  // FailedPrecondition: the peer has deregistered it.
  absl::StatusOr<const StagedKey*> StagedKeyOf(const RegionView& region);
  // As Link::DropKeys and DropDeadKeys, of those.
  void DropStagedKeys(std::span<const uint32_t> regions);
  void DropDeadStagedKeys(const std::unordered_set<const RemoteKey*>& used);

  // --- what the peer says of its regions ---
  void Revoke(uint32_t region) { revoked_.Add(region); }
  // When a connection begins: those from frame.first to frame.last that it does not list are gone.
  void OnPage(const RegionsFrame& frame);
  // ResourceExhausted: the peer invents ids.
  absl::Status CheckRevoked() const;

 private:
  // Live regions separate the runs, so more runs than this mean invented ids.
  static constexpr size_t kMaxDeadRuns = 2 * kMaxRegions;

  std::string name_;                                     // the peer's
  std::unordered_map<uint32_t, StagedKey> staged_keys_;  // by region
  std::unordered_map<uint32_t, const AgentMetadata::Region*> by_id_;
  IdSet revoked_;
  std::shared_ptr<const RegionTable> table_;
  RegionId staging_region_ = RegionId::kNone;
  uint64_t staging_base_ = 0;
  uint64_t staging_buffers_ = 0;
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_SESSION_REMOTE_REGIONS_H_
