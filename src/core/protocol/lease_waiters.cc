#include "src/core/protocol/lease_waiters.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace kvxfer {

LeaseWaiters::Added LeaseWaiters::Add(Waiter waiter) {
  const Key key(waiter.reader, waiter.read.transfer);
  const auto known = of_reader_.find(waiter.reader);
  const size_t others = known == of_reader_.end() ? 0 : known->second;
  if (others >= kMaxOfReader || waiters_.contains(key)) return {};
  Added added;
  if (waiters_.size() >= kMax) {
    // All entries are in use: the reader with the most waiting gives way, if it has more than this
    // reader would have.
    added.gave_way = TakeFromFullest(others + 1);
    if (!added.gave_way.has_value()) return added;
  }
  by_lease_[waiter.read.lease].emplace(++last_, key);
  by_end_.emplace(waiter.until, key);
  ++of_reader_[waiter.reader];
  waiters_.emplace(key, Numbered{.number = last_, .waiter = std::move(waiter)});
  added.ok = true;
  return added;
}

std::vector<LeaseWaiters::Waiter> LeaseWaiters::TakeOf(std::string_view lease) {
  std::vector<Waiter> taken;
  const auto waiting = by_lease_.find(lease);
  if (waiting == by_lease_.end()) return taken;
  // A copy, because Take erases from the map.
  const std::map<uint64_t, Key> keys = waiting->second;
  for (const auto& [number, key] : keys) taken.push_back(Take(key));
  return taken;
}

std::vector<LeaseWaiters::Waiter> LeaseWaiters::TakeOver(Time now) {
  std::vector<Waiter> taken;
  while (!by_end_.empty() && by_end_.begin()->first <= now) {
    taken.push_back(Take(Key(by_end_.begin()->second)));
  }
  return taken;
}

void LeaseWaiters::Remove(Reader reader, uint64_t transfer) {
  const Key key(reader, transfer);
  if (waiters_.contains(key)) Take(key);
}

void LeaseWaiters::Sweep(Reader reader) {
  for (auto at = waiters_.lower_bound({reader, 0});
       at != waiters_.end() && at->first.first == reader; at = waiters_.lower_bound({reader, 0})) {
    Take(Key(at->first));
  }
}

std::optional<Time> LeaseWaiters::NextEnd() const {
  if (by_end_.empty()) return std::nullopt;
  return by_end_.begin()->first;
}

std::optional<LeaseWaiters::Waiter> LeaseWaiters::TakeFromFullest(size_t fewer) {
  const auto fullest =
      std::ranges::max_element(of_reader_, {}, [](const auto& reader) { return reader.second; });
  if (fullest == of_reader_.end() || fullest->second <= fewer) return std::nullopt;
  // Its newest transfer gives way: the older ones have waited longer.
  const auto last = std::prev(waiters_.upper_bound({fullest->first, UINT64_MAX}));
  return Take(Key(last->first));
}

LeaseWaiters::Waiter LeaseWaiters::Take(const Key& key) {
  const auto at = waiters_.find(key);
  Waiter waiter = std::move(at->second.waiter);
  const auto of_lease = by_lease_.find(waiter.read.lease);
  of_lease->second.erase(at->second.number);
  if (of_lease->second.empty()) by_lease_.erase(of_lease);
  by_end_.erase({waiter.until, key});
  const auto count = of_reader_.find(key.first);
  if (--count->second == 0) of_reader_.erase(count);
  waiters_.erase(at);
  return waiter;
}

}  // namespace kvxfer
