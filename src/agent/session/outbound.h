// The transfers to one peer that have left the queue: how the bytes of each go. What became of it
// is in SendTracker.
//
// Thread-safety: none; owned by the engine.

#ifndef KVXFER_AGENT_SESSION_OUTBOUND_H_
#define KVXFER_AGENT_SESSION_OUTBOUND_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <unordered_set>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "kvxfer/backend.h"
#include "src/agent/engine/transfer_record.h"
#include "src/agent/session/link.h"
#include "src/core/plan/rail_picker.h"
#include "src/core/plan/slice_walk.h"
#include "src/core/protocol/send_tracker.h"

namespace kvxfer {

struct Outbound {
  // One for each rail, for what `local` and `remote` hold; see Endpoint::rail_distance.
  struct Distances {
    const Registration* local = nullptr;
    const RemoteKey* remote = nullptr;
    absl::InlinedVector<uint32_t, 4> of_rails{};
  };

  TransferPtr record;
  SendTracker::Transfer* sending = nullptr;  // whose context this is
  std::list<Outbound>::iterator self{};
  Link* link = nullptr;  // carries the data; null once that is done or lost
  BlockView blocks{};    // of record->blocks; ops that are in flight point to it
  SliceWalk walk;
  SliceLimits limits;
  absl::InlinedVector<const Registration*, 4> registrations{};  // by index in record->local
  absl::InlinedVector<const RemoteKey*, 4> keys{};              // by index in record->remote
  uint64_t prepared = 0;    // the op of the prepared slice; 0: none
  uint32_t home = kNoRail;  // a transfer that is too small to be striped stays on one rail
  Distances distances{};
  Time first_post{};                // zero: no byte of it was sent
  bool alone = false;               // small, and nothing was on its way when it began
  bool staged = false;              // its ops go to the stager
  bool holds_layer_stream = false;  // of its record
  // True: it held its layer stream, which is free from now on.
  bool TakeLayerStream() { return std::exchange(holds_layer_stream, false); }
  // It has ended, and its regions are in use until the last op is over.
  bool moving() const { return sending->ended() && sending->ops() > 0; }
};

// The context of a transfer of the tracker.
inline Outbound& OutboundOf(const SendTracker::Transfer& sending) {
  return *static_cast<Outbound*>(sending.request().context);
}

// Null: the transfer has not begun, or is forgotten.
inline Outbound* FindOutbound(SendTracker& tracker, uint64_t id) {
  const SendTracker::Transfer* const sending = tracker.Find(id);
  return sending == nullptr ? nullptr : &OutboundOf(*sending);
}

// Addresses last until Erase. Steady state allocates nothing.
class OutboundList {
 public:
  Outbound& Add();
  void Erase(Outbound& outbound);
  bool empty() const { return active_.empty(); }
  size_t size() const { return active_.size(); }
  // In the order in which they began.
  auto begin() { return active_.begin(); }
  auto begin() const { return active_.begin(); }
  auto end() { return active_.end(); }
  auto end() const { return active_.end(); }
  // The keys that they use.
  std::unordered_set<const RemoteKey*> UsedKeys() const;

 private:
  static constexpr size_t kMaxSpare = 64;

  std::list<Outbound> active_;
  std::list<Outbound> spare_;
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_SESSION_OUTBOUND_H_
