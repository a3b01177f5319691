// What the application asks about its KV caches, requests and leases.
//
// Thread-safety: all methods from any thread.

#ifndef KVXFER_AGENT_KV_KV_SERVICE_H_
#define KVXFER_AGENT_KV_KV_SERVICE_H_

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/kv_cache.h"
#include "src/agent/engine/call_gate.h"
#include "src/agent/engine/runtime.h"
#include "src/agent/session/inbound.h"

namespace kvxfer {

class KvService {
 public:
  // All of them outlive it.
  KvService(Runtime* runtime, const CallGate* gate, InboundHub* inbound)
      : runtime_(runtime), gate_(gate), inbound_(inbound) {}

  // See Agent.
  absl::Status Register(std::string_view name, const KvLayout& layout,
                        std::span<const uint64_t> tensors);
  absl::Status Deregister(std::string_view name);
  absl::Status WaitLayers(std::string_view cache, std::string_view request, uint32_t layers,
                          Duration timeout);
  absl::Status DropRequest(std::string_view cache, std::string_view request);
  absl::Status LeaseBlocks(std::string_view cache, std::string_view lease,
                           std::span<const uint32_t> ids, Duration hold, std::string_view contents);
  absl::Status RenewLease(std::string_view lease, Duration hold);
  absl::Status ReleaseLease(std::string_view lease);
  absl::Status RevokeLease(std::string_view lease);
  absl::StatusOr<KvCounts> Count();

 private:
  Runtime* const runtime_;
  const CallGate* const gate_;
  InboundHub* const inbound_;
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_KV_KV_SERVICE_H_
