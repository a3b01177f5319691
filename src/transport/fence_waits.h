// What the two sides of a connection wait for while a transfer is made quiet, where ops that were
// posted cannot be taken back: the connecting side for their end, the accepting side for the peer's
// word that they have ended.
//
// Thread-safety: none; used by the agent's driving thread. Pure: the time is passed in.

#ifndef KVXFER_TRANSPORT_FENCE_WAITS_H_
#define KVXFER_TRANSPORT_FENCE_WAITS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "src/core/base/clock.h"
#include "src/transport/fence_book.h"

namespace kvxfer {

// The connecting side's transfers that are stopping: each is quiet once the last of its ops in
// flight has completed. A rail that makes no progress for `patience` is stuck.
class StoppingTransfers {
 public:
  explicit StoppingTransfers(Duration patience) : patience_(patience) {}

  bool contains(uint64_t transfer) const { return stopping_.contains(transfer); }
  // `ops`: the transfer's ops in flight, above 0. `progress`: a number for each rail that rises
  // with every op that ends there.
  void Add(uint64_t transfer, size_t ops, std::vector<uint64_t> progress, Time now);
  // An op of `transfer` has completed. True: the transfer was stopping, and is quiet now.
  bool OnOpDone(uint64_t transfer);
  // The rails without progress since the last look, each with the transfer that waits. Each rail is
  // looked at by itself: progress on another one says nothing about it.
  std::vector<std::pair<uint32_t, uint64_t>> TakeStuck(Time now,
                                                       const std::vector<uint64_t>& progress);
  // When TakeStuck is due.
  std::optional<Time> deadline() const;
  void Clear() { stopping_.clear(); }

 private:
  struct Stopping {
    size_t ops = 0;  // in flight
    Time until{};
    std::vector<uint64_t> progress{};  // at the last look
  };

  const Duration patience_;
  std::map<uint64_t, Stopping> stopping_;
};

// The accepting side's fences of transfers: each is answered once the peer has said that the
// transfer is quiet. A peer that does not say so for kPatience is late.
class ConfirmedFences {
 public:
  static constexpr Duration kPatience = std::chrono::seconds(3);

  // Both return how many kFenced answers are due for `transfer` now.
  uint32_t Ask(uint64_t transfer, Time now);
  uint32_t OnQuiet(uint64_t transfer) { return Answered(transfer, book_.OnMarker(transfer, 0)); }
  // A fence has waited for too long.
  bool late(Time now) const;
  std::optional<Time> deadline() const;
  // The transfers whose fences have no answer.
  std::vector<uint64_t> unanswered() const;
  void Clear() { asked_.clear(); }

 private:
  uint32_t Answered(uint64_t transfer, uint32_t answers);

  FenceBook book_{1};
  std::map<uint64_t, Time> asked_;  // unanswered fences, and until when each is awaited
};

}  // namespace kvxfer

#endif  // KVXFER_TRANSPORT_FENCE_WAITS_H_
