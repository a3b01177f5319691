#include "src/core/kv/lease_book.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvxfer {
namespace {

std::string Called(LeaseId lease) { return absl::StrCat("lease ", static_cast<uint64_t>(lease)); }

}  // namespace

const char* ToString(KvEventKind kind) {
  switch (kind) {
    case KvEventKind::kLeaseEnded:
      return "lease ended";
    case KvEventKind::kRequestLost:
      return "request lost";
  }
  return "unknown";
}

const char* ToString(KvLeaseEnd end) {
  switch (end) {
    case KvLeaseEnd::kConsumed:
      return "consumed";
    case KvLeaseEnd::kReleased:
      return "released by its owner";
    case KvLeaseEnd::kExpired:
      return "expired";
  }
  return "unknown";
}

absl::StatusOr<LeaseId> LeaseBook::Grant(Time expires) {
  // Ends that were not reported count too: their blocks are still in the owner's hands.
  if (leases_.size() + unreported_.size() >= kMaxLeases) {
    return absl::ResourceExhaustedError(
        absl::StrCat(kMaxLeases, " leases are held; release some, or let them expire"));
  }
  // 64 bits do not wrap.
  last_ = LeaseId{static_cast<uint64_t>(last_) + 1};
  leases_.emplace(last_, Lease{.expires = expires});
  by_expiry_.emplace(expires, last_);
  return last_;
}

absl::Status LeaseBook::Renew(LeaseId lease, Time expires, Time now) {
  const auto at = FindHeld(lease, now);
  if (!at.ok()) return at.status();
  Lease& held = (*at)->second;
  if (expires <= held.expires) return absl::OkStatus();
  by_expiry_.erase({held.expires, lease});
  by_expiry_.emplace(held.expires = expires, lease);
  return absl::OkStatus();
}

absl::Status LeaseBook::Begin(LeaseId lease, Reader reader, uint64_t fetch, Time until, Time now) {
  const auto at = FindHeld(lease, now);
  if (!at.ok()) return at.status();
  // Bounded per reader, so that one reader cannot use up the memory for all.
  size_t& of_reader = fetches_of_[reader];
  if (of_reader >= kMaxFetches) {
    return absl::ResourceExhaustedError(
        absl::StrCat(Called(lease), ": ", kMaxFetches, " fetches at once by one reader"));
  }
  if (!(*at)->second.fetches.emplace(std::pair(reader, fetch), until).second) {
    return absl::AlreadyExistsError(absl::StrCat(Called(lease), ": fetch ", fetch, " has begun"));
  }
  ++of_reader;
  by_fetch_.emplace(until, lease, reader, fetch);
  return absl::OkStatus();
}

absl::Status LeaseBook::Finish(LeaseId lease, Reader reader, uint64_t fetch, bool consume,
                               Time now) {
  Expire(now);
  // FindHeld is not used here: a lease that is released or expired still lets its running fetches
  // finish.
  const auto at = leases_.find(lease);
  const auto refuse = [&] {
    return absl::FailedPreconditionError(absl::StrCat(
        Called(lease), ": fetch ", fetch, " is not under way; what it read is worth nothing"));
  };
  if (at == leases_.end()) return refuse();
  const auto found = at->second.fetches.find({reader, fetch});
  if (found == at->second.fetches.end()) return refuse();
  EndFetch(at, found);
  // Another reader's fetch may still be in progress; Settle then ends the lease after it.
  // The owner's release stays the cause, although the last reader has finished too.
  if (consume && at->second.ending != KvLeaseEnd::kReleased) {
    at->second.ending = KvLeaseEnd::kConsumed;
    by_expiry_.erase({at->second.expires, lease});
  }
  Settle(at);
  return absl::OkStatus();
}

void LeaseBook::Abandon(LeaseId lease, Reader reader, uint64_t fetch, Time now) {
  Expire(now);
  const auto at = leases_.find(lease);
  if (at == leases_.end()) return;
  const auto found = at->second.fetches.find({reader, fetch});
  if (found != at->second.fetches.end()) EndFetch(at, found);
  Settle(at);
}

void LeaseBook::Sweep(Reader reader, Time now) {
  Expire(now);
  // Settle may erase the lease, so the iterator moves on first.
  for (auto at = leases_.begin(); at != leases_.end();) {
    const auto lease = at++;
    // Fetches are keyed by (reader, number), so one reader's are adjacent.
    auto& fetches = lease->second.fetches;
    for (auto fetch = fetches.lower_bound({reader, 0});
         fetch != fetches.end() && fetch->first.first == reader;) {
      fetch = EndFetch(lease, fetch);
    }
    Settle(lease);
  }
}

absl::Status LeaseBook::Release(LeaseId lease, Time now) {
  const auto at = FindHeld(lease, now);
  if (!at.ok()) return at.status();
  (*at)->second.ending = KvLeaseEnd::kReleased;
  by_expiry_.erase({(*at)->second.expires, lease});
  Settle(*at);
  return absl::OkStatus();
}

absl::Status LeaseBook::Revoke(LeaseId lease, Time now) {
  Expire(now);
  const auto at = leases_.find(lease);
  if (at == leases_.end()) return Ended(lease);
  auto& fetches = at->second.fetches;
  for (auto fetch = fetches.begin(); fetch != fetches.end();) fetch = EndFetch(at, fetch);
  if (!at->second.ending.has_value()) by_expiry_.erase({at->second.expires, lease});
  at->second.ending = KvLeaseEnd::kReleased;
  Settle(at);
  return absl::OkStatus();
}

std::vector<std::pair<LeaseId, KvLeaseEnd>> LeaseBook::End(Time now) {
  Expire(now);
  return std::exchange(unreported_, {});
}

std::optional<Time> LeaseBook::NextExpiry() const {
  // Already due: the caller must call End at once.
  if (!unreported_.empty()) return Time::min();
  std::optional<Time> next;
  if (!by_expiry_.empty()) next = by_expiry_.begin()->first;
  if (!by_fetch_.empty()) next = Earlier(next, std::get<Time>(*by_fetch_.begin()));
  return next;
}

// Finds a lease that is held and not about to end. Expires what is due first.
absl::StatusOr<LeaseBook::Leases::iterator> LeaseBook::FindHeld(LeaseId lease, Time now) {
  Expire(now);
  const auto at = leases_.find(lease);
  if (at == leases_.end()) return Ended(lease);
  if (!at->second.ending.has_value()) return at;
  return absl::FailedPreconditionError(
      absl::StrCat(Called(lease), ": ", ToString(*at->second.ending)));
}

absl::Status LeaseBook::Ended(LeaseId lease) const {
  // Ids are handed out in ascending order, so every id up to last_ was granted once.
  if (lease == LeaseId::kNone || lease > last_) {
    return absl::NotFoundError(absl::StrCat(Called(lease), " was never granted"));
  }
  const auto at = ended_.find(lease);
  return absl::FailedPreconditionError(absl::StrCat(
      Called(lease), ": ", at == ended_.end() ? "ended a while ago" : ToString(at->second)));
}

LeaseBook::Fetches::iterator LeaseBook::EndFetch(Leases::iterator at, Fetches::iterator fetch) {
  const auto [reader, number] = fetch->first;
  by_fetch_.erase({fetch->second, at->first, reader, number});
  if (const auto count = fetches_of_.find(reader); --count->second == 0) fetches_of_.erase(count);
  return at->second.fetches.erase(fetch);
}

void LeaseBook::Settle(Leases::iterator at) {
  const Lease& lease = at->second;
  if (!lease.ending.has_value() || !lease.fetches.empty()) return;
  if (ended_order_.size() == kMaxEnded) {
    ended_.erase(ended_order_.front());
    ended_order_.pop_front();
  }
  // The cause stays known for a while, so that a late Renew or Begin gets a reason.
  ended_.emplace(at->first, *lease.ending);
  ended_order_.push_back(at->first);
  unreported_.emplace_back(at->first, *lease.ending);
  ++counts_[static_cast<size_t>(*lease.ending)];
  leases_.erase(at);
}

void LeaseBook::Expire(Time now) {
  // A lease whose time is over refuses new fetches at once; Settle ends it when no fetch is left.
  while (!by_expiry_.empty() && by_expiry_.begin()->first <= now) {
    const auto at = leases_.find(by_expiry_.begin()->second);
    by_expiry_.erase(by_expiry_.begin());
    at->second.ending = KvLeaseEnd::kExpired;
    Settle(at);
  }
  // A fetch that took too long ends without its reader: its later Finish is refused, so the reader
  // discards what it read.
  while (!by_fetch_.empty() && std::get<Time>(*by_fetch_.begin()) <= now) {
    const auto [until, lease, reader, fetch] = *by_fetch_.begin();
    const auto at = leases_.find(lease);
    EndFetch(at, at->second.fetches.find({reader, fetch}));
    Settle(at);
  }
}

}  // namespace kvxfer
