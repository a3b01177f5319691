// The connecting side of one rail: a queue pair to one port of the peer, its life cycle and its
// work.
//
// States (src/transport/rail_life.h): kMaking (SetupQueue makes this end) → kOffered (the peer
// makes the other end) → kConnecting (by SetupQueue) → kProbing (a write is under way that the peer
// is asked about) → kUp → kDraining (in error or soon to be; what was posted is flushed, and the
// queue pair is destroyed) → kDown.
//
// Thread-safety: none; called by the agent's driver only.

#ifndef KVXFER_BACKENDS_VERBS_RAIL_H_
#define KVXFER_BACKENDS_VERBS_RAIL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "kvxfer/backend.h"
#include "src/backends/verbs/blobs.h"
#include "src/backends/verbs/pairs.h"
#include "src/backends/verbs/queue_pair.h"
#include "src/backends/verbs/request_pool.h"
#include "src/backends/verbs/send_queue.h"
#include "src/core/base/clock.h"
#include "src/transport/rail_life.h"

namespace kvxfer::verbs {

class VerbsDialledEndpoint;

class VerbsRail final : public WorkOwner {
 public:
  VerbsRail(VerbsDialledEndpoint* endpoint, uint32_t index, Pair pair);
  ~VerbsRail() override;

  // Its round trip is that of the probe: the write and the read.
  const RailLife& life() const { return life_; }
  bool up() const { return life_.up(); }
  const Pair& pair() const { return life_.pair(); }
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
  void OnDeadline(Time now);

  // --- work (rail.cc) ---
  enum class Posted : uint8_t { kYes, kNoSpace, kNoKey };
  // Builds and posts the requests of `op`, which has been checked; they are at most `most`. kNoKey:
  // an end of a run has no registration or key.
  Posted Post(const Op& op, uint32_t most);
  // An upper bound on the requests of `op`: one per run, and one more at each boundary between
  // parts of memory that a run crosses, at either end. 0: an end of a run has no registration or
  // key.
  static uint32_t RequestsOf(const Op& op);
  // Handles a completion of one of its requests.
  void OnDone(const WorkId& id, const ibv_wc& wc) override;
  // Posts a read of one word of the peer behind every write that was posted. One at a time.
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
  // The endpoint ends: destroys the queue pair and completes every op with `why`.
  void End(const absl::Status& why);
  // The device has refused to destroy the queue pair: what was in flight has not ended.
  bool if_refused() const { return undestroyed_; }
  // The queue pair is destroyed after all.
  void OnDestroyed();
  bool uses(const Device& device) const;
  bool uses(const Device& device, uint8_t port) const;
  uint32_t queue_pair() const { return qp_ == nullptr ? 0 : qp_->number(); }

 private:
  Device& device() const;
  const LocalPort& port() const;
  std::string Where() const;
  absl::Status CheckLocalEnd();
  void SetUp(std::optional<QpAddress> to, RailLife::State state);
  void BeginStep(RailLife::State state);
  absl::Status Prepare();
  void AttemptFailed(absl::Status why, bool bad_pair);
  void PostProbe();
  void PostProbeRead();
  void ProbeDone(const absl::Status& status);
  void WatchStall(Time now);

  // Each builds requests at the front of the pool, and returns how many.
  uint32_t Build(const Op& op);
  // The same as Build, for memory of any kind and in parts. Op::blocks has been checked by
  // RequestsOf. `local_gpu` becomes true if some of the local memory is a GPU's.
  uint32_t BuildParts(const Op& op, bool& local_gpu);
  uint32_t BuildNothing();
  RequestBuilder MakeBuilder(OpKind kind);
  // The id of the requests of the flight that is pushed next.
  uint64_t NextId() const;
  // Posts the first Flight::requests requests of the pool.
  void Submit(const Flight& flight);
  // The same for the rail's own requests. Their completion queue entries were reserved.
  void SubmitOwn(Purpose purpose, uint32_t requests);
  // Builds request `index` of the pool: one word to or from the peer.
  void BuildWord(size_t index, bool read);
  void Complete(uint64_t number);
  void CompleteThrough(uint64_t number);
  void EndFlight(const Flight& flight, absl::Status status);
  void TellLost(const absl::Status& why);
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

  VerbsDialledEndpoint* const endpoint_;
  const uint32_t index_;
  const bool ordered_;
  RailLife life_;
  std::optional<uint16_t> slot_;
  uint32_t reserved_ = 0;  // completion queue entries for the rail's own requests

  uint64_t job_ = 0;               // in SetupQueue; 0: none
  std::unique_ptr<QueuePair> qp_;  // null while SetupQueue has it
  uint32_t number_ = 0;            // the queue pair's; kept after it is destroyed
  bool undestroyed_ = false;
  uint64_t scratch_ = 0;  // the address of the peer's scratch memory
  uint32_t scratch_key_ = 0;
  uint64_t nonce_ = 0;
  size_t remote_device_ = 0;
  SendQueue queue_;
  uint64_t bytes_ = 0;  // in flight
  bool dirty_ = false;  // writes were posted that no flush follows
  uint64_t progress_ = 0;
  uint64_t progress_seen_ = 0;
  uint64_t failed_ = 0;       // number of the op that put the queue pair into error
  uint64_t drains_with_ = 0;  // number of the last op that is flushed
  size_t flushed_ = 0;        // how many of those in flight were flushed while draining
  bool lingers_ = false;      // draining, but not in error yet
};

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_RAIL_H_
