// The agent's leases: what its application and its peers say of them, and who is told of their
// ends.
//
// Thread-safety: none; owned by the engine.

#ifndef KVXFER_AGENT_KV_LEASE_DESK_H_
#define KVXFER_AGENT_KV_LEASE_DESK_H_

#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "kvxfer/kv_cache.h"
#include "src/agent/kv_events.h"
#include "src/core/kv_leases.h"
#include "src/core/wire_format.h"

namespace kvxfer {

class KvLeaseDesk {
 public:
  explicit KvLeaseDesk(KvEvents* events) : events_(events) {}

  absl::Status Grant(std::string_view lease, uint64_t blocks_hash, Time expires);
  absl::Status Renew(std::string_view lease, Time expires, Time now);
  absl::Status Release(std::string_view lease, Time now);

  // What a reader says, and the answer that it is due, if any.
  VerdictFrame OnFetchBegin(const FetchBeginFrame& frame, KvLeases::Reader reader, Time now);
  std::optional<VerdictFrame> OnFetchEnd(const FetchEndFrame& frame, KvLeases::Reader reader,
                                         Time now);
  void Sweep(KvLeases::Reader reader, Time now);
  void Expire(Time now) { Collect(now); }
  Time NextExpiry() const { return leases_.NextExpiry().value_or(Time::max()); }

  void Count(KvCounts& out) const;

 private:
  void Collect(Time now);

  KvLeases leases_;
  KvEvents* const events_;
  uint64_t refused_ = 0;
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_KV_LEASE_DESK_H_
