// The ops that GPUs of this process copy, of all links: those that wait, and the batches under way.
//
// An op is begun by the device that owns its local memory, which pushes writes and pulls reads. As
// long as a device has few batches under way each op is a batch of its own, begun at once; what
// comes while it is busy goes together into the next ones. So one op waits for nothing, and many
// small ones cost few launches.
//
// Lifetime: users outlive their ops (Drop and Wait see to that).
// Thread-safety: MakeReady from any thread, the rest by the backend's owner.

#ifndef KVXFER_BACKENDS_CUDA_IPC_COPY_QUEUE_H_
#define KVXFER_BACKENDS_CUDA_IPC_COPY_QUEUE_H_

#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/backend.h"
#include "src/backends/cuda_ipc/peer_region.h"
#include "src/cuda/copier.h"
#include "src/cuda/watched_span.h"

namespace kvxfer::cuda_ipc {

inline constexpr uint64_t kMaxOpBytes = 32 * 1024 * 1024;
inline constexpr size_t kMaxOpRuns = 8192;

class CopyUser {
 public:
  virtual ~CopyUser() = default;
  // The op is over: nothing of it is read or written any more.
  virtual void OnCopied(const Op& op, const absl::Status& status) = 0;
};

class CopyQueue {
 public:
  // What a device has under way at most; enough that it never waits for this side.
  static constexpr size_t kMaxRunning = 4;  // batches
  // Of a batch of several ops.
  static constexpr uint64_t kBatchBytes = kMaxOpBytes;
  static constexpr size_t kBatchPieces = 16384;

  ~CopyQueue();

  // Makes what copies on `device`, ahead of the first op there. Takes some 10 ms.
  absl::Status MakeReady(const cuda::Driver* driver, int device);

  // Takes an op that has been checked: its runs name open registrations and keys of this backend
  // and stay within them, and it has bytes. OnCopied follows, not before Start.
  void Add(CopyUser* user, const Op& op);
  // Begins what waits, as far as there is room.
  void Start();

  // Ends what has not begun of `transfer` (0: of all), with `why`.
  void Drop(CopyUser* user, uint64_t transfer, const absl::Status& why);
  // Ops of `transfer` (0: of all) that have begun and are not over.
  size_t Running(const CopyUser* user, uint64_t transfer) const;

  // Tells of batches that are over, and begins others; true: there were some.
  bool Poll();
  // Something waits or is under way: Poll soon, nothing else tells of its end.
  bool busy() const { return !ops_.empty(); }
  // The context of a device is ruined: what had begun there has ended, and nobody knows what of it
  // still moves.
  bool broken();
  // Blocks until nothing of `user` (null: of anybody) is under way. What waits stays.
  void Wait(const CopyUser* user);

  // How `device` copies; empty: it has not been asked to.
  std::string Describe(int device) const;

 private:
  struct Posted {
    Op op;
    CopyUser* user = nullptr;
    uint64_t bytes = 0;
    uint32_t waiting = 0;  // lanes in which it waits
    uint32_t running = 0;  // batches that hold some of it
    absl::Status status{};
  };
  using Ops = std::list<Posted>;
  struct Batch {
    uint64_t number = 0;  // the copier's
    std::vector<Ops::iterator> ops{};
    // Their memory stays open until the batch is over, whatever becomes of the keys.
    std::vector<std::shared_ptr<PeerRegion>> regions{};
  };
  // One device.
  struct Lane {
    const cuda::Driver* driver = nullptr;
    std::unique_ptr<cuda::Copier> copier{};
    std::deque<Ops::iterator> waiting{};
    std::deque<Batch> running{};
  };

  Lane* Find(int device) const;
  const std::vector<std::pair<int, Lane*>>& Lanes();
  bool StartBatch(int device, Lane& lane);
  absl::Status AddPieces(int device, const Lane& lane, const Posted& posted, Batch& batch);
  bool Launch(int device, Lane& lane, Batch batch);
  bool StartEach(int device, Lane& lane, const Batch& batch);
  bool TakeEnds(Lane& lane);
  void Left(Ops::iterator posted);

  mutable std::mutex mu_;                       // of lanes_, not of what is in them
  std::map<int, std::unique_ptr<Lane>> lanes_;  // none goes before this does
  std::vector<std::pair<int, Lane*>> known_;    // lanes_, for the owner's thread
  Ops ops_;
  uint64_t batches_ = 0;
  std::vector<cuda::Piece> pieces_;          // scratch
  std::vector<cuda::WatchedSpan*> touched_;  // scratch
};

}  // namespace kvxfer::cuda_ipc

#endif  // KVXFER_BACKENDS_CUDA_IPC_COPY_QUEUE_H_
