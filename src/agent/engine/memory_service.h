// Registers and deregisters the application's memory.
//
// Thread-safety: Register and Deregister from any thread; the driver calls the rest.

#ifndef KVXFER_AGENT_ENGINE_MEMORY_SERVICE_H_
#define KVXFER_AGENT_ENGINE_MEMORY_SERVICE_H_

#include <atomic>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/memory.h"
#include "src/agent/engine/call_gate.h"
#include "src/agent/engine/deregistrations.h"
#include "src/agent/engine/memory_registry.h"
#include "src/agent/engine/runtime.h"
#include "src/cuda/memory.h"

namespace kvxfer {

class MemoryService {
 public:
  // All of them outlive it.
  MemoryService(Runtime* runtime, const CallGate* gate, InboundHub* inbound)
      : runtime_(runtime), gate_(gate), deregistrations_(runtime, inbound) {}

  // Registers all of `spans` or none. Peers and transfers see the regions only once all of them
  // exist, so a failed call can take them back without asking a peer.
  absl::StatusOr<std::vector<RegionId>> Register(std::span<const MemorySpan> spans, Access access);
  // `in_use`: null, or gets the regions that were still in use when the time was over.
  absl::Status Deregister(std::span<const RegionId> regions, Duration timeout,
                          std::vector<RegionId>* in_use);

  // See Deregistrations. True: there is more to do now.
  bool Advance() {
    deregistrations_.Advance();
    return due();
  }
  bool due() const { return deregistrations_.due(); }

 private:
  // Both append to `made` each region that they registered, also when they fail.
  absl::Status RegisterHost(std::span<const MemorySpan> spans, Access access,
                            std::vector<RegionId>& made);
  absl::Status RegisterCuda(const MemorySpan& span, Access access, std::vector<RegionId>& made);
  // By the driver: the region of `made`, with the staging memory behind it if that was registered
  // too.
  absl::StatusOr<RegionId> AddCuda(std::vector<MemoryRegistry::Made> made,
                                   MemoryRegistry::Staging staging, cuda::DeviceSpan device);
  // Publishes the regions, or takes back those of a call that failed, as `registered` says.
  absl::Status Settle(std::span<const RegionId> made, const absl::Status& registered);
  // The time of Deregister is over.
  absl::Status LeaveInUse(std::span<const RegionId> regions, const Deregistrations::Left& left,
                          std::vector<RegionId>* in_use);

  Runtime* const runtime_;
  const CallGate* const gate_;
  Deregistrations deregistrations_;
  std::atomic<bool> staging_registered_{false};  // set by the driver
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_ENGINE_MEMORY_SERVICE_H_
