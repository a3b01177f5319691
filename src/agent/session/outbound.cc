#include "src/agent/session/outbound.h"

#include <iterator>
#include <memory>

namespace kvxfer {

Outbound& OutboundList::Add() {
  if (spare_.empty()) spare_.emplace_back();
  active_.splice(active_.end(), spare_, spare_.begin());
  active_.back().self = std::prev(active_.end());
  return active_.back();
}

void OutboundList::Erase(Outbound& outbound) {
  const auto self = outbound.self;
  if (spare_.size() >= kMaxSpare) {
    active_.erase(self);
    return;
  }
  std::destroy_at(&outbound);
  std::construct_at(&outbound);
  spare_.splice(spare_.begin(), active_, self);
}

std::unordered_set<const RemoteKey*> OutboundList::UsedKeys() const {
  std::unordered_set<const RemoteKey*> used;
  for (const Outbound& outbound : active_) {
    used.insert(outbound.keys.begin(), outbound.keys.end());
  }
  return used;
}

}  // namespace kvxfer
