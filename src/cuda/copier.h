// Copies scattered pieces of memory by a GPU, many pieces in one launch. A piece may lie in the
// GPU's own memory, in memory of another device that the GPU reaches, in memory of another process
// that was opened here, or in pinned host memory.
//
// A batch is one kernel launch for many thousands of blocks (kernels.cuh), or a few launches for
// more. Paged blocks go to the GPU as they are, by their ids, at a few instructions of the host a
// block; pieces cost more. Behind a batch the CUDA stream writes a word of pinned memory, so that
// looking for its end costs no call of the CUDA driver. If the kernel cannot be used (built without
// nvcc, or the GPU is older than the kernel), a batch is one cuMemcpyAsync per piece. Batches run
// on a few non-blocking CUDA streams of the copier's own, never on the legacy default stream.
//
// Lifetime: its destructor waits for running batches; destroy it when idle() to avoid the wait.
// Thread-safety: none; used by one thread at a time.

#ifndef KVXFER_CUDA_COPIER_H_
#define KVXFER_CUDA_COPIER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/block_range.h"
#include "src/core/base/clock.h"
#include "src/cuda/driver.h"

namespace kvxfer::cuda {

// A contiguous piece. The copier's device must be able to reach both addresses.
struct Piece {
  uint64_t to = 0;
  uint64_t from = 0;
  uint64_t bytes = 0;
};

// Blocks of two paged regions: block from_ids[i] of `from` goes to block to_ids[i] of `to`, for
// i < count. The copier's device must be able to reach all of these blocks. No byte of `to` may be
// named twice.
struct PagedCopy {
  struct Side {
    uint64_t base = 0;    // address of block 0
    uint64_t stride = 0;  // bytes from one block to the next
    const uint32_t* ids = nullptr;
    // The largest id that there is: a block of a larger one is not copied. The caller has checked
    // ids on the host, so it matters for others.
    uint32_t last = UINT32_MAX;
    // The ids are in memory of the copier's device, at that address, which no CPU may touch. They
    // must exist until the batch has ended, as what it copies must.
    bool on_device = false;
  };
  Side to{};
  Side from{};
  uint32_t count = 0;
  uint64_t bytes = 0;  // of a block, or of each of its pieces
  // Each block consists of such pieces; null: of one. `to` is its local side if `to_local`.
  const BlockPieces* pieces = nullptr;
  bool to_local = false;

  uint64_t total_bytes() const {
    return count * (pieces == nullptr ? bytes : bytes * pieces->count());
  }
};

// The farthest memory that a batch touches, seen from the GPU that copies.
enum class Reach : uint8_t { kOwn, kPeer, kHost };

// What one batch copies. The spans, and what they point to, are read during Start only.
struct CopyBatch {
  std::span<const Piece> pieces{};
  std::span<const PagedCopy> paged{};
  // Contiguous bytes that a copy engine of the GPU moves before everything else, or after it; no
  // bytes: nothing. So a batch gathers on the GPU what then goes to the host, or brings from there
  // what it scatters. The rest of the batch is then within the GPU's own memory, and counts alone
  // as the batch's bytes; `reach` is that of these.
  Piece before{};
  Piece after{};
  // Decides how many of the GPU's multiprocessors the batch gets: few if it is not kOwn.
  Reach reach = Reach::kOwn;
};

class Copier {
 public:
  // The most pieces in one batch, and the most blocks.
  static constexpr size_t kMaxPieces = 32768;
  static constexpr size_t kMaxBlocks = 131072;
  // The most bytes of the paged blocks of one batch.
  static constexpr uint64_t kMaxPagedBytes = uint64_t{1} << 30;
  // The most batches under way.
  static constexpr size_t kMaxBatches = 32;

  // `device` is the GPU that copies. Loading the kernel may wait for the GPU's CUDA streams, which
  // may wait for transfers: never call this on the thread that drives transfers. `most_sms`: the
  // most multiprocessors that copies occupy at a time; 0: as many as make them fast. Unavailable,
  // with the cause: CUDA streams or pinned memory for the lists were not available.
  static absl::StatusOr<std::unique_ptr<Copier>> Create(const Driver* driver, int device,
                                                        uint32_t most_sms = 0);
  virtual ~Copier() = default;

  // Begins a batch and returns its number; numbers rise. ResourceExhausted, and nothing was begun:
  // kMaxBatches are under way, pinned memory has no space for these pieces and ids (an idle copier
  // takes kMaxPieces and kMaxBlocks), or the batch is larger than a batch may be. Unimplemented:
  // ids in GPU memory, and there is no copy kernel.
  // Any other error: the CUDA driver refused (bad memory, for example), and no byte of the batch
  // will move. If it refuses only a part, the batch is begun and ends with the error. Two batches
  // may run at the same time and end in any order.
  //
  // The memory of all pieces must exist: a kernel that touches other memory breaks the context,
  // also for the application (CheckAlive).
  virtual absl::StatusOr<uint64_t> Start(const CopyBatch& batch) = 0;

  struct End {
    uint64_t batch = 0;
    // OK: every byte is visible to all work that the device starts from now on. InvalidArgument: of
    // some blocks an id in GPU memory is too large; the others were copied. Otherwise nothing
    // of the batch moves from now on, as far as that can be known (broken()). In a broken context
    // each batch ends with an error and no new one can be started.
    absl::Status status{};
  };
  // The next batch that is over, in the order of Start; nothing if there is none. A fault of the
  // GPU is noticed once the batch is overdue.
  virtual std::optional<End> Poll() = 0;
  // When to call Poll next; nothing: nothing runs. Before that time it would find no end, as far as
  // can be predicted from the rate of earlier batches. A time that has passed: now, again and
  // again, because the end is near.
  virtual std::optional<Time> NextPoll() const = 0;
  // How many bytes keep the GPU busy for as long as a batch should take: long enough to hide what
  // the host does for it, short enough that others need not wait.
  virtual uint64_t BatchBytes(Reach reach) const = 0;

  virtual bool idle() const = 0;
  // True: the context is broken. Batches have ended, but some of their copies may still move bytes.
  virtual bool broken() const = 0;
  // "copy kernel, 2 streams", "copy kernel on 8 SMs, 1 stream", or "driver copies, a call each
  // (built without nvcc), 2 streams".
  virtual std::string Describe() const = 0;
};

}  // namespace kvxfer::cuda

#endif  // KVXFER_CUDA_COPIER_H_
