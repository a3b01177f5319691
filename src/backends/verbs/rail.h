// The connecting side of one rail: a queue pair to one port of the peer, its life and its work.
//
// Life: kWaiting (for the next attempt) → kMaking (its end, by SetupQueue) → kOffered (the peer
// makes the other) → kConnecting (by SetupQueue) → kProbing (a write is on its way that the peer is
// asked about) → kUp → kDraining (in error, or soon; what was posted is flushed, and the queue pair
// destroyed) → kDown (until Reopen) → kWaiting ...
//
// Thread-safety: none; used by the backend's owner.

#ifndef KVXFER_BACKENDS_VERBS_RAIL_H_
#define KVXFER_BACKENDS_VERBS_RAIL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kvxfer/backend.h"
#include "src/backends/verbs/blobs.h"
#include "src/backends/verbs/pairs.h"
#include "src/backends/verbs/queue_pair.h"
#include "src/backends/verbs/send_queue.h"
#include "src/core/base/clock.h"

namespace kvxfer::verbs {

class DialledLink;

class Rail {
 public:
  enum class State : uint8_t {
    kWaiting,
    kMaking,
    kOffered,
    kConnecting,
    kProbing,
    kUp,
    kDraining,
    kDown,
  };

  Rail(DialledLink* link, uint32_t index, Pair pair);
  ~Rail();

  State state() const { return state_; }
  bool up() const { return state_ == State::kUp; }
  const Pair& pair() const { return pair_; }
  // Those that were tried in vain since all were, or it was up.
  const std::vector<Pair>& bad_pairs() const { return bad_; }
  // Has been up, or waits without a pair that it has not tried.
  bool settled() const { return was_up_ || exhausted_; }
  // Why it is not up; OK where nothing has gone wrong.
  const absl::Status& why() const { return why_; }
  // "mlx5_0:1 → mlx5_2:1".
  std::string Path() const;

  // --- making it (rail_make.cc) ---
  void Attempt();
  // Its queue pair is made, or connected, or neither; then `pair` may be there to be destroyed.
  void OnSetUp(absl::Status status, std::unique_ptr<QueuePair> pair);
  void OnAnswer(const Answer& answer);
  void OnProbed(const Probed& probed);
  // The agent is done with its earlier life.
  void Reopen();
  // Its local port came up: the next attempt is now.
  void OnPortUp();
  std::optional<Time> deadline() const { return deadline_; }
  void OnDeadline(Time now);

  // --- work (rail.cc) ---
  // Builds the requests of `op`, which is valid, for the next Ring. False: no room.
  bool Post(const Op& op);
  // The most requests that `op` is: one a run, and one more wherever a run goes from one piece of
  // its memory to the next, at either end.
  static uint32_t PiecesOf(const Op& op);
  // Rings the doorbell for what was built.
  void Ring();
  // A completion of one of its requests.
  void OnDone(const WorkId& id, const ibv_wc& wc);
  // Reads one word of the peer behind every write that was posted; one at a time. Not within Post.
  void Flush();
  // Without order nothing is pushed by what follows, and nothing has to be: a completion says that
  // the peer's device is through with it.
  bool needs_flush() const { return up() && dirty_ && ordered_; }
  size_t CountOf(uint64_t transfer) const { return queue_.CountOf(transfer); }
  uint64_t progress() const { return progress_; }

  // --- ending it ---
  // It does not work any more. `tell`: the peer does not know.
  void Fail(absl::Status why, bool tell);
  void OnLost(const RailLost& lost);
  // The link ends: destroys the queue pair, ends every op with `why`.
  void End(const absl::Status& why);
  // Its device has refused to destroy its queue pair: what was in flight has not ended.
  bool undying() const { return undying_; }
  // That is over.
  void OnDestroyed();
  bool uses(const Device& device) const;
  bool uses(const Device& device, uint8_t port) const;
  // Of the last probe that came back: there, and what it left there back.
  Duration round_trip() const { return round_trip_; }
  uint32_t queue_pair() const { return qp_ == nullptr ? 0 : qp_->number(); }

 private:
  Device& device() const;
  const LocalPort& port() const;
  std::string Where() const;
  absl::Status CheckLocalEnd();
  void SetUp(std::optional<QpAddress> to, State state);
  absl::Status Prepare();
  void AttemptFailed(absl::Status why, bool bad_pair);
  bool NextPair();
  void PostProbe();
  void PostProbeRead();
  void ProbeDone(const absl::Status& status);
  void WatchStall(Time now);

  uint32_t Build(const Op& op, ibv_send_wr*& last);
  // The same of memory of any kind, and in pieces.
  uint32_t BuildPieces(const Op& op, ibv_send_wr*& last);
  uint32_t BuildNothing(ibv_send_wr*& last);
  static bool IntoGpu(const Op& op);
  ibv_send_wr& Chain();
  void Internal(Purpose purpose, ibv_send_wr& last, uint32_t requests);
  void FillWord(ibv_send_wr& wr, bool read);
  void Complete(uint64_t number);
  void CompleteThrough(uint64_t number);
  void EndFlight(const Flight& flight, absl::Status status);
  void StartDraining(absl::Status why, bool tell);
  void FinishDrain();
  void OnDrainDeadline(Time now);
  absl::Status OwnError(uint64_t number, const ibv_wc& wc);
  bool Drained(const WorkId& id) const;
  bool MayBeThePath(ibv_wc_status status);
  enum class Undying : uint8_t { kWait, kLeave };
  // Destroys the queue pair; what was in flight ends with `why`. Where the device refuses, kWait
  // makes it false, and OnDestroyed follows; kLeave is for those that carried no data.
  bool Destroy(const absl::Status& why, Undying undying);
  void Release(const absl::Status& why);

  DialledLink* const link_;
  const uint32_t index_;
  const bool ordered_;
  Pair pair_;
  std::vector<Pair> bad_;
  State state_ = State::kWaiting;
  bool was_up_ = false;
  bool exhausted_ = false;
  bool round_over_ = false;  // every pair is in bad_: the next attempt begins with the best again
  uint32_t life_ = 0;
  uint32_t failures_ = 0;  // attempts in a row
  absl::Status why_;
  std::optional<Time> deadline_;
  std::optional<uint16_t> slot_;
  uint32_t reserved_ = 0;  // room of the completion queue, for the rail's own requests

  uint64_t job_ = 0;               // of SetupQueue; 0: none
  std::unique_ptr<QueuePair> qp_;  // null while SetupQueue has it
  uint32_t number_ = 0;            // of it, also once it is gone
  bool undying_ = false;
  uint64_t scratch_ = 0;  // at the peer
  uint32_t scratch_key_ = 0;
  uint64_t nonce_ = 0;
  Time probed_at_{};
  Duration round_trip_{};
  size_t remote_device_ = 0;
  SendQueue queue_;
  uint64_t bytes_ = 0;  // in flight
  bool dirty_ = false;  // writes were posted that no flush is behind
  uint64_t progress_ = 0;
  uint64_t progress_seen_ = 0;
  ibv_send_wr* first_ = nullptr;  // built, the doorbell has not rung
  ibv_send_wr* last_ = nullptr;
  uint64_t failed_ = 0;       // number of the op that put the queue pair into error
  uint64_t drains_with_ = 0;  // number of the last op that is flushed
  size_t flushed_ = 0;        // of those in flight, while it drains
  bool lingers_ = false;      // draining, and not in error yet
};

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_RAIL_H_
