// The ops that GPUs of this process copy, of all endpoints: those that wait and the batches under
// way.
//
// The device that owns an op's local memory copies it: it pushes writes and pulls reads. While a
// device has few batches under way, each op is a batch of its own that begins at once. Ops that
// arrive while it is busy share the next batches. So a single op waits for nothing, and many small
// ones cost few launches.
//
// Lifetime: users must outlive their ops; Drop and Wait ensure that.
// Thread-safety: MakeReady from any thread; the rest is called by the agent's driver only.

#ifndef KVXFER_BACKENDS_CUDA_IPC_COPY_QUEUE_H_
#define KVXFER_BACKENDS_CUDA_IPC_COPY_QUEUE_H_

#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
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
inline constexpr size_t kMaxOpPieces = 8192;

class CopyUser {
 public:
  virtual ~CopyUser() = default;
  // The op is over: none of its bytes are read or written afterwards.
  virtual void OnCopied(const Op& op, const absl::Status& status) = 0;
};

class CopyQueue {
 public:
  // The most batches under way on one device: enough that the GPU never waits for this side.
  static constexpr size_t kMaxRunning = 4;  // batches
  // Limits of a batch of several ops.
  static constexpr uint64_t kBatchBytes = kMaxOpBytes;
  static constexpr size_t kBatchPieces = 16384;

  ~CopyQueue();

  // Makes the copier of `device`, before the first op there. Takes some 10 ms.
  absl::Status MakeReady(const cuda::Driver* driver, int device);

  // Accepts an op that has been checked: its runs name open registrations and keys of this backend
  // and stay within them, and it has bytes. `devices`: those of its local memory, each once.
  // OnCopied follows, but not before Start.
  void Add(CopyUser* user, const Op& op, std::span<const int> devices);
  // Begins what waits, as far as the devices have space.
  void Start();

  // Completes ops of `transfer` (0: all) that have not begun, with `why`.
  void Drop(CopyUser* user, uint64_t transfer, const absl::Status& why);
  // How many ops of `transfer` (0: all) have begun and are not over.
  size_t Running(const CopyUser* user, uint64_t transfer) const;

  // Reports batches that are over and begins others. True: there were any.
  bool Poll();
  // Something waits or is under way. Poll soon: nothing else signals its end.
  bool busy() const { return !ops_.empty(); }
  // The context of a device is broken: what had begun there has ended, and some of it may still
  // move bytes.
  bool broken();
  // Blocks until nothing of `user` (null: of any user) is under way. Ops that wait stay.
  void Wait(const CopyUser* user);

  // Text for people: how `device` copies. Empty: it has no copier.
  std::string Describe(int device) const;

 private:
  struct Posted {
    Op op;
    CopyUser* user = nullptr;
    uint32_t waiting = 0;  // devices on which it waits
    uint32_t running = 0;  // batches that contain a part of it
    absl::Status status{};
  };
  using Ops = std::list<Posted>;
  struct Batch {
    uint64_t number = 0;  // the copier's
    std::vector<Ops::iterator> ops{};
    // Keeps the peers' memory open until the batch is over, whatever happens to the keys.
    std::vector<std::shared_ptr<PeerRegion>> regions{};
  };
  // One device and its ops.
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

  mutable std::mutex mu_;                       // guards lanes_, but not what its lanes contain
  std::map<int, std::unique_ptr<Lane>> lanes_;  // a lane is destroyed only with the queue
  std::vector<std::pair<int, Lane*>> known_;    // lanes_, for the driver's thread
  Ops ops_;
  uint64_t batches_ = 0;
  std::vector<cuda::Piece> pieces_;          // scratch space
  std::vector<cuda::WatchedSpan*> touched_;  // scratch space
};

}  // namespace kvxfer::cuda_ipc

#endif  // KVXFER_BACKENDS_CUDA_IPC_COPY_QUEUE_H_
