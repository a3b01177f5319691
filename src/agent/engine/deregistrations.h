// Regions whose deregistration has begun. Asks the peers to stop using them, and forgets each
// region once nothing can touch it. One call of Advance costs what has happened since the last
// call, and looks at no more than kAtOnce regions; the next call takes the others.
//
// Thread-safety: none; only the driver calls it.

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
  // A limit per call, because releasing a region may be a system call and transfers must go on
  // meanwhile.
  static constexpr size_t kAtOnce = 256;

  // How many regions of one DeregisterMemory call are left. The driver counts it down and wakes the
  // caller, who waits for 0. Shared, because the driver may use it after the call has timed out.
  using Left = std::shared_ptr<std::atomic<size_t>>;

  Deregistrations(Runtime* runtime, InboundHub* inbound) : runtime_(runtime), inbound_(inbound) {}

  // Begins with all of `regions` or, on an error, with none. A region that an earlier call has
  // given up waiting for is accepted again; the peers are asked only once about each region.
  absl::StatusOr<Left> Begin(std::span<const RegionId> regions);
  // Sends the questions that are due and forgets the regions that are free. Returns how many
  // regions it looked at.
  size_t Advance();
  // True: Advance has more regions to look at now.
  bool due() const { return !due_.empty() || inbound_->questions().any_revoked(); }
  // The call stops waiting. Returns the regions that are still in use; they stay registered until
  // the next call for them.
  std::vector<RegionId> Leave(std::span<const RegionId> regions);
  // Text for people: what still uses `region`.
  std::string Pending(RegionId region) const;

 private:
  // `question` is 0: the region is in unasked_. It is a key of asked_: not every peer has answered.
  // Otherwise: every peer has answered.
  struct Closing {
    uint64_t question = 0;
    Left left{};  // null: no call waits for this region
  };

  absl::Status Check(std::span<const RegionId> regions) const;
  void Ask();
  void Look(RegionId region);

  Runtime* const runtime_;
  InboundHub* const inbound_;
  std::map<RegionId, Closing> closing_;
  std::deque<RegionId> unasked_;
  std::unordered_map<uint64_t, std::vector<RegionId>> asked_;  // by question
  std::deque<std::vector<RegionId>> due_;  // regions whose state has changed; no entry is empty
  // A GPU copy uses these; its end is not reported, so they are polled.
  std::vector<RegionId> copied_;
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_ENGINE_DEREGISTRATIONS_H_
