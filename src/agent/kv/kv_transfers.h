// Transfers between KV caches, with every rank of a group that holds a part of the blocks: who
// takes part, which share each of them has, and the member transfers that move the shares.
//
// Thread-safety: all methods from any thread.

#ifndef KVXFER_AGENT_KV_KV_TRANSFERS_H_
#define KVXFER_AGENT_KV_KV_TRANSFERS_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/kv_cache.h"
#include "src/agent/engine/call_gate.h"
#include "src/agent/engine/peer_views.h"
#include "src/agent/engine/runtime.h"
#include "src/agent/engine/transfer_service.h"
#include "src/agent/kv/kv_parties.h"
#include "src/core/kv/kv_group.h"

namespace kvxfer {

class KvTransfers {
 public:
  // All of them outlive it.
  struct Parts {
    Runtime* runtime = nullptr;
    const CallGate* gate = nullptr;
    const PeerViews* views = nullptr;
    TransferService* transfers = nullptr;
  };
  explicit KvTransfers(const Parts& parts) : parts_(parts) {}

  // See Agent::WriteBlocks and ReadBlocks.
  absl::StatusOr<TransferPtr> Start(TransferKind kind, std::span<const std::string> group,
                                    const KvBlocks& blocks, const KvOptions& options);
  // See Agent::PrepareBlocks and WriteLayers. `prepared` may be null: no blocks.
  absl::StatusOr<std::shared_ptr<const internal::KvPrepared>> Prepare(
      std::span<const std::string> group, const KvBlocks& blocks) const;
  absl::StatusOr<TransferPtr> WriteLayers(const internal::KvPrepared* prepared,
                                          uint32_t first_layer, uint32_t layers,
                                          const KvOptions& options);

 private:
  absl::Status CheckCall(TransferKind kind, const KvOptions& options) const;
  absl::StatusOr<KvParties> FindParties(std::span<const std::string> group, std::string_view cache,
                                        Direction direction) const {
    return KvParties::Find(parts_.runtime->kv, *parts_.views, group, cache, direction);
  }
  // The member transfer that moves one rank's share of the blocks.
  absl::StatusOr<TransferPtr> NewMember(TransferKind kind, const KvParties& parties,
                                        const KvShare& share, const KvBlocks& blocks,
                                        const KvOptions& options);
  // The one that moves its share of some layers of prepared blocks.
  absl::StatusOr<TransferPtr> NewLayerMember(const internal::KvPrepared& prepared,
                                             const internal::KvPrepared::Member& member,
                                             const KvRange& range, const KvOptions& options);
  // The one that only notifies a rank that its blocks are not needed.
  absl::StatusOr<TransferPtr> NewReaderOfNothing(const KvParties& parties, size_t rank,
                                                 const KvBlocks& blocks, const KvOptions& options);
  absl::StatusOr<TransferPtr> Post(TransferKind kind, std::vector<TransferPtr> members,
                                   const KvOptions& options, ProgressLoop::While asleep);

  const Parts parts_;
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_KV_KV_TRANSFERS_H_
