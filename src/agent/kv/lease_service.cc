#include "src/agent/kv/lease_service.h"

#include <algorithm>
#include <utility>

#include "src/core/base/log.h"
#include "src/core/base/strings.h"
#include "src/core/kv/lease_refusal.h"

namespace kvxfer {
namespace {

constexpr auto kLongestWait = std::chrono::hours(24);

// A value beyond the range of the clock means for ever. The limits of leases and transfers shorten
// it.
Duration AsDuration(uint64_t nanos) {
  return std::chrono::nanoseconds(static_cast<int64_t>(std::min<uint64_t>(nanos, INT64_MAX)));
}

LeaseAnswerFrame AnswerOf(uint64_t transfer, const absl::Status& status) {
  if (status.ok()) return {.transfer = transfer};
  return {.transfer = transfer,
          .refusal = LeaseRefusalOf(status).value_or(KvLeaseRefusal::kBusy),
          .why = std::string(status.message())};
}

LeaseAnswerFrame Busy(const LeaseReadFrame& read) {
  return {.transfer = read.transfer,
          .refusal = KvLeaseRefusal::kBusy,
          .why = absl::StrCat("KV lease ", read.lease,
                              " is not granted, and too many reads wait for leases: try again")};
}

}  // namespace

absl::Status LeaseService::Grant(std::string_view lease, const Held& held, Time expires, Time now) {
  // Each lease ends with one event. Refusing new leases bounds the queue of events without losing
  // one.
  if (events_->ended_leases() >= LeaseBook::kMaxLeases) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the application has not taken the ends of ", LeaseBook::kMaxLeases,
                     " KV leases; call PollKvEvent until it is empty"));
  }
  if (auto status = leases_.Grant(lease, held.hash, expires, held.contents); !status.ok()) {
    return status;
  }
  AnswerLate(waiters_.TakeOf(lease), now);
  return absl::OkStatus();
}

absl::Status LeaseService::Renew(std::string_view lease, Time expires, Time now) {
  absl::Status status = leases_.Renew(lease, expires, now);
  Collect(now);
  return status;
}

absl::Status LeaseService::Release(std::string_view lease, Time now) {
  absl::Status status = leases_.Release(lease, now);
  Collect(now);
  return status;
}

absl::Status LeaseService::Revoke(std::string_view lease, Time now) {
  absl::Status status = leases_.Revoke(lease, now);
  Collect(now);
  return status;
}

std::optional<LeaseAnswerFrame> LeaseService::OnLeaseRead(const LeaseReadFrame& frame,
                                                          KvLeases::Reader reader, Time now) {
  LeaseAnswerFrame answer = Begin(frame, reader, now);
  const Duration wait = std::min(
      {AsDuration(frame.wait_nanos), AsDuration(frame.within_nanos), Duration(kLongestWait)});
  if (answer.refusal == KvLeaseRefusal::kUnknown && wait > Duration::zero()) {
    auto added = waiters_.Add({.reader = reader, .read = frame, .until = now + wait});
    if (added.gave_way.has_value()) {
      late_.emplace_back(added.gave_way->reader, Busy(added.gave_way->read));
      ++refused_;
    }
    if (added.ok) return std::nullopt;
    answer = Busy(frame);
  }
  if (answer.refusal != LeaseAnswerFrame::kHeld) ++refused_;
  return answer;
}

std::optional<LeaseAnswerFrame> LeaseService::OnFetchEnd(const FetchEndFrame& frame,
                                                         KvLeases::Reader reader, Time now) {
  std::optional<LeaseAnswerFrame> answer;
  // The reader gives the fetch up; it expects no answer.
  if (frame.readers == 0) {
    waiters_.Remove(reader, frame.transfer);
    leases_.Abandon(frame.lease, reader, frame.transfer, now);
  } else {
    const absl::Status status =
        leases_.Finish(frame.lease, reader, frame.transfer, frame.readers, now);
    if (!status.ok()) ++refused_;
    answer = AnswerOf(frame.transfer, status);
  }
  Collect(now);
  return answer;
}

void LeaseService::Sweep(KvLeases::Reader reader, Time now) {
  waiters_.Sweep(reader);
  leases_.Sweep(reader, now);
  Collect(now);
}

void LeaseService::Expire(Time now) {
  AnswerLate(waiters_.TakeOver(now), now);
  Collect(now);
}

Time LeaseService::NextExpiry() const {
  return std::min(leases_.NextExpiry().value_or(Time::max()),
                  waiters_.NextEnd().value_or(Time::max()));
}

LeaseAnswerFrame LeaseService::Begin(const LeaseReadFrame& frame, KvLeases::Reader reader,
                                     Time now) {
  const absl::Status status = leases_.Begin(frame.lease, frame.blocks_hash, reader, frame.transfer,
                                            AsDuration(frame.within_nanos), now, frame.contents);
  Collect(now);
  return AnswerOf(frame.transfer, status);
}

void LeaseService::AnswerLate(std::span<const LeaseWaiters::Waiter> waiters, Time now) {
  for (const LeaseWaiters::Waiter& waiter : waiters) {
    late_.emplace_back(waiter.reader, Begin(waiter.read, waiter.reader, now));
    if (late_.back().second.refusal != LeaseAnswerFrame::kHeld) ++refused_;
  }
}

void LeaseService::Count(KvCounts& out) const {
  out.leases_granted = leases_.granted();
  out.leases_consumed = leases_.count(KvLeaseEnd::kConsumed);
  out.leases_released = leases_.count(KvLeaseEnd::kReleased);
  out.leases_expired = leases_.count(KvLeaseEnd::kExpired);
  out.fetches_refused = refused_;
  out.reads_waiting = waiters_.size();
}

void LeaseService::Collect(Time now) {
  for (auto& [lease, end] : leases_.End(now)) {
    if (end == KvLeaseEnd::kExpired) {
      Log(LogLevel::kInfo, "KV lease {} expired before everyone had fetched", lease);
    }
    events_->Push(KvEvent{
        .kind = KvEventKind::kLeaseEnded, .lease = LeaseName(std::move(lease)), .end = end});
  }
}

}  // namespace kvxfer
