// Leases on blocks that their owner holds for somebody who has not fetched them yet, and the
// fetches under them. A one-sided read cannot see that its owner lets go in the middle of it; so
// who fetches says before and after, and a lease that is being fetched does not end before the
// fetch does.
//
// Specification, held by a search through every schedule of small worlds and by random ones: where
// Finish says OK, the lease was held from its grant until then; a lease that has ended is never
// held again; what has ended is told once, and only what is told may be used for other things; when
// its time and that of all fetches under it is over, a lease has ended.
//
// Ids are no secret: that a reader may fetch under a lease, and until when at most, is the caller's
// to decide.
//
// Thread-safety: none; owned by the progress engine. Memory: of leases that are held or were not
// told of, of fetches, and the causes of the last kMaxEnded ends; all bounded.

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

// Names one lease of one agent; rises, and is never used twice within an incarnation.
enum class LeaseId : uint64_t { kNone = 0 };

class LeaseBook {
 public:
  // Names who fetches, for as long as the connection to it lasts.
  using Reader = uint64_t;

  static constexpr size_t kMaxLeases = 1 << 16;
  static constexpr size_t kMaxEnded = 1 << 12;
  static constexpr size_t kMaxFetches = 1 << 14;  // of one reader at once

  // Held until `expires`. ResourceExhausted: kMaxLeases are, or have ended and End has not told.
  absl::StatusOr<LeaseId> Grant(Time expires);
  // Held until `expires`, if that is later than before. In all of these, `now` decides whether the
  // lease has expired, whether or not End was called since. NotFound: never granted, by this
  // incarnation; FailedPrecondition: it has ended or is about to, and why.
  absl::Status Renew(LeaseId lease, Time expires, Time now);

  // A fetch begins: until it ends, or `until` at most, the lease does not. Bytes that were read
  // before count, too: the lease was held since its grant. As Renew; ResourceExhausted: kMaxFetches
  // of this reader; AlreadyExists: it has begun one of this number.
  absl::Status Begin(LeaseId lease, Reader reader, uint64_t fetch, Time until, Time now);
  // It has read its last byte. OK: what it read is what was leased. `consume`: nobody else will
  // fetch it, so that it ends as consumed even where its time was over meanwhile.
  // FailedPrecondition: it has not begun, took too long or was swept; what it read is worth
  // nothing.
  absl::Status Finish(LeaseId lease, Reader reader, uint64_t fetch, bool consume, Time now);
  // It ends without an answer: what it read is not used.
  void Abandon(LeaseId lease, Reader reader, uint64_t fetch, Time now);
  // The same for all fetches of a reader that is lost.
  void Sweep(Reader reader, Time now);

  // The owner lets go; as Renew. The lease ends when the fetches under it have, and refuses others.
  absl::Status Release(LeaseId lease, Time now);

  // Leases that have ended by now and were not told of before.
  std::vector<std::pair<LeaseId, KvLeaseEnd>> End(Time now);
  // When End may have something to tell; the past where it has. None: not without another call.
  std::optional<Time> NextExpiry() const;

  size_t held() const { return leases_.size(); }
  // Of all that have ended.
  uint64_t count(KvLeaseEnd end) const { return counts_[static_cast<size_t>(end)]; }

 private:
  using Fetches = std::map<std::pair<Reader, uint64_t>, Time>;  // until when
  struct Lease {
    Time expires{};
    std::optional<KvLeaseEnd> ending{};  // as soon as there is no fetch
    Fetches fetches{};
  };
  using Leases = std::map<LeaseId, Lease>;

  absl::StatusOr<Leases::iterator> FindHeld(LeaseId lease, Time now);
  absl::Status Ended(LeaseId lease) const;
  Fetches::iterator EndFetch(Leases::iterator at, Fetches::iterator fetch);
  // Ends the lease where it is to end and nobody fetches.
  void Settle(Leases::iterator at);
  void Expire(Time now);

  LeaseId last_ = LeaseId::kNone;
  Leases leases_;
  std::set<std::pair<Time, LeaseId>> by_expiry_;                    // of those that are not ending
  std::set<std::tuple<Time, LeaseId, Reader, uint64_t>> by_fetch_;  // each fetch, by its `until`
  std::map<Reader, size_t> fetches_of_;                             // how many
  std::vector<std::pair<LeaseId, KvLeaseEnd>> untold_;
  std::map<LeaseId, KvLeaseEnd> ended_;  // the last kMaxEnded
  std::deque<LeaseId> ended_order_;
  uint64_t counts_[3] = {};
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_KV_LEASE_BOOK_H_
