#include "src/agent/session/send_queue.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace kvxfer {
namespace {

bool Numbered(const internal::TransferRecord& record) {
  return record.options.notification.has_value() && record.options.order == NotifyOrder::kPosted;
}

}  // namespace

void SendQueue::Push(TransferPtr record) {
  if (record->layer_stream != 0) {
    const auto [at, first] = layer_streams_.try_emplace(record->layer_stream);
    if (!first) {
      at->second.push_back(std::move(record));
      ++waiting_;
      return;
    }
  }
  PushReady(std::move(record));
}

void SendQueue::PushReady(TransferPtr record) {
  int64_t place = -int64_t{record->options.priority};
  if (Numbered(*record)) {
    if (!numbered_.empty()) place = std::max(place, *numbered_.rbegin());
    numbered_.insert(place);
  }
  ready_.emplace(Place(place, ++pushed_), std::move(record));
}

TransferPtr SendQueue::Pop() { return TakeReady(ready_.begin()); }

TransferPtr SendQueue::TakeReady(Ready::iterator at) {
  TransferPtr record = std::move(at->second);
  if (Numbered(*record)) numbered_.erase(numbered_.find(at->first.first));
  ready_.erase(at);
  return record;
}

bool SendQueue::NextOf(uint64_t layer_stream) {
  const auto at = layer_streams_.find(layer_stream);
  if (at == layer_streams_.end()) return false;
  if (at->second.empty()) {
    layer_streams_.erase(at);
    return false;
  }
  TransferPtr next = std::move(at->second.front());
  at->second.pop_front();
  --waiting_;
  PushReady(std::move(next));
  return true;
}

bool SendQueue::AnyOf(Predicate which) const {
  bool any = false;
  ForEach([&](const internal::TransferRecord& record) { any |= which(record); });
  return any;
}

void SendQueue::ForEach(absl::FunctionRef<void(const internal::TransferRecord&)> visit) const {
  for (const auto& [place, record] : ready_) visit(*record);
  for (const auto& [layer_stream, records] : layer_streams_) {
    for (const TransferPtr& record : records) visit(*record);
  }
}

TransferPtr SendQueue::Remove(uint64_t id) {
  const auto ready =
      std::ranges::find_if(ready_, [id](const auto& entry) { return entry.second->id == id; });
  if (ready != ready_.end()) {
    TransferPtr record = TakeReady(ready);
    if (record->layer_stream != 0) NextOf(record->layer_stream);
    return record;
  }
  for (auto& [layer_stream, records] : layer_streams_) {
    const auto at =
        std::ranges::find_if(records, [id](const TransferPtr& one) { return one->id == id; });
    if (at == records.end()) continue;
    TransferPtr record = std::move(*at);
    records.erase(at);
    --waiting_;
    return record;
  }
  return nullptr;
}

std::vector<TransferPtr> SendQueue::Remove(Predicate which) {
  std::vector<TransferPtr> removed;
  for (auto at = ready_.begin(); at != ready_.end();) {
    const auto next = std::next(at);
    if (which(*at->second)) removed.push_back(TakeReady(at));
    at = next;
  }
  const size_t were_ready = removed.size();
  for (auto& [layer_stream, records] : layer_streams_) {
    waiting_ -= std::erase_if(records, [&](TransferPtr& record) {
      if (!which(*record)) return false;
      removed.push_back(std::move(record));
      return true;
    });
  }
  // Places that became free go to those that are left.
  for (size_t i = 0; i < were_ready; ++i) {
    if (removed[i]->layer_stream != 0) NextOf(removed[i]->layer_stream);
  }
  return removed;
}

}  // namespace kvxfer
