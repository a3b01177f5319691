// The ops that GPUs of this process copy, of all endpoints: those that wait and the batches under
// way.
//
// The device that owns an op's local memory copies it: it pushes writes and pulls reads. While a
// device has few batches under way, each op is a batch of its own that begins at once. Ops that
// arrive while it is busy share the next batches, as many as keep the GPU busy for a while
// (Copier::BatchBytes). So a single op waits for nothing, and many small ones cost few launches.
//
// Whole blocks of paged regions go to the GPU by their ids, and cost the same few instructions
// whatever their size. Descriptors, parts of blocks, and regions that consist of several
// allocations are walked run by run.
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
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/backend.h"
#include "src/backends/cuda_ipc/peer_region.h"
#include "src/core/base/clock.h"
#include "src/core/plan/pair_walk.h"
#include "src/cuda/copier.h"
#include "src/cuda/watched_span.h"

namespace kvxfer::cuda_ipc {

class CudaIpcRegistration;

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
  // The most batches under way on one device: while one runs, another is ready, and the ops that
  // come meanwhile share the next one.
  static constexpr size_t kMaxRunning = 3;
  // The most blocks and pieces in a batch of several ops.
  static constexpr size_t kBatchBlocks = 65536;

  // `copy_sms`: AgentOptions::copy_sms.
  explicit CopyQueue(uint32_t copy_sms) : copy_sms_(copy_sms) {}
  ~CopyQueue();

  // Makes the copier of `device`, before the first op there. Takes some 10 ms.
  absl::Status MakeReady(const cuda::Driver* driver, int device);

  // Whether all blocks that ids of `pair` can name lie within the two regions.
  static bool Holds(const BlockView& view, const BlockPair& pair, const CudaIpcRegistration& local,
                    const PeerRegion& remote);

  // Accepts an op that has been checked: its runs name open registrations and keys of this backend
  // and stay within them, and it has bytes. `devices`: those of its local memory, each once.
  // `by_ids`: all of its pairs of regions satisfy Holds, so their ids go to the GPU as they are.
  // OnCopied follows, but not before Start.
  void Add(CopyUser* user, const Op& op, std::span<const int> devices, bool by_ids);
  // Begins what waits, as far as the devices have space.
  void Start();

  // Completes ops of `transfer` (0: all) that have not begun, with `why`.
  void Drop(CopyUser* user, uint64_t transfer, const absl::Status& why);
  // How many ops of `transfer` (0: all) have begun and are not over.
  size_t Running(const CopyUser* user, uint64_t transfer) const;

  // Reports batches that are over and begins others. True: there were any.
  bool Poll();
  // When to Poll next, although nothing else happens (Copier::NextPoll); nothing: nothing is under
  // way.
  std::optional<Time> NextPoll() const;
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
    bool by_ids = false;
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
  const std::vector<std::pair<int, Lane*>>& Lanes() const;
  void StartOn(int device, Lane& lane);
  bool StartBatch(int device, Lane& lane);
  void BeginBatch();
  absl::Status AddOp(int device, const Lane& lane, const Posted& posted, Batch& batch);
  absl::Status AddBlocks(int device, const Op& op, const PairWalk& blocks, Batch& batch);
  void UseIds(const BlockView& view);
  absl::Status UseSides(int device, const CudaIpcRegistration& local,
                        const std::shared_ptr<PeerRegion>& region, Batch& batch);
  absl::Status AddRuns(int device, const Op& op, const BlockRange& range, Batch& batch);
  void Touch(cuda::WatchedSpan* span);
  void AddRegion(int device, const std::shared_ptr<PeerRegion>& region, Batch& batch);
  bool Launch(int device, Lane& lane, Batch batch);
  bool StartEach(int device, Lane& lane, const Batch& batch);
  bool TakeEnds(Lane& lane);
  void Left(Ops::iterator posted);

  const uint32_t copy_sms_;
  mutable std::mutex mu_;                       // guards lanes_, but not what its lanes contain
  std::map<int, std::unique_ptr<Lane>> lanes_;  // a lane is destroyed only with the queue
  mutable std::vector<std::pair<int, Lane*>> known_;  // lanes_, for the driver's thread
  Ops ops_;
  uint64_t batches_ = 0;
  // Copies that begin in one Poll, or between two for one transfer, are a round: their memory is
  // checked once.
  uint64_t rounds_ = 1;
  uint64_t last_transfer_ = 0;
  // What is in the batch that is being made.
  std::vector<cuda::Piece> pieces_;
  std::vector<cuda::PagedCopy> paged_;
  cuda::Reach reach_ = cuda::Reach::kOwn;
  // The ids of the op that is being added, wherever they are.
  struct Ids {
    const uint32_t* local = nullptr;
    const uint32_t* remote = nullptr;
  };
  Ids ids_;
  // The two sides of the last blocks that went by their ids, and where the GPU finds the remote
  // one; nothing: one of them is in several parts.
  struct Sides {
    const CudaIpcRegistration* local = nullptr;
    const PeerRegion* region = nullptr;
    std::optional<uint64_t> at{};
  };
  Sides sides_;
  std::vector<cuda::WatchedSpan*> touched_;  // scratch space
};

}  // namespace kvxfer::cuda_ipc

#endif  // KVXFER_BACKENDS_CUDA_IPC_COPY_QUEUE_H_
