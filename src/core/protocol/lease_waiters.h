// Readers that wait for a lease that its owner has not granted yet.
//
// Specification: each added reader leaves exactly once: with its lease (TakeOf), when its time is
// over (TakeOver), when it gives up (Remove), when its connection is lost (Sweep), or in favour of
// a reader with fewer entries (Add). So no reader can keep others from waiting.
//
// Thread-safety: none; used by the progress engine. Memory: kMax entries, at most kMaxOfReader per
// reader.

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
    bool ok = false;  // false: no space, or this transfer of the reader already waits
    std::optional<Waiter> gave_way{};  // removed: all entries were in use
  };
  Added Add(Waiter waiter);
  // Removes and returns the readers that wait for the lease, in the order in which they asked.
  std::vector<Waiter> TakeOf(std::string_view lease);
  // Removes and returns those whose time is over.
  std::vector<Waiter> TakeOver(Time now);
  void Remove(Reader reader, uint64_t transfer);
  void Sweep(Reader reader);

  // When TakeOver may next return something.
  std::optional<Time> NextEnd() const;
  size_t size() const { return waiters_.size(); }

 private:
  using Key = std::pair<Reader, uint64_t>;  // reader and transfer

  Waiter Take(const Key& key);
  // Removes the newest transfer of the reader with the most entries, if it has more than `fewer`.
  std::optional<Waiter> TakeFromFullest(size_t fewer);

  struct Numbered {
    uint64_t number = 0;
    Waiter waiter{};
  };
  uint64_t last_ = 0;
  std::map<Key, Numbered> waiters_;
  std::map<std::string, std::map<uint64_t, Key>, std::less<>> by_lease_;  // by `number`
  std::set<std::pair<Time, Key>> by_end_;
  std::map<Reader, size_t> of_reader_;
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_PROTOCOL_LEASE_WAITERS_H_
