// Readers that wait for a lease which its owner has not granted yet.
//
// Specification: each that was added leaves once: with its lease (TakeOf), when its time is over
// (TakeOver), when it is given up (Remove), with its reader (Sweep), or in favour of a reader that
// has fewer waiting (Add). So no reader, and no number of them, keeps others from waiting.
//
// Thread-safety: none; owned by the progress engine. Memory: kMax waiters, of one reader
// kMaxOfReader.

#ifndef KVXFER_CORE_PROTOCOL_LEASE_WAITERS_H_
#define KVXFER_CORE_PROTOCOL_LEASE_WAITERS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/core/base/clock.h"
#include "src/core/kv/lease_book.h"
#include "src/core/protocol/wire_format.h"

namespace kvxfer {

class LeaseWaiters {
 public:
  using Reader = LeaseBook::Reader;
  struct Waiter {
    Reader reader = 0;
    LeaseReadFrame read{};
    Time until{};
  };

  static constexpr size_t kMax = 1 << 14;
  static constexpr size_t kMaxOfReader = 1 << 11;

  struct Added {
    bool ok = false;  // false: no room, or the reader waits already for the answer to this transfer
    std::optional<Waiter> gave_way{};  // of the reader with the most, where all places were taken
  };
  Added Add(Waiter waiter);
  // Those that wait for the lease, in the order in which they asked.
  std::vector<Waiter> TakeOf(std::string_view lease);
  // Those whose time is over.
  std::vector<Waiter> TakeOver(Time now);
  void Remove(Reader reader, uint64_t transfer);
  void Sweep(Reader reader);

  // When TakeOver may have something next.
  std::optional<Time> NextEnd() const;
  size_t size() const { return waiters_.size(); }

 private:
  using Key = std::pair<Reader, uint64_t>;  // and its transfer

  Waiter Take(const Key& key);
  // The last transfer of the reader that has the most, if that has more than `fewer`.
  std::optional<Waiter> TakeFromFullest(size_t fewer);

  struct Numbered {
    uint64_t number = 0;
    Waiter waiter{};
  };
  uint64_t last_ = 0;
  std::map<Key, Numbered> waiters_;
  std::map<std::string, std::map<uint64_t, Key>, std::less<>> by_lease_;  // in order of `number`
  std::set<std::pair<Time, Key>> by_end_;
  std::map<Reader, size_t> of_reader_;
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_PROTOCOL_LEASE_WAITERS_H_
