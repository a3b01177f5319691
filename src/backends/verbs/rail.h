// The connecting side of one rail: a queue pair to one port of the peer, its life cycle and its
// work.
//
// States: kWaiting (for the next attempt) → kMaking (SetupQueue makes this end) → kOffered (the
// peer makes the other end) → kConnecting (by SetupQueue) → kProbing (a write is under way that the
// peer is asked about) → kUp → kDraining (in error or soon to be; what was posted is flushed, and
// the queue pair is destroyed) → kDown (until Reopen) → kWaiting ...
//
// Thread-safety: none; called by the agent's driver only.

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
  // Pairs that were tried in vain since all pairs were, or since it was up.
  const std::vector<Pair>& bad_pairs() const { return bad_; }
  // True: it has been up, or has tried every pair.
  bool settled() const { return was_up_ || exhausted_; }
  // Why it is not up; OK if nothing has failed.
  const absl::Status& why() const { return why_; }
  // "mlx5_0:1 → mlx5_2:1".
  std::string Path() const;

  // --- making it (rail_make.cc) ---
  void Attempt();
  // Its queue pair was made or connected, or that failed; `pair` may be non-null in any case.
  void OnSetUp(absl::Status status, std::unique_ptr<QueuePair> pair);
  void OnAnswer(const Answer& answer);
  void OnProbed(const Probed& probed);
  // The agent has finished with its earlier life.
  void Reopen();
  // A port came up: attempt again at once.
  void OnPortUp();
  std::optional<Time> deadline() const { return deadline_; }
  void OnDeadline(Time now);

  // --- work (rail.cc) ---
  // Builds the requests of `op`, which has been checked, for the next Ring. False: no space.
  bool Post(const Op& op);
  // An upper bound on the requests of `op`: one per run, and one more at each boundary between
  // pieces of memory that a run crosses, at either end.
  static uint32_t PiecesOf(const Op& op);
  // Posts what was built.
  void Ring();
  // Handles a completion of one of its requests.
  void OnDone(const WorkId& id, const ibv_wc& wc);
  // Posts a read of one word of the peer behind every write that was posted. One at a time; not
  // during Post.
  void Flush();
  // On an unordered queue pair a later read proves nothing about earlier writes. It is not needed
  // either: a write's completion says that the peer's device has finished with it.
  bool needs_flush() const { return up() && dirty_ && ordered_; }
  size_t CountOf(uint64_t transfer) const { return queue_.CountOf(transfer); }
  uint64_t progress() const { return progress_; }

  // --- ending it ---
  // The rail no longer works. `tell`: the peer does not know it yet.
  void Fail(absl::Status why, bool tell);
  void OnLost(const RailLost& lost);
  // The link ends: destroys the queue pair and completes every op with `why`.
  void End(const absl::Status& why);
  // The device has refused to destroy the queue pair: what was in flight has not ended.
  bool if_refused() const { return undestroyed_; }
  // The queue pair is destroyed after all.
  void OnDestroyed();
  bool uses(const Device& device) const;
  bool uses(const Device& device, uint8_t port) const;
  // The duration of the last successful probe: the write and the read.
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
  // The same as Build, for memory of any kind and in pieces.
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
  enum class IfRefused : uint8_t { kWait, kLeave };
  // Destroys the queue pair; what was in flight ends with `why`. If the device refuses: kWait
  // returns false, and OnDestroyed follows; kLeave returns true, and is only for a queue pair that
  // carried no data.
  bool Destroy(const absl::Status& why, IfRefused if_refused);
  void Release(const absl::Status& why);

  DialledLink* const link_;
  const uint32_t index_;
  const bool ordered_;
  Pair pair_;
  std::vector<Pair> bad_;
  State state_ = State::kWaiting;
  bool was_up_ = false;
  bool exhausted_ = false;
  bool round_over_ = false;  // every pair is in bad_: the next attempt starts over with the best
  uint32_t life_ = 0;
  uint32_t failures_ = 0;  // failed attempts in a row
  absl::Status why_;
  std::optional<Time> deadline_;
  std::optional<uint16_t> slot_;
  uint32_t reserved_ = 0;  // completion queue entries for the rail's own requests

  uint64_t job_ = 0;               // in SetupQueue; 0: none
  std::unique_ptr<QueuePair> qp_;  // null while SetupQueue has it
  uint32_t number_ = 0;            // the queue pair's; kept after it is destroyed
  bool undestroyed_ = false;
  uint64_t scratch_ = 0;  // the address of the peer's scratch memory
  uint32_t scratch_key_ = 0;
  uint64_t nonce_ = 0;
  Time probed_at_{};
  Duration round_trip_{};
  size_t remote_device_ = 0;
  SendQueue queue_;
  uint64_t bytes_ = 0;  // in flight
  bool dirty_ = false;  // writes were posted that no flush follows
  uint64_t progress_ = 0;
  uint64_t progress_seen_ = 0;
  ibv_send_wr* first_ = nullptr;  // built, not posted
  ibv_send_wr* last_ = nullptr;
  uint64_t failed_ = 0;       // number of the op that put the queue pair into error
  uint64_t drains_with_ = 0;  // number of the last op that is flushed
  size_t flushed_ = 0;        // how many of those in flight were flushed while draining
  bool lingers_ = false;      // draining, but not in error yet
};

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_RAIL_H_
