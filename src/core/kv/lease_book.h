// Leases on blocks that their owner holds for readers that have not fetched them yet, and the
// fetches under these leases. A one-sided read cannot detect that the owner reuses the memory while
// it runs. A reader therefore reports the beginning and the end of each fetch, and a lease does not
// end while a fetch under it is in progress.
//
// Specification, checked by a search through every schedule of small cases and by random ones. If
// Finish returns OK, the lease was held from its grant until then. A lease that has ended is never
// held again. Each end is reported once, and blocks may be reused only after the report. A lease
// ends when its time and the time of all fetches under it are over.
//
// Lease ids are no secret. The caller decides whether a reader may fetch under a lease, and until
// when at most.
//
// Thread-safety: none; used by the progress engine. Memory, all bounded: leases that are held or
// whose end was not reported, fetches, and the causes of the last kMaxEnded ends.

#ifndef KVXFER_CORE_KV_LEASE_BOOK_H_
#define KVXFER_CORE_KV_LEASE_BOOK_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/kv_cache.h"
#include "src/core/base/clock.h"

namespace kvxfer {

// Identifies one lease of one agent. Ids increase and are never reused within an incarnation.
enum class LeaseId : uint64_t { kNone = 0 };

class LeaseBook {
 public:
  // Identifies a reader for as long as its connection lasts.
  using Reader = uint64_t;

  static constexpr size_t kMaxLeases = 1 << 16;
  static constexpr size_t kMaxEnded = 1 << 12;
  static constexpr size_t kMaxFetches = 1 << 14;  // per reader, at once

  // Grants a lease until `expires`. ResourceExhausted: kMaxLeases are held, or ended without having
  // been reported by End.
  absl::StatusOr<LeaseId> Grant(Time expires);
  // Extends the lease to `expires` if that is later than before.
  // In all of these calls `now` decides whether the lease has expired, whether or not End was
  // called since. NotFound: this incarnation never granted it. FailedPrecondition: it has ended or
  // is about to; the message says why.
  absl::Status Renew(LeaseId lease, Time expires, Time now);

  // Begins a fetch. Until the fetch ends, or until `until` at the latest, the lease does not end.
  // Bytes that the reader read before this call are valid too, because the lease was held since its
  // grant.
  // Errors as for Renew. ResourceExhausted: the reader has kMaxFetches in progress. AlreadyExists:
  // the reader has a fetch of this number in progress.
  absl::Status Begin(LeaseId lease, Reader reader, uint64_t fetch, Time until, Time now);
  // Ends a fetch that has read its last byte. OK: the bytes read are those that were leased.
  // `consume`: no other reader will fetch; the lease ends as consumed, even if its time ran out
  // meanwhile.
  // FailedPrecondition: the fetch has not begun, took too long, or was swept; the data read is
  // invalid, discard it.
  absl::Status Finish(LeaseId lease, Reader reader, uint64_t fetch, bool consume, Time now);
  // Ends a fetch without an answer; the reader does not use the data.
  void Abandon(LeaseId lease, Reader reader, uint64_t fetch, Time now);
  // Abandons all fetches of a reader that was lost.
  void Sweep(Reader reader, Time now);

  // Ends the lease early: new fetches are refused, and the lease ends when those in progress have
  // ended. Errors as for Renew.
  absl::Status Release(LeaseId lease, Time now);
  // Ends the lease now: fetches in progress are over, and their Finish is refused. Also a lease
  // that is about to end. NotFound, FailedPrecondition: as for Renew.
  absl::Status Revoke(LeaseId lease, Time now);

  // The leases that have ended by `now` and were not reported before.
  std::vector<std::pair<LeaseId, KvLeaseEnd>> End(Time now);
  // When End may next have something to report; in the past if it has something now. nullopt: not
  // before another call.
  std::optional<Time> NextExpiry() const;

  // The reader has a fetch in progress.
  bool IsReading(Reader reader) const { return fetches_of_.contains(reader); }
  size_t held() const { return leases_.size(); }
  // How many leases have ended in this way.
  uint64_t count(KvLeaseEnd end) const { return counts_[static_cast<size_t>(end)]; }

 private:
  using Fetches = std::map<std::pair<Reader, uint64_t>, Time>;  // the value is the fetch's `until`
  struct Lease {
    Time expires{};
    std::optional<KvLeaseEnd> ending{};  // set: ends as soon as no fetch is left
    Fetches fetches{};
  };
  using Leases = std::map<LeaseId, Lease>;

  absl::StatusOr<Leases::iterator> FindHeld(LeaseId lease, Time now);
  absl::Status Ended(LeaseId lease) const;
  Fetches::iterator EndFetch(Leases::iterator at, Fetches::iterator fetch);
  // Ends the lease if it is about to end and has no fetch in progress.
  void Settle(Leases::iterator at);
  void Expire(Time now);

  LeaseId last_ = LeaseId::kNone;
  Leases leases_;
  std::set<std::pair<Time, LeaseId>> by_expiry_;                    // those that are not ending
  std::set<std::tuple<Time, LeaseId, Reader, uint64_t>> by_fetch_;  // every fetch, by its `until`
  std::map<Reader, size_t> fetches_of_;                             // number of fetches in progress
  std::vector<std::pair<LeaseId, KvLeaseEnd>> unreported_;
  std::map<LeaseId, KvLeaseEnd> ended_;  // the last kMaxEnded
  std::deque<LeaseId> ended_order_;
  uint64_t counts_[3] = {};
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_KV_LEASE_BOOK_H_
