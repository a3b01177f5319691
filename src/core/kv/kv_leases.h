// The leases of one agent, by the names that its application and its peers use.
//
// Specification: that of LeaseBook, for the lease that has a name. A name is used once. A reader
// states which blocks it reads and what they must hold; it is refused unless both match the lease.
// The contents are compared but are not part of the key. So a reader that has another prompt gets
// another refusal than one that comes before the grant.
//
// Thread-safety: none; used by the progress engine. Memory: that of LeaseBook, plus the names of
// the leases that are held or whose end was not reported yet, and of the last kMaxRemembered ended
// ones.

#ifndef KVXFER_CORE_KV_KV_LEASES_H_
#define KVXFER_CORE_KV_KV_LEASES_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/kv_cache.h"
#include "src/core/base/clock.h"
#include "src/core/kv/lease_book.h"

namespace kvxfer {

class KvLeases {
 public:
  using Reader = LeaseBook::Reader;

  KvLeases() = default;
  KvLeases(const KvLeases&) = delete;
  KvLeases& operator=(const KvLeases&) = delete;

  static constexpr size_t kMaxRemembered = 1 << 17;
  // The longest time that a fetch delays the end of its lease, whatever the reader states.
  static constexpr Duration kLongestFetch = std::chrono::minutes(5);

  // `blocks_hash`: HashLeased of the lease's ids. `contents`: see Agent::LeaseBlocks. A name has 1
  // to kMaxNameBytes bytes, contents at most kMaxNameBytes (InvalidArgument). AlreadyExists: the
  // name was used before. Other errors as for LeaseBook::Grant.
  absl::Status Grant(std::string_view name, uint64_t blocks_hash, Time expires,
                     std::string_view contents = {});
  absl::Status Renew(std::string_view name, Time expires, Time now);
  absl::Status Release(std::string_view name, Time now);
  absl::Status Revoke(std::string_view name, Time now);

  // Begins a fetch that takes at most `within`. InvalidArgument: the lease has other contents or
  // other blocks. Errors of Begin and Finish carry a KvLeaseRefusal (lease_refusal.h).
  absl::Status Begin(std::string_view name, uint64_t blocks_hash, Reader reader, uint64_t fetch,
                     Duration within, Time now, std::string_view contents = {});
  // Ends a fetch. The lease is consumed when `readers` different readers have finished a fetch.
  absl::Status Finish(std::string_view name, Reader reader, uint64_t fetch, uint32_t readers,
                      Time now);
  void Abandon(std::string_view name, Reader reader, uint64_t fetch, Time now);
  void Sweep(Reader reader, Time now) { book_.Sweep(reader, now); }

  // As LeaseBook::End and NextExpiry, with names.
  std::vector<std::pair<std::string, KvLeaseEnd>> End(Time now);
  std::optional<Time> NextExpiry() const { return book_.NextExpiry(); }

  bool IsReading(Reader reader) const { return book_.IsReading(reader); }
  uint64_t granted() const { return granted_; }
  uint64_t count(KvLeaseEnd end) const { return book_.count(end); }

 private:
  struct Lease {
    LeaseId id = LeaseId::kNone;
    uint64_t blocks_hash = 0;
    std::string contents{};
    absl::InlinedVector<Reader, 2> finished{};  // readers that have finished a fetch
  };
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };

  absl::StatusOr<Lease*> Find(std::string_view name);

  LeaseBook book_;
  std::unordered_map<std::string, Lease, Hash, std::equal_to<>> leases_;
  // Pointers to keys of leases_: the leases whose end was not reported yet.
  std::map<LeaseId, const std::string*> names_;
  // Pointers to keys of leases_: those whose end was reported, oldest first.
  std::deque<const std::string*> ended_;
  uint64_t granted_ = 0;
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_KV_KV_LEASES_H_
