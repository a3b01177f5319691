// Regions whose deregistration has begun: asks the peers about them, and forgets each one once
// nothing can touch it any more. A turn of the driver costs what has happened since the turn
// before, and no more than kAtOnce regions; the others have their turn in the next.
//
// Thread-safety: none; used by the engine's owner.

#ifndef KVXFER_AGENT_ENGINE_DEREGISTRATIONS_H_
#define KVXFER_AGENT_ENGINE_DEREGISTRATIONS_H_

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "src/agent/engine/runtime.h"
#include "src/agent/session/inbound.h"

namespace kvxfer {

class Deregistrations {
 public:
  // Giving up a region may be a system call, so that transfers go on in between.
  static constexpr size_t kAtOnce = 256;

  // How many of the regions that a call deregisters are left, set by the owner; the call waits for
  // 0, and is woken by it. Shared: the owner may outlast the call.
  using Left = std::shared_ptr<std::atomic<size_t>>;

  Deregistrations(Runtime* runtime, InboundHub* inbound) : runtime_(runtime), inbound_(inbound) {}

  // All of them or, with an error, none. Those that an earlier call gave up waiting for are taken
  // on: peers are asked once for each region.
  absl::StatusOr<Left> Begin(std::span<const RegionId> regions);
  // Asks what is to be asked and forgets regions that are free; how many it looked at.
  size_t Advance();
  // There is more to look at now: call Advance again.
  bool due() const { return !due_.empty() || inbound_->any_revoked(); }
  // The call waits no longer. Returns the regions that are in use; they stay until the next call.
  std::vector<RegionId> Leave(std::span<const RegionId> regions);
  // What keeps a region that stays, for a person.
  std::string Pending(RegionId region) const;

 private:
  // Its question is one of asked_: peers have not answered. None: it waits in unasked_. Any other:
  // they have.
  struct Closing {
    uint64_t question = 0;
    Left left{};  // null: no call waits for it
  };

  absl::Status Check(std::span<const RegionId> regions) const;
  void Ask();
  void Look(RegionId region);

  Runtime* const runtime_;
  InboundHub* const inbound_;
  std::map<RegionId, Closing> closing_;
  std::deque<RegionId> unasked_;
  std::unordered_map<uint64_t, std::vector<RegionId>> asked_;  // by question
  std::deque<std::vector<RegionId>> due_;  // something changed for these; none of them is empty
  std::vector<RegionId> copied_;           // a copy of the GPU touches these, which tells nobody
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_ENGINE_DEREGISTRATIONS_H_
