// This agent's leases: handles what the application and the peers request, and reports the ends of
// leases to the application.
//
// Thread-safety: none; only the driver calls it.

#ifndef KVXFER_AGENT_KV_LEASE_SERVICE_H_
#define KVXFER_AGENT_KV_LEASE_SERVICE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kvxfer/kv_cache.h"
#include "src/agent/engine/event_queue.h"
#include "src/core/kv/kv_leases.h"
#include "src/core/protocol/lease_waiters.h"
#include "src/core/protocol/wire_format.h"

namespace kvxfer {

class LeaseService {
 public:
  explicit LeaseService(EventQueue* events) : events_(events) {}

  struct Held {
    uint64_t hash = 0;  // of the blocks
    std::string_view contents{};
  };
  // Also answers the readers that wait for this lease, see TakeLateAnswers.
  absl::Status Grant(std::string_view lease, const Held& held, Time expires, Time now);
  absl::Status Renew(std::string_view lease, Time expires, Time now);
  absl::Status Release(std::string_view lease, Time now);
  absl::Status Revoke(std::string_view lease, Time now);

  // Handle a reader's frame and return the answer to send at once. None: the reader waits for the
  // grant (OnLeaseRead), or needs no answer (OnFetchEnd).
  std::optional<LeaseAnswerFrame> OnLeaseRead(const LeaseReadFrame& frame, KvLeases::Reader reader,
                                              Time now);
  std::optional<LeaseAnswerFrame> OnFetchEnd(const FetchEndFrame& frame, KvLeases::Reader reader,
                                             Time now);
  bool has_late_answers() const { return !late_.empty(); }
  // The answers to readers that had to wait, since the last call.
  std::vector<std::pair<KvLeases::Reader, LeaseAnswerFrame>> TakeLateAnswers() {
    return std::exchange(late_, {});
  }
  void Sweep(KvLeases::Reader reader, Time now);
  void Expire(Time now);
  Time NextExpiry() const;

  // The reader has a fetch in progress: its lease does not end before that.
  bool IsReading(KvLeases::Reader reader) const { return leases_.IsReading(reader); }
  void Count(KvCounts& out) const;

 private:
  LeaseAnswerFrame Begin(const LeaseReadFrame& frame, KvLeases::Reader reader, Time now);
  void AnswerLate(std::span<const LeaseWaiters::Waiter> waiters, Time now);
  void Collect(Time now);

  KvLeases leases_;
  LeaseWaiters waiters_;
  std::vector<std::pair<KvLeases::Reader, LeaseAnswerFrame>> late_;
  EventQueue* const events_;
  uint64_t refused_ = 0;
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_KV_LEASE_SERVICE_H_
