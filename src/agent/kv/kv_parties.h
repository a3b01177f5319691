// The KV caches on both sides of a transfer: this agent's, and that of each rank of a group.
//
// Thread-safety: all functions from any thread.

#ifndef KVXFER_AGENT_KV_KV_PARTIES_H_
#define KVXFER_AGENT_KV_KV_PARTIES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/kv_cache.h"
#include "kvxfer/types.h"
#include "src/agent/engine/peer_views.h"
#include "src/agent/kv/kv_registry.h"
#include "src/core/kv/kv_block_list.h"
#include "src/core/kv/kv_cache_table.h"
#include "src/core/kv/kv_group.h"
#include "src/core/kv/kv_range.h"
#include "src/core/plan/region_table.h"

namespace kvxfer {

// As they were at one time. What it points to lives as long as it does.
struct KvParties {
  std::shared_ptr<const KvCacheTable> caches;  // of this agent
  const KvCacheInfo* own = nullptr;
  // One entry for each rank in the group.
  std::vector<std::shared_ptr<const PeerView>> views{};
  std::vector<const KvCacheInfo*> theirs{};
  std::vector<KvRank> ranks{};

  // NotFound: an unknown peer, or a cache that this agent or a rank does not have.
  // InvalidArgument: as for CheckKvGroup.
  static absl::StatusOr<KvParties> Find(const KvRegistry& kv, const PeerViews& views,
                                        std::span<const std::string> group, std::string_view cache,
                                        Direction direction);
  // Whether the cache of this agent, or of a rank, is still the one that was found. NotFound: it is
  // gone. FailedPrecondition: another one, or another incarnation of the peer, is in its place.
  absl::Status CheckOwn(const KvRegistry& kv, std::string_view cache) const;
  // The peer's view of today, which counts its transfers: a peer that is removed and added again
  // has another one.
  absl::StatusOr<std::shared_ptr<const PeerView>> CheckRank(size_t rank, const PeerViews& now,
                                                            std::string_view cache) const;
};

namespace internal {

// What PreparedBlocks is a handle to.
struct KvPrepared {
  // The share of one rank.
  struct Member {
    KvShare share{};
    KvLayerLists lists;
  };

  Incarnation agent{};  // whose blocks they are
  std::string cache{};
  KvParties parties{};
  // The table that the lists index on this side.
  std::shared_ptr<const RegionTable> local{};
  KvRange range{};  // the layers that may be written
  uint64_t blocks_hash = 0;
  std::vector<Member> members{};
};

class KvPreparedAccess {
 public:
  static PreparedBlocks Handle(std::shared_ptr<const KvPrepared> prepared) {
    PreparedBlocks blocks;
    blocks.prepared_ = std::move(prepared);
    return blocks;
  }
  // Null: no blocks.
  static const KvPrepared* Get(const PreparedBlocks& blocks) { return blocks.prepared_.get(); }
};

}  // namespace internal
}  // namespace kvxfer

#endif  // KVXFER_AGENT_KV_KV_PARTIES_H_
