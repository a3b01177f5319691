// The leases of one agent by the names that its application and its peers know them by.
//
// Specification: LeaseBook's, for the lease that a name was given to. A name is given out once; a
// reader says which blocks it reads and what they must hold, and is refused unless those are the
// lease's. What they hold is compared, and is no part of what a lease is looked up by: so an owner
// can tell a reader that has another prompt from one that comes before the grant.
//
// Thread-safety: none; owned by the progress engine. Memory: that of LeaseBook, and the names of
// leases that are held or not told of, and of the last kMaxRemembered that have ended.

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
  // A fetch holds up the end of its lease for so long at most, whatever its reader says.
  static constexpr Duration kLongestFetch = std::chrono::minutes(5);

  // `contents`: see Agent::LeaseBlocks. Names have 1 to kMaxNameBytes, contents at most so many;
  // AlreadyExists: this name was used before. Else as LeaseBook::Grant. `blocks_hash`: of its ids,
  // as HashLeased.
  absl::Status Grant(std::string_view name, uint64_t blocks_hash, Time expires,
                     std::string_view contents = {});
  absl::Status Renew(std::string_view name, Time expires, Time now);
  absl::Status Release(std::string_view name, Time now);

  // InvalidArgument: these are not its contents, or not its blocks. `within`: the fetch takes no
  // longer. An error has its KvLeaseRefusal with it, as that of Finish.
  absl::Status Begin(std::string_view name, uint64_t blocks_hash, Reader reader, uint64_t fetch,
                     Duration within, Time now, std::string_view contents = {});
  // `readers`: when so many of them have finished one, the lease is consumed.
  absl::Status Finish(std::string_view name, Reader reader, uint64_t fetch, uint32_t readers,
                      Time now);
  void Abandon(std::string_view name, Reader reader, uint64_t fetch, Time now);
  void Sweep(Reader reader, Time now) { book_.Sweep(reader, now); }

  // As LeaseBook::End and NextExpiry.
  std::vector<std::pair<std::string, KvLeaseEnd>> End(Time now);
  std::optional<Time> NextExpiry() const { return book_.NextExpiry(); }

  uint64_t granted() const { return granted_; }
  uint64_t count(KvLeaseEnd end) const { return book_.count(end); }

 private:
  struct Lease {
    LeaseId id = LeaseId::kNone;
    uint64_t blocks_hash = 0;
    std::string contents{};
    absl::InlinedVector<Reader, 2> finished{};  // those with a fetch that finished
  };
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };

  absl::StatusOr<Lease*> Find(std::string_view name);

  LeaseBook book_;
  std::unordered_map<std::string, Lease, Hash, std::equal_to<>> leases_;
  std::map<LeaseId, const std::string*> names_;  // keys of leases_, of leases not told of as ended
  std::deque<const std::string*> ended_;         // keys of leases_, oldest first
  uint64_t granted_ = 0;
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_KV_KV_LEASES_H_
