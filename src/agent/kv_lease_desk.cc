#include "src/agent/kv_lease_desk.h"

#include <algorithm>
#include <utility>

#include "src/core/log.h"
#include "src/core/strings.h"

namespace kvxfer {

absl::Status KvLeaseDesk::Grant(std::string_view lease, uint64_t blocks_hash, Time expires) {
  if (events_->ended() >= LeaseBook::kMaxLeases) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the application has not taken the ends of ", LeaseBook::kMaxLeases,
                     " KV leases; call PollKvEvent until it is empty"));
  }
  return leases_.Grant(lease, blocks_hash, expires);
}

absl::Status KvLeaseDesk::Renew(std::string_view lease, Time expires, Time now) {
  const absl::Status status = leases_.Renew(lease, expires, now);
  Collect(now);
  return status;
}

absl::Status KvLeaseDesk::Release(std::string_view lease, Time now) {
  const absl::Status status = leases_.Release(lease, now);
  Collect(now);
  return status;
}

VerdictFrame KvLeaseDesk::OnFetchBegin(const FetchBeginFrame& frame, KvLeases::Reader reader,
                                       Time now) {
  // Beyond what any clock holds is as good as for ever, which the lease's bound cuts short.
  const auto nanos = static_cast<int64_t>(std::min<uint64_t>(frame.within_nanos, INT64_MAX));
  const absl::Status status = leases_.Begin(frame.lease, frame.blocks_hash, reader, frame.transfer,
                                            std::chrono::nanoseconds(nanos), now);
  Collect(now);
  if (!status.ok()) ++refused_;
  return {.transfer = frame.transfer, .good = status.ok(), .why = std::string(status.message())};
}

std::optional<VerdictFrame> KvLeaseDesk::OnFetchEnd(const FetchEndFrame& frame,
                                                    KvLeases::Reader reader, Time now) {
  std::optional<VerdictFrame> answer;
  if (frame.readers == 0) {
    leases_.Abandon(frame.lease, reader, frame.transfer, now);
  } else {
    const absl::Status status =
        leases_.Finish(frame.lease, reader, frame.transfer, frame.readers, now);
    if (!status.ok()) ++refused_;
    answer = {
        .transfer = frame.transfer, .good = status.ok(), .why = std::string(status.message())};
  }
  Collect(now);
  return answer;
}

void KvLeaseDesk::Sweep(KvLeases::Reader reader, Time now) {
  leases_.Sweep(reader, now);
  Collect(now);
}

void KvLeaseDesk::Count(KvCounts& out) const {
  out.leases_granted = leases_.granted();
  out.leases_consumed = leases_.count(KvLeaseEnd::kConsumed);
  out.leases_released = leases_.count(KvLeaseEnd::kReleased);
  out.leases_expired = leases_.count(KvLeaseEnd::kExpired);
  out.fetches_refused = refused_;
}

void KvLeaseDesk::Collect(Time now) {
  for (auto& [lease, end] : leases_.End(now)) {
    if (end == KvLeaseEnd::kExpired) {
      Log(LogLevel::kInfo, "KV lease {} expired before everyone had fetched", lease);
    }
    events_->Push({.kind = KvEventKind::kLeaseEnded, .name = std::move(lease), .end = end});
  }
}

}  // namespace kvxfer
