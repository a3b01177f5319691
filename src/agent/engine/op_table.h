// Ops that were posted to backends and have not completed, indexed by the id that the completion
// returns.
//
// Thread-safety: none; only the driver uses it. Entries are reused, so steady state allocates
// nothing.

#ifndef KVXFER_AGENT_ENGINE_OP_TABLE_H_
#define KVXFER_AGENT_ENGINE_OP_TABLE_H_

#include <cstdint>
#include <deque>
#include <vector>

#include "kvxfer/backend.h"
#include "src/core/plan/slice_set.h"

namespace kvxfer {

struct Outbound;

class OpTable {
 public:
  struct Entry {
    Outbound* outbound = nullptr;  // null: the entry is free
    BlockRange blocks{};
    uint32_t rail = 0;
    uint32_t slice = 0;  // index in the transfer; kNoSlice: an empty write
    bool sole = false;   // Op::sole: its bytes may bypass its rail
    uint32_t uses = 0;   // distinguishes a stale id from a live one
  };

  // A free entry for `outbound`, without blocks. Its address stays valid until Release.
  uint64_t Acquire(Outbound* outbound) {
    if (free_.empty()) {
      free_.push_back(static_cast<uint32_t>(entries_.size()));
      entries_.emplace_back();
    }
    const uint32_t index = free_.back();
    free_.pop_back();
    Entry& entry = entries_[index];
    entry.outbound = outbound;
    entry.blocks = {};
    entry.slice = kNoSlice;
    entry.sole = false;
    ++entry.uses;
    return (uint64_t{entry.uses} << 32) | index;
  }

  // Null: no such op is in flight.
  Entry* Find(uint64_t id) {
    const auto index = static_cast<uint32_t>(id);
    if (index >= entries_.size()) return nullptr;
    Entry& entry = entries_[index];
    return entry.outbound != nullptr && entry.uses == id >> 32 ? &entry : nullptr;
  }

  void Release(uint64_t id) {
    entries_[static_cast<uint32_t>(id)].outbound = nullptr;
    free_.push_back(static_cast<uint32_t>(id));
  }

 private:
  std::deque<Entry> entries_;
  std::vector<uint32_t> free_;
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_ENGINE_OP_TABLE_H_
